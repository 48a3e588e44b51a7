"""Views of dirty lists: Icks, channels, their shards and members."""

from __future__ import annotations

from headwater.ick.types import Batch, ChannelStats, IckStats, Lease, Listed, Scored
from headwater.views.record import View, copied, view_of

IckStatsView = view_of(IckStats)
ScoredView = view_of(Scored)
ListedView = view_of(Listed)
# What a consumer of a channel has reserved; commit and release read it again.
BatchView = view_of(Batch)
LeaseView = view_of(Lease)
ChannelStatsView = view_of(ChannelStats)


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
