"""What the functions of groups reply: one type each, with its fields in the header's order."""

from __future__ import annotations

from typing import Any, NamedTuple

from headwater.log.replies import Reply, rows


class ClaimedRange(NamedTuple):
    """Offsets that a group delivered together; ``attempt`` counts how often, from 1."""

    first: int
    last: int
    attempt: int

    @classmethod
    def all_of(cls, claims: Reply) -> list[ClaimedRange]:
        """Read the claims of a reply."""
        each = iter(claims)
        return list(map(cls, each, each, each))

    @classmethod
    def all_in(cls, head: bytes) -> list[ClaimedRange]:
        """Read the first line of what is in a blocked member's box."""
        return [cls(*map(int, claim.split(b":"))) for claim in head[1:].split(b",")]


class GroupReadReply(NamedTuple):
    """hw_group_read. ``due_ms``: when a message is due, -1 for never; ``boxed``: a claim.

    ``unfinished``: the server had too much to skip, and there may be more. ``first``:
    where the stream begins, if that was asked for. ``to_order``: in a group that keeps order, the
    first offset whose tag is to be noted, 0 when there is none; -1 in any other group.
    """

    claims: list[ClaimedRange]
    nodes: list[Any]
    entries: list[Any]
    created: bytes
    sealed: int
    last: int
    due_ms: int
    to_bury: int
    boxed: bytes
    unfinished: int
    first: int = 0
    to_order: int = -1

    @classmethod
    def of(cls, reply: Reply) -> GroupReadReply:
        """Read the reply."""
        return cls(ClaimedRange.all_of(reply[0]), *reply[1:])


class DiscardReply(NamedTuple):
    """hw_group_discard. ``more``: another call has more to do."""

    messages: int
    more: int


class RangesReply(NamedTuple):
    """hw_group_ack, hw_group_postpone, hw_group_skip. ``next``: where to continue, -1: the end."""

    messages: int
    next: int


class SeekReply(NamedTuple):
    """hw_group_seek. Unless it is done, the same call continues."""

    offset: int
    done: int


class RemoveReply(NamedTuple):
    """hw_group_remove. Unless it is done, the same call continues."""

    existed: int
    done: int


class ExpireReply(NamedTuple):
    """hw_group_expire. ``place``: where the next call continues, -1 at the end."""

    dropped: int
    place: int


class BuryReply(NamedTuple):
    """hw_group_bury. ``claims`` are the batch to write next; there is none when they are empty."""

    buried: int
    number: int
    claims: list[ClaimedRange]
    stream: str

    @classmethod
    def of(cls, reply: Reply) -> BuryReply:
        """Read the reply."""
        buried, number, claims, stream = reply
        return cls(buried, number, ClaimedRange.all_of(claims), stream.decode())


class DeadRange(NamedTuple):
    """Dead letters that are together from offset ``at``; first..last is where they came from."""

    at: int
    first: int
    last: int
    attempts: int

    @property
    def end(self) -> int:
        """The place behind the last of them."""
        return self.at + self.last - self.first + 1

    def oldest(self, count: int) -> DeadRange:
        """Return the first of them, at most so many."""
        return self._replace(last=min(self.last, self.first + count - 1))

    def newest(self, count: int) -> DeadRange:
        """Return the last of them, at most so many."""
        over = max(self.last - self.first + 1 - count, 0)
        return self._replace(at=self.at + over, first=self.first + over)


class DeadReply(NamedTuple):
    """hw_group_dead. ``stream`` holds the dead letters, '' when there are none.

    ``end`` is behind the newest of all that there are now.
    """

    stream: str
    ranges: list[DeadRange]
    end: int

    @classmethod
    def of(cls, reply: Reply) -> DeadReply:
        """Read the reply."""
        stream, ranges, end = reply
        return cls(stream.decode(), [DeadRange(*row) for row in rows(ranges, 4)], end)


class RedriveReply(NamedTuple):
    """hw_group_redrive. ``place``: where the next call continues, -1 at the end."""

    returned: int
    gone: int
    place: int
