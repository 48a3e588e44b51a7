"""Views of an outbox and of consumers: what is staged, who streams it, how far consumers are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from msgspec import UNSET, UnsetType

from headwater.kernel.inputs import MAX_NAME_BYTES
from headwater.log.inspecting import lag_at
from headwater.outbox.consumer_letters import ConsumerLetter, ConsumerRedriven, letters_stream
from headwater.outbox.status import Checkpoint, Status
from headwater.store.call import Operation
from headwater.store.many import sound
from headwater.views.overview import some_streams
from headwater.views.record import Mark, View, copied, headers_field, mirror, text_field

OutboxView = mirror("OutboxView", Status)
ConsumerView = mirror("ConsumerView", Checkpoint, last={"lag": int, "lag_ms": int, "dead": int})


class ConsumerPlace(NamedTuple):
    """A consumer on one stream: its position, its lag, and how many messages it gave up.

    ``lag_ms`` is how long the oldest message that it has not handled has waited.
    """

    checkpoint: Checkpoint
    lag: int
    lag_ms: int
    dead: int

    @property
    def letters(self) -> str:
        """The stream that has what it gave up."""
        return letters_stream(self.checkpoint.stream, self.checkpoint.consumer)

    @property
    def view(self) -> View:
        """What is shown of it."""
        shown: View = ConsumerView.of(
            self.checkpoint, lag=self.lag, lag_ms=self.lag_ms, dead=self.dead
        )
        return shown


def consumer_places(checkpoints: Sequence[Checkpoint]) -> Operation[list[ConsumerPlace]]:
    """Return how far behind consumers are, and what they gave up; two calls for each."""
    lags = yield from sound(lag_at(one.stream, one.next_offset) for one in checkpoints)
    letters = [letters_stream(one.stream, one.consumer) for one in checkpoints]
    # A consumer that skips nothing may have a name that is too long for a stream of letters.
    names = [name for name in letters if len(name.encode()) <= MAX_NAME_BYTES]
    found = {one.name: one for one in (yield from some_streams(names))}
    return [
        ConsumerPlace(one, waiting.lag, waiting.lag_ms, found[name].length if name in found else 0)
        for one, waiting, name in zip(checkpoints, lags, letters, strict=True)
        if waiting is not None
    ]


ConsumerRedrivenView = mirror("ConsumerRedrivenView", ConsumerRedriven, first={"consumer": str})


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
