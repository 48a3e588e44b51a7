"""What Consumer and AsyncConsumer share: all that does not wait for a store or a database."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import reduce
from operator import add
from typing import Generic, TypeVar

from headwater.errors import InvalidInput
from headwater.kernel.handlers import check_takes
from headwater.kernel.headers import check_max_bytes
from headwater.log.aio_topic import AsyncTopic
from headwater.log.handles import StreamHandle
from headwater.log.keys import check_offset
from headwater.log.topic import Topic
from headwater.log.topics import TopicHandle, TopicStart
from headwater.outbox.consumer_letters import ConsumerLetter, ConsumerRedriven, oldest
from headwater.outbox.consumer_source import ConsumerSource
from headwater.outbox.consuming import Turn
from headwater.outbox.discarding import discard, refuse_up_to
from headwater.outbox.plan import (
    ConsumerPlan,
    ConsumerStats,
    Streams,
    coders_of,
    for_each,
    names_of,
    one_of,
    streams_of,
)
from headwater.outbox.redriving import redrive
from headwater.outbox.requests import Work
from headwater.outbox.topic_consuming import TopicTurn
from headwater.store.presence import ReportedPart

H = TypeVar("H")
R = TypeVar("R")


class ConsumerShell(Generic[H, R]):
    """A consumer without its I/O: its names, its functions, and what it does on each stream."""

    def __init__(
        self,
        plan: ConsumerPlan,
        stream: Streams,
        handler: H | Mapping[str, H],
        on_reset: R | Mapping[str, R] | None,
        steps: Callable[[str], None] | None,
        *,
        one_server: bool,
    ) -> None:
        self.name = plan.name
        given = streams_of(stream)
        self.streams = names_of(given)
        self._handlers = for_each(self.streams, handler, "handler")
        for each in self._handlers.values():
            check_takes(each, "connection", "messages")
        self._resetters = for_each(self.streams, on_reset, "on_reset") if on_reset else {}
        self._steps = steps
        self._patience_s: float | None = None
        known: set[str] = set()
        coders = coders_of(given)
        self._turns: dict[str, Turn | TopicTurn] = {}
        for name, one in zip(self.streams, given, strict=True):
            coder = coders.get(name)
            if isinstance(one, Topic | AsyncTopic):
                topic = TopicHandle(name, one.wanted, known, coder)
                self._turns[name] = TopicTurn(plan, topic, one_server=one_server)
            else:
                source = ConsumerSource(plan, StreamHandle(name, known, coder))
                self._turns[name] = Turn(plan, source)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r} of {', '.join(self.streams)})"

    def _seek(self, position: TopicStart, stream: str | None) -> Work[int | dict[int, int]]:
        """Set a position: of a stream, of a topic, or of one of its partitions."""
        turn, partition = self._named(stream)
        if isinstance(turn, TopicTurn) and partition is None:
            return (yield from turn.seek(position))
        if isinstance(position, Mapping):
            raise InvalidInput("positions by partition are for a whole topic; give one position")
        if isinstance(turn, TopicTurn):
            assert partition is not None
            return (yield from turn.seek({partition: position}))[partition]
        return (yield from turn.seek(position))

    def _named(self, stream: str | None) -> tuple[Turn | TopicTurn, int | None]:
        """Return the stream or topic that is meant, and which partition; None for all of them."""
        topic, _, place = (stream or "").rpartition("/")
        turn = self._turns.get(topic)
        if isinstance(turn, TopicTurn) and stream not in self._turns and place.isdecimal():
            return turn, int(place)
        return self._turns[one_of(self.streams, stream)], None

    def _dead(self, count: int, max_bytes: int | None) -> Work[list[ConsumerLetter]]:
        """Return the oldest dead letters of all streams, no more once they have ``max_bytes``."""
        check_max_bytes(max_bytes)
        found: list[ConsumerLetter] = []
        for turn in self._turns.values():
            found = oldest(found + (yield from turn.dead(count, max_bytes)), count, max_bytes)
        return found

    def _redrive(self) -> Work[ConsumerRedriven]:
        """Handle the dead letters of all streams again."""
        handled = failed = 0
        for turn in self._turns.values():
            within = turn.redrive() if isinstance(turn, TopicTurn) else redrive(turn)
            done = yield from within
            handled, failed = handled + done.handled, failed + done.failed
        return ConsumerRedriven(handled, failed)

    def _discard(self, up_to: int | None, stream: str | None) -> Work[int]:
        """Drop the dead letters of all streams, or of one."""
        if up_to is not None:
            check_offset(up_to, "up_to")
        if stream is None and len(self._turns) > 1:
            refuse_up_to(up_to, ", ".join(self.streams))
            named: list[tuple[Turn | TopicTurn, int | None]]
            named = [(turn, None) for turn in self._turns.values()]
        else:
            named = [self._named(stream)]
        discarded = 0
        for turn, partition in named:
            if isinstance(turn, TopicTurn):
                discarded += yield from turn.discard(partition, up_to)
            else:
                discarded += yield from discard(turn, up_to)
        return discarded

    @property
    def stats(self) -> ConsumerStats:
        """What was done since the consumer was made."""
        return reduce(add, [turn.stats for turn in self._turns.values()], ConsumerStats())

    def _report(self) -> ReportedPart:
        """Return what is told of this consumer to those who watch the store."""
        where, stats = ", ".join(self.streams)[:200], self.stats
        return ReportedPart(self.name, "consumer", where, "running", stats.handled, stats.dead)
