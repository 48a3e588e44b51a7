"""Keys of streams and topics: all keys of one object are in one slot of a cluster."""

from __future__ import annotations

from headwater.log.limits import check_name

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
