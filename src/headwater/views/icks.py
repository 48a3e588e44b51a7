"""Views of dirty lists: Icks, channels, their shards and members."""

from __future__ import annotations

from typing import Any

from msgspec import UNSET, UnsetType

from headwater.ick.keys import Member
from headwater.ick.types import (
    Batch,
    ChannelStats,
    Lease,
    Listed,
    Place,
    Reserved,
    ShardStats,
)
from headwater.kernel.inputs import from_text
from headwater.views.record import Mark, View, copied, encoding_of, text_field


class IckView(View, frozen=True, kw_only=True):
    """How an Ick stands, by the names of redis-ick; scores are left out where a set is empty."""

    key: str
    pset_key: str
    cset_key: str
    ver: str
    cset_size: int
    pset_size: int
    total_size: int
    pset_min: float | UnsetType = UNSET
    pset_max: float | UnsetType = UNSET
    cset_min: float | UnsetType = UNSET
    cset_max: float | UnsetType = UNSET
    total_min: float | UnsetType = UNSET
    total_max: float | UnsetType = UNSET

    @classmethod
    def of(cls, stats: dict[str, Any]) -> IckView:
        """Return the view of what ``Ick.stats`` returned."""
        return cls(**stats)


class ScoredView(View, frozen=True, kw_only=True):
    """A member of a dirty list, and its score."""

    member: str
    encoding: Mark = UNSET
    score: float

    @classmethod
    def of(cls, member: Member, score: float) -> ScoredView:
        """Return the view of a member and its score."""
        return cls(**text_field("member", member), score=score)


class ListedView(View, frozen=True, kw_only=True):
    """A member of a dirty list, and where it is; ``shard`` is None in an Ick."""

    member: str
    encoding: Mark = UNSET
    score: float
    place: Place
    shard: int | None

    @classmethod
    def of(cls, row: Listed) -> ListedView:
        """Return the view of a member that a scan found."""
        return cls(**copied(cls, row, **text_field("member", row.member)))


class ReservedView(View, frozen=True, kw_only=True):
    """A member that was reserved; ``generation`` tells this time from any other."""

    member: str
    encoding: Mark = UNSET
    score: float
    generation: int

    @classmethod
    def of(cls, row: Reserved) -> ReservedView:
        """Return the view of a member that was reserved."""
        return cls(**copied(cls, row, **text_field("member", row.member)))

    def reserved(self) -> Reserved:
        """Return what this is the view of; raises ValueError for what is not base64."""
        member = from_text(self.member, encoding_of(self.encoding))
        return Reserved(member, self.score, self.generation)


class BatchView(View, frozen=True, kw_only=True):
    """What a consumer of a channel has reserved; commit and release read it again."""

    channel: str
    epoch: int
    shard: int
    token: int
    until_ms: int
    reserved: list[ReservedView]

    @classmethod
    def of(cls, batch: Batch) -> BatchView:
        """Return the view of a batch."""
        return cls(**copied(cls, batch, reserved=[ReservedView.of(row) for row in batch]))

    def batch(self) -> Batch:
        """Return what this is the view of; raises ValueError for what is not base64."""
        rows = tuple(row.reserved() for row in self.reserved)
        return Batch(self.channel, self.epoch, self.shard, self.token, self.until_ms, rows)


class LeaseView(View, frozen=True, kw_only=True):
    """Who holds a shard, until when by the server's clock, and how many members that reserves."""

    shard: int
    consumer: str
    token: int
    until_ms: int
    left_ms: int
    reserved: int

    @classmethod
    def of(cls, lease: Lease) -> LeaseView:
        """Return the view of a lease."""
        return cls(**copied(cls, lease))


class ShardView(View, frozen=True, kw_only=True):
    """How a shard stands: how many members are where, and how long the oldest has waited."""

    shard: int
    ready: int
    later: int
    reserved: int
    waited_ms: int
    lease: LeaseView | None
    closed: bool
    added: int
    entered: int

    @classmethod
    def of(cls, shard: ShardStats) -> ShardView:
        """Return the view of a shard."""
        lease = None if shard.lease is None else LeaseView.of(shard.lease)
        return cls(**copied(cls, shard, lease=lease))


class ChannelView(View, frozen=True, kw_only=True):
    """How a channel stands, in one row; ``folding`` is how many adds one entry stands for."""

    channel: str
    shards: int
    ready: int
    later: int
    reserved: int
    waited_ms: int
    added: int
    entered: int
    folding: float | None

    @classmethod
    def of(cls, stats: ChannelStats) -> ChannelView:
        """Return the view of a channel."""
        return cls(**copied(cls, stats, channel=stats.name, shards=len(stats.shards)))


class ChannelShardsView(View, frozen=True, kw_only=True):
    """How a channel stands, shard by shard; ``left_behind`` are those of a layout being left."""

    channel: str
    ready: int
    later: int
    reserved: int
    waited_ms: int
    added: int
    entered: int
    folding: float | None
    shards: list[ShardView]
    left_behind: list[ShardView]

    @classmethod
    def of(cls, stats: ChannelStats) -> ChannelShardsView:
        """Return the view of a channel and all its shards."""
        return cls(
            **copied(
                cls,
                stats,
                channel=stats.name,
                shards=[ShardView.of(shard) for shard in stats.shards],
                left_behind=[ShardView.of(shard) for shard in stats.left_behind],
            )
        )
