"""Views of queues, dirty lists and timed jobs, of limits, and what commands on them answer."""

from __future__ import annotations

from msgspec import UNSET, UnsetType

from headwater.ick.types import Batch, ChannelStats, IckStats, Lease, Listed, Scored
from headwater.kernel.inputs import Limits
from headwater.queue.types import Delivery, QueueItem, QueueStats
from headwater.timed.operating import TimedJobInfo
from headwater.timed.states import JobEvent
from headwater.views.record import Mark, View, copied, headers_field, text_field, view_of

JobEventView = view_of(JobEvent)
TimedJobInfoView = view_of(TimedJobInfo)
QueueStatsView = view_of(QueueStats)
QueueItemView = view_of(QueueItem)
IckStatsView = view_of(IckStats)
ScoredView = view_of(Scored)
ListedView = view_of(Listed)
# What a consumer of a channel has reserved; commit and release read it again.
BatchView = view_of(Batch)
LeaseView = view_of(Lease)
ChannelStatsView = view_of(ChannelStats)


class LimitsView(View, frozen=True, kw_only=True):
    """The limits of a group or a queue, and those before; a limit that is null is none."""

    stream: str | UnsetType = UNSET
    topic: str | UnsetType = UNSET
    group: str | UnsetType = UNSET
    queue: str | UnsetType = UNSET
    limits: Limits
    before: Limits


class DeliveryView(View, frozen=True, kw_only=True):
    """A message in the hands of a consumer; ``receipt`` is None when nothing is to be acked."""

    id: str
    value: str
    encoding: Mark = UNSET
    headers: dict[str, str] | UnsetType = UNSET
    headers_encoding: Mark = UNSET
    attempt: int
    receipt: str | None

    @classmethod
    def of(cls, delivery: Delivery) -> DeliveryView:
        """Return the view of a delivery."""
        return cls(
            id=delivery.id,
            **text_field("value", delivery.value),
            **headers_field(delivery.headers),
            attempt=delivery.attempt,
            receipt=delivery.receipt or None,
        )


class PushedView(View, frozen=True, kw_only=True):
    """The id of a message that was pushed."""

    queue: str
    id: str


class LinesPushedView(View, frozen=True, kw_only=True):
    """How many messages were pushed."""

    queue: str
    pushed: int


class DiscardedView(View, frozen=True, kw_only=True):
    """How many dead letters of a queue were discarded."""

    queue: str
    discarded: int


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
