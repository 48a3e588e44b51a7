"""Views of queues and of limits, and what commands on them answer."""

from __future__ import annotations

from msgspec import UNSET, UnsetType

from headwater.kernel.inputs import Limits
from headwater.queue.types import Delivery, QueueItem, QueueStats
from headwater.views.record import Mark, View, headers_field, text_field, view_of

# ── Limits ────────────────────────────────────────────────────────────────────────────────────────
# View of limits: what a group or a queue may deliver, and what a change of them answers.


class LimitsView(View, frozen=True, kw_only=True):
    """The limits of a group or a queue, and those before; a limit that is null is none."""

    stream: str | UnsetType = UNSET
    topic: str | UnsetType = UNSET
    group: str | UnsetType = UNSET
    queue: str | UnsetType = UNSET
    limits: Limits
    before: Limits


# ── Queues ────────────────────────────────────────────────────────────────────────────────────────


QueueStatsView = view_of(QueueStats)
QueueItemView = view_of(QueueItem)


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
