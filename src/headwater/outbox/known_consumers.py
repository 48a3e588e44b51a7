"""Consumers as an operator reaches them: by name, on the streams where they have a position.

SQLAlchemy is imported when one is reached, so that doors can be derived without it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeAlias

from headwater.errors import InvalidInput, UnknownConsumer
from headwater.kernel.declaring import Param, Scope, operation
from headwater.kernel.inputs import MAX_EXACT
from headwater.log.handles import Position
from headwater.outbox.consumer_letters import ConsumerLetter
from headwater.store.letters import FittingLetters, ListedBytes, ListedLetters

if TYPE_CHECKING:
    from sqlalchemy import Engine

    from headwater.client import Headwater
    from headwater.outbox.consumer_loop import Consumer
    from headwater.outbox.outbox import Outbox

_OneStream: TypeAlias = Annotated[str | None, Param("One of its streams only.", metavar="STREAM")]
_UpTo: TypeAlias = Annotated[
    int | None,
    Param(
        "Only letters up to this offset of STREAM.CONSUMER.sql-dead.",
        least=1,
        most=MAX_EXACT,
        metavar="OFFSET",
    ),
]
_NO_DATABASE: Final = {
    "RESP": "positions of consumers are in a database, which a Redis client does not reach"
}


def _nothing_similar(_name: str, _names: Iterable[str]) -> str | None:
    return None


class KnownConsumer:
    """A consumer that has a position, on all its streams; it cannot be run here.

    ``similar`` finds what was most likely meant. Raises UnknownConsumer.
    """

    def __init__(
        self,
        outbox: Outbox[Engine],
        hw: Headwater,
        name: str,
        similar: Callable[[str, Iterable[str]], str | None] = _nothing_similar,
    ) -> None:
        there = outbox.status().checkpoints
        self.streams = [one.stream for one in there if one.consumer == name]
        if not self.streams:
            raise UnknownConsumer(name, similar(name, {one.consumer for one in there}))
        self.name = name
        self._outbox = outbox
        self._hw = hw
        self._similar = similar

    def positions(self, stream: str | None = None) -> dict[str, int | None]:
        """Return the offset needed next of each stream."""
        return self._on(stream).positions()

    @operation(
        Scope.ADMIN,
        "next",
        says="{consumer} continues at {next}",
        override=("command line",),
        absent=_NO_DATABASE,
    )
    def seek(self, to: Position, *, stream: _OneStream = None) -> dict[str, int]:
        """Set where a consumer continues, on each of its streams or on one; processes follow.

        What it has committed stays. An offset is of one stream.
        """
        consumer = self._on(stream)
        if isinstance(to, int):
            _check_one(consumer.streams)
        return {place: self._seek(consumer, to, place) for place in consumer.streams}

    def _seek(self, consumer: Consumer, to: Any, stream: str) -> int:
        offset = consumer.seek(to, stream=stream)
        assert isinstance(offset, int), "of a stream, as no topic was named"
        return offset

    @operation(Scope.READ, http="GET dead", override=("HTTP",), absent=_NO_DATABASE)
    def dead(
        self,
        count: ListedLetters = 100,
        *,
        matching: FittingLetters = None,
        stream: _OneStream = None,
        max_bytes: ListedBytes = None,
    ) -> list[ConsumerLetter]:
        """Show the oldest dead letters of a consumer: the messages that it gave up."""
        return self._on(stream).dead(count, matching=matching, max_bytes=max_bytes)

    @operation(
        Scope.ADMIN,
        "discarded",
        says="discarded {discarded}",
        asks="Discard dead letters of {consumer}, for good?",
        absent=_NO_DATABASE,
    )
    def discard(self, *, stream: _OneStream = None, up_to: _UpTo = None) -> int:
        """Drop dead letters of a consumer for good, with what the database notes of them."""
        consumer = self._on(stream)
        if up_to is not None:
            _check_one(consumer.streams)
        return consumer.discard(up_to)

    @operation(Scope.ADMIN, "streams", says="forgot {consumer} on {streams}", absent=_NO_DATABASE)
    def forget(self, *, stream: _OneStream = None) -> list[str]:
        """Stop retention from waiting for a consumer until it runs again; its position is kept."""
        consumer = self._on(stream)
        for place in consumer.streams:
            self._hw.stream(place).forget_reader(f"consumer:{self.name}")
        return list(consumer.streams)

    @operation(
        Scope.ADMIN,
        "streams",
        says="removed {consumer} of {streams}",
        http="DELETE",
        absent=_NO_DATABASE,
    )
    def remove(self, *, stream: _OneStream = None) -> list[str]:
        """Remove the position of a consumer: retention no longer waits, and it starts again."""
        consumer = self._on(stream)
        consumer.remove()
        return list(consumer.streams)

    def _on(self, stream: str | None) -> Consumer:
        """Return the consumer on all its streams or on one; raises InvalidInput for another."""
        from headwater.outbox.consumer_loop import Consumer

        if stream is not None and stream not in self.streams:
            meant = self._similar(stream, self.streams)
            cure = f"did you mean {meant!r}?" if meant else f"it has one on {_named(self.streams)}"
            raise InvalidInput(f"consumer {self.name!r} has no position on {stream!r}; {cure}")
        streams = self.streams if stream is None else [stream]
        return Consumer(self.name, streams, self._outbox, self._hw, _handle_nothing)


def _check_one(streams: Sequence[str]) -> None:
    if len(streams) > 1:
        raise InvalidInput(f"an offset is of one stream; name one of {_named(streams)}")


def _named(streams: Sequence[str]) -> str:
    return ", ".join(streams)


def _handle_nothing(_conn: Any, _messages: Any) -> None:
    """Stand for the handler of a consumer that is not run here."""
