"""Reading through groups, in as few words as tests want."""

from __future__ import annotations

from headwater import Group, Message
from tests.support.entries import offsets

# A deadline that no test lives to see, in ms.
FAR = 10**9


def take(
    group: Group, count: int, *, ack_ms: int | None = FAR, expire_ms: int | None = None
) -> list[int]:
    """Read from a group; returns the offsets."""
    return offsets(group.read(count, ack_ms=ack_ms, expire_ms=expire_ms))


def tries(messages: list[Message]) -> list[tuple[int, int]]:
    """Return the offset and the attempt of each message."""
    return [(m.offset, m.attempt) for m in messages]
