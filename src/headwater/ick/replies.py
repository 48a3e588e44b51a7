"""What the functions of dirty lists reply: one type per reply, its fields in the header's order.

Replies that describe an object are name, value, name, value, ...: a new number needs a line in Lua
and a field of the type that users get.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, TypeAlias

from headwater.ick.keys import Member, decode
from headwater.store.call import Call

Reply: TypeAlias = Sequence[Any]


class ExchangeReply(NamedTuple):
    """hw_ick_exchange. ``rows`` are member, score, ... of what is reserved.

    ``more``: there are steps left to do, and rows are read when these are done.
    """

    committed: int
    rows: list[bytes]
    more: int


class ScanReply(NamedTuple):
    """hw_ick_scan and hw_channel_scan. ``cursor`` is 0 at the end."""

    cursor: bytes
    rows: list[bytes]


def members_scanned(_: Call, reply: Reply) -> int:
    """Count, for instruments, the members on a page."""
    return len(ScanReply(*reply).rows) // 2


class SeenLayout(NamedTuple):
    """The layout of a channel, as it was when it was read; hw_channel_open and others."""

    epoch: int
    shards: int
    old_epoch: int
    old_shards: int
    phase: str

    @classmethod
    def of(cls, reply: Reply) -> SeenLayout:
        """Read the reply."""
        epoch, shards, old_epoch, old_shards, phase = reply
        return cls(epoch, shards, old_epoch, old_shards, phase.decode())

    def has(self, epoch: int, shard: int) -> bool:
        """Return whether a shard is one of this layout, or of the one that is being left."""
        shards = {self.old_epoch: self.old_shards, self.epoch: self.shards}
        return shard < shards.get(epoch, 0)


class ReserveReply(NamedTuple):
    """hw_channel_reserve. Without a token there is nothing, or another consumer has the shard.

    ``to_do``: 0 nothing, 1 call again, 2 read the rows by hw_channel_held.
    """

    token: int
    until_ms: int
    rows: list[bytes]
    generations: list[bytes]
    due_ms: int
    to_do: int


class MovedRow(NamedTuple):
    """A member that moves to another shard: hw_channel_page shows it, hw_channel_put takes it.

    ``not_before`` and ``since`` are ms: before which it must not be reserved, since when it is
    dirty.
    """

    member: bytes
    score: bytes
    not_before: bytes
    since: bytes

    @classmethod
    def all_of(cls, reply: Reply) -> list[MovedRow]:
        """Read the reply."""
        return [cls._make(row) for row in _rows(reply, 4)]


def pairs_of(rows: Reply) -> list[tuple[Member, float]]:
    """Read member, score, member, score, ..."""
    return [(decode(member), float(score)) for member, score in _rows(rows, 2)]


def facts_of(reply: Reply) -> dict[str, Any]:
    """Read name, value, name, value, ..."""
    return {name.decode(): value for name, value in _rows(reply, 2)}


def _rows(flat: Reply, size: int) -> Iterator[tuple[Any, ...]]:
    return zip(*(iter(flat),) * size, strict=True)
