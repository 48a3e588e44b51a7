"""Order by tag in a group: the tags of messages are noted before these are delivered.

Messages are packed in the store, which does not see their tags. So a member that finds few messages
reads ahead, and notes their tags with its next read, which delivers them. The store keeps back
messages that wait for others of their tag.
"""

from __future__ import annotations

from functools import lru_cache
from hashlib import blake2b
from operator import attrgetter
from typing import Final

from headwater.errors import InvalidInput
from headwater.log import acks
from headwater.log.ack_arguments import ranges_of
from headwater.log.fetching import fetch_part
from headwater.log.handles import GroupHandle, GroupOptions
from headwater.log.types import Message
from headwater.store.call import Argument, Operation

# What one call notes at most; the server is not held up for longer.
TAGS_PER_CALL: Final = 500
# An offset without a message, and a message that waits for no other.
_HOLE: Final = b"\xff" * 8
_NO_TAG: Final = bytes(8)


def check_terms(options: GroupOptions, count: int, ack_ms: int | None) -> None:
    """Refuse order by tag for messages that need not be acknowledged."""
    if options.ordered and count and ack_ms is None:
        raise InvalidInput(
            "a group that keeps order needs ack_ms: the next message of a tag is delivered when "
            "the one before it is acknowledged"
        )


def first_wish(group: GroupHandle, count: int, with_info: bool) -> Operation[tuple[Argument, ...]]:
    """Return what a read asks for besides messages; it notes tags when there may be too few."""
    if group.to_order and group.ahead < count:
        return (yield from next_wish(group, group.to_order, with_info))
    return ("1" if with_info else "", "1" if group.options.ordered else "", _owned(group))


def next_wish(
    group: GroupHandle, to_order: int, with_info: bool
) -> Operation[tuple[Argument, ...]]:
    """Return what a read asks for besides messages, with tags to note from an offset on."""
    notes = yield from _read_tags(group, to_order)
    ordered = "1" if group.options.ordered else ""
    return ("1" if with_info else "", ordered, _owned(group), *notes)


def note_taken(group: GroupHandle, to_order: int, count: int, messages: list[Message]) -> None:
    """Remember how a read ended; its messages are returned in the order of the stream."""
    messages.sort(key=attrgetter("offset"))
    group.to_order = to_order
    # A read that got less than it asked for has taken everything that was not kept back.
    group.ahead = max(group.ahead - len(messages), 0) if len(messages) == count else 0


def _owned(group: GroupHandle) -> str:
    held = ranges_of(group.owned()) if group.owned is not None else ()
    return " ".join(f"{first}-{last}" for first, last in held)


def _read_tags(group: GroupHandle, start: int) -> Operation[tuple[Argument, ...]]:
    """Read ahead from ``start``, the position of the group; returns the tags to note."""
    stop = start + TAGS_PER_CALL - 1
    part = yield from fetch_part(group.stream, start, stop)
    last = min(part.covered, stop)
    # What was evicted meanwhile is counted by the next read.
    if last < start or part.first > start:
        return ()
    if lost := part.missing(start, last):
        yield from acks.miss(group, part.created, lost)
    tags = bytearray(_HOLE * (last - start + 1))
    for run in part.runs:
        if run.base <= last and run.last >= start:
            rows = run.cut(start, last).to_arrow()
            digests = b"".join(map(_digest, rows.column("tag").to_pylist()))
            offsets = rows.column("offset").to_pylist()
            group.ahead += len(offsets)
            if offsets and offsets[-1] - offsets[0] + 1 == len(offsets):
                at = 8 * (offsets[0] - start)
                tags[at : at + len(digests)] = digests
                continue
            for place, offset in enumerate(offsets):
                at = 8 * (offset - start)
                tags[at : at + 8] = digests[8 * place : 8 * place + 8]
    return (part.created, start, last, bytes(tags))


@lru_cache(maxsize=10_000)
def _digest(tag: str) -> bytes:
    return blake2b(tag.encode(), digest_size=8).digest() if tag else _NO_TAG
