"""Views of an outbox and of consumers: what is staged, who streams it, how far consumers are."""

from __future__ import annotations

from headwater.outbox.status import Checkpoint, Status
from headwater.views.record import View, mirror

OutboxView = mirror("OutboxView", Status)
ConsumerView = mirror("ConsumerView", Checkpoint, last={"lag": int})


class ConsumerSoughtView(View, frozen=True, kw_only=True):
    """The offset of a stream at which a consumer goes on, after a seek."""

    consumer: str
    stream: str
    next: int


class ConsumerRemovedView(View, frozen=True, kw_only=True):
    """A consumer whose positions on some streams were removed."""

    consumer: str
    streams: list[str]
    removed: bool = True


class ConsumerForgottenView(View, frozen=True, kw_only=True):
    """A consumer that retention of some streams waits for no longer, until it runs again."""

    consumer: str
    streams: list[str]
    forgotten: bool = True
