"""Views of an outbox and of consumers: what is staged, who streams it, how far consumers are."""

from __future__ import annotations

from msgspec import UNSET, UnsetType

from headwater.outbox.consumer_letters import ConsumerLetter
from headwater.outbox.status import Checkpoint, Status
from headwater.views.record import Mark, View, copied, headers_field, mirror, text_field

OutboxView = mirror("OutboxView", Status)
ConsumerView = mirror("ConsumerView", Checkpoint, last={"lag": int, "lag_ms": int})


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


class ConsumerLetterView(View, frozen=True, kw_only=True):
    """A message that a consumer gave up; ``origin`` is its offset in ``stream``."""

    stream: str
    origin: int | None
    attempts: int | None
    tag: str
    value: str
    encoding: Mark = UNSET
    headers: dict[str, str] | UnsetType = UNSET
    headers_encoding: Mark = UNSET
    delivered_ms: int | None
    buried_ms: int
    cause: str | None
    offset: int

    @classmethod
    def of(cls, letter: ConsumerLetter) -> ConsumerLetterView:
        """Return the view of a dead letter."""
        own = {
            **text_field("value", letter.value),
            **headers_field(letter.headers),
            "cause": letter.cause and str(letter.cause),
        }
        return cls(**copied(cls, letter, **own))
