"""Views of what housekeeping did: one record for each change."""

from __future__ import annotations

from collections.abc import Iterator

from headwater.ick.types import KeptChannel
from headwater.log.retention import Kept
from headwater.queue.types import KeptQueue
from headwater.views.record import View

# The counts of a report, in the order in which the work is done.
STREAM_CHANGES = (
    "published",
    "sealed",
    "cooled",
    "expired",
    "buried",
    "producers",
    "members",
    "evicted",
    "compacted",
)
QUEUE_CHANGES = ("returned", "buried", "outlived", "producers")


class StreamChangeView(View, frozen=True, kw_only=True):
    """What housekeeping did to a stream: to how many messages, publishes, producers or members."""

    stream: str
    change: str
    count: int

    @classmethod
    def all_of(cls, kept: Kept) -> Iterator[StreamChangeView]:
        """Yield a view for each change that was made."""
        for change in STREAM_CHANGES:
            if count := getattr(kept, change):
                yield cls(stream=kept.stream, change=change, count=count)


class QueueChangeView(View, frozen=True, kw_only=True):
    """What housekeeping did to a queue: to how many messages or producers."""

    queue: str
    change: str
    count: int

    @classmethod
    def all_of(cls, kept: KeptQueue) -> Iterator[QueueChangeView]:
        """Yield a view for each change that was made."""
        for change in QUEUE_CHANGES:
            if count := getattr(kept, change):
                yield cls(queue=kept.queue, change=change, count=count)


class ChannelChangeView(View, frozen=True, kw_only=True):
    """What housekeeping did to a channel: it finished a change of the number of shards."""

    channel: str
    change: str = "resharded"
    count: int = 1

    @classmethod
    def all_of(cls, kept: KeptChannel) -> Iterator[ChannelChangeView]:
        """Yield a view when a change of shards was finished."""
        if kept.settled:
            yield cls(channel=kept.channel)
