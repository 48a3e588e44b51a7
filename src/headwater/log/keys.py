"""Keys, names and limits of the log: where an object is, and what is accepted before sending."""

from __future__ import annotations

from typing import Final

from headwater.kernel import inputs
from headwater.kernel.inputs import check_block, check_ms, check_name, to_ms
from headwater.store.call import Call, Operation

__all__ = [
    "check_block",
    "check_count",
    "check_ms",
    "check_name",
    "check_offset",
    "to_ms",
]

MAX_NAME_BYTES: Final = inputs.MAX_NAME_BYTES
MAX_TAG_BYTES: Final = 4096
MAX_VALUE_BYTES: Final = 16 * 1024 * 1024
MAX_BATCH_MESSAGES: Final = 100_000
MAX_BATCH_BYTES: Final = 64 * 1024 * 1024
MAX_READ: Final = 1_000_000
# How many dead letters are named by their number at most; it stands for all.
MAX_LETTERS: Final = 1_000_000_000
MAX_OFFSET: Final = inputs.MAX_EXACT
MAX_MS: Final = inputs.MAX_MS
MAX_PARTITIONS: Final = 1024

# Chosen by measurement; see docs/decisions/0002-arrow-nodes.md.
NODE_MESSAGES: Final = 1000
NODE_BYTES: Final = 1024 * 1024
# How many messages may be in hot nodes before writers pack smaller, and how many of the newest
# housekeepers leave hot.
HOT_MESSAGES: Final = 256 * NODE_MESSAGES
HOT_KEPT: Final = 64 * NODE_MESSAGES
PLAIN_MESSAGES: Final = 8
REPLY_BYTES: Final = 4 * 1024 * 1024
# Nodes are packed, and a few bytes of them may stand for many: a reply ends at these, too.
UNPACKED_BYTES: Final = 64 * 1024 * 1024


def check_offset(offset: int, what: str = "offset") -> int:
    """Accept an offset: offsets count from 1."""
    return inputs.check_int(offset, what, 1, MAX_OFFSET)


def check_count(count: int, what: str = "count", most: int = MAX_READ) -> int:
    """Accept a count from 0 on."""
    return inputs.check_int(count, what, 0, most)


def reply_limits(unpacked: int | None = None, stored: int = REPLY_BYTES) -> str:
    """Return the limits of one reply as the server takes them: its bytes, and those unpacked."""
    most = UNPACKED_BYTES if unpacked is None else max(unpacked, 1)
    return f"{min(stored, most)}:{most}"


STREAMS = "hw:{streams}"
TOPICS = "hw:{topics}"
DELETED = "hw:{deleted}"


def stream_key(name: str) -> str:
    """Return the key of a stream; every other key of it begins with this one."""
    return f"hw:s:{{{check_name(name, 'stream')}}}"


def stream_name(key: str) -> str:
    """Return the name of the stream that has a key."""
    return key[len("hw:s:{") : -len("}")]


def topic_key(name: str) -> str:
    """Return the key of a topic."""
    return f"hw:t:{{{check_name(name, 'topic')}}}"


def nodes_key(stream: str) -> str:
    """Return the key of a stream's nodes, by the offset at which each begins."""
    return f"{stream}:nodes"


def index_key(stream: str) -> str:
    """Return the key of the index of a stream's nodes, by the offset at which each ends."""
    return f"{stream}:index"


def tail_key(stream: str) -> str:
    """Return the key of a stream's tail, on which plain readers block."""
    return f"{stream}:tail"


def group_key(stream: str, group: str) -> str:
    """Return the key of a group; every other key of it begins with this one."""
    return f"{stream}:g:{len(group.encode())}:{group}"


def box_key(stream: str, group: str, waiter: str) -> str:
    """Return the key of the list on which one blocked member of a group waits."""
    return f"{group_key(stream, group)}:box:{waiter}"


def list_streams() -> Operation[list[str]]:
    """Return the names of all streams, sorted."""
    return sorted(name.decode() for name in (yield _list(STREAMS)))


def list_deleted() -> Operation[list[str]]:
    """Return the names of streams that were deleted and are not freed yet, sorted."""
    return sorted(name.decode() for name in (yield _list(DELETED)))


def list_topics() -> Operation[list[str]]:
    """Return the names of all topics, sorted."""
    return sorted(name.decode() for name in (yield _list(TOPICS)))


def _list(registry: str) -> Call:
    return Call("hw_registry_list", registry, read_only=True)
