"""What Consumer and AsyncConsumer share, on a stream and on a topic; without I/O."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from functools import reduce
from operator import add
from typing import Generic, TypeVar

from headwater.errors import HeadwaterError, InvalidInput
from headwater.kernel.failures import LetterFilter
from headwater.kernel.handlers import check_takes
from headwater.log.aio_topic import AsyncTopic
from headwater.log.handles import StreamHandle, check_start
from headwater.log.keys import check_count, check_offset
from headwater.log.reading import complete
from headwater.log.topic import Topic
from headwater.log.topics import (
    TURN_MS,
    TopicHandle,
    TopicStart,
    await_news,
    check_partition,
    partition_of,
)
from headwater.outbox.consumer_letters import ConsumerLetter, ConsumerRedriven, oldest
from headwater.outbox.consuming import (
    DOUBT_S,
    REPORT_S,
    WAIT_MS,
    ConsumerSource,
    DatabaseOutage,
    Turn,
    is_passing,
)
from headwater.outbox.plan import (
    Ask,
    ConsumerPlan,
    ConsumerStats,
    Pause,
    Streams,
    Work,
    coders_of,
    for_each,
    names_of,
    one_of,
    streams_of,
)
from headwater.outbox.redriving import discard, not_one_stream, redrive
from headwater.store.call import Operation, Token
from headwater.store.presence import ReportedPart

# ── Topic consuming ───────────────────────────────────────────────────────────────────────────────
# What a consumer does on a topic, without I/O: a turn for each partition, one after the other.
#
# Each partition has its own position, history and dead letters, as a stream has. Processes of one
# name share the partitions batch by batch: each begins with another one, and whoever finds that a
# position has moved meanwhile continues with the next partition.


log = logging.getLogger("headwater.outbox")

R = TypeVar("R")
T = TypeVar("T")


def _token() -> Operation[str]:
    text: str = yield Token()
    return text


def _complete(key: str) -> Operation[None]:
    """Complete a write that stopped half-way: it wakes consumers who then find nothing."""
    yield complete(key)


class TopicTurn:
    """One consumer on all partitions of a topic.

    ``_ready`` are the partitions that may have something to apply, ``_woken`` the streams whose
    news ended the last wait, and ``_first`` is the partition that the next round begins with.
    """

    def __init__(self, plan: ConsumerPlan, topic: TopicHandle, *, one_server: bool) -> None:
        self.topic = topic
        self._plan = plan
        self._one_server = one_server
        self._turns: list[Turn] = []
        self._ready: set[int] = set()
        self._woken: list[str] = []
        self._first = 0

    @property
    def stats(self) -> ConsumerStats:
        """What was done in all partitions."""
        return reduce(add, [turn.stats for turn in self._turns], ConsumerStats())

    def run(self) -> Work[None]:
        """Apply what comes, wait for more, and retry after an outage, until asked to stop."""
        who = f"consumer {self._plan.name!r} of topic {self.topic.name!r}"
        outage = DatabaseOutage(who, log, self._plan.database, self._plan.time.monotonic)
        self._ready.update(range(len(self._turns)))
        while not (yield Pause(0)):
            try:
                yield from self._open()
                yield from self._run_round()
                outage.over()
            except Exception as error:
                if not is_passing(error):
                    yield from self._report()
                    raise
                yield Pause(outage.meet(error))
        yield from self._report()

    def each(self, act: Callable[[Turn], Work[R]], partition: int | None = None) -> Work[list[R]]:
        """Do something in one partition after the other, or in one of them."""
        yield from self._open()
        if partition is not None:
            check_partition(partition, len(self._turns))
        done: dict[int, R] = {}
        for place, turn in enumerate(self._turns):
            if partition in (None, place):
                done[place] = yield from self._in_partition(place, act(turn), done)
        return list(done.values())

    def seek(self, position: TopicStart) -> Work[dict[int, int]]:
        """Set the position in all partitions, or in those that are named; returns where."""
        yield from self._open()
        if isinstance(position, Mapping):
            positions = dict(position)
        else:
            positions = dict.fromkeys(range(len(self._turns)), position)
        for place, start in positions.items():
            check_partition(place, len(self._turns))
            check_start(start)
        done: dict[int, int] = {}
        for place, start in sorted(positions.items()):
            work = self._turns[place].seek(start)
            done[place] = yield from self._in_partition(place, work, done)
        return done

    def _open(self) -> Work[None]:
        if not self._turns:
            streams = yield Ask(self.topic.open())
            # Not the same one in every process of this name.
            self._first = partition_of((yield Ask(_token())), len(streams))
            self._turns = [
                Turn(self._plan, ConsumerSource(self._plan, stream, self.topic, place))
                for place, stream in enumerate(streams)
            ]
            self._ready.update(range(len(streams)))

    def _in_partition(self, place: int, work: Work[R], done: Mapping[int, object]) -> Work[R]:
        try:
            return (yield from work)
        except HeadwaterError as error:
            error.partition, error.partitions_done = place, done
            raise

    # ── While it runs ────────────────────────────────────────────────────────────────────────

    def _run_round(self) -> Work[None]:
        """Give each partition that is ready its turn; wait for more when none had anything."""
        count = len(self._turns)
        handled = False
        for place in [(self._first + step) % count for step in range(count)]:
            if place not in self._ready:
                continue
            turn = self._turns[place]
            if (yield from self._in_partition(place, turn.run_beside(), {})) is not None:
                handled = True
            else:
                self._ready.discard(place)
                if turn.stream.name in self._woken:
                    yield Ask(_complete(turn.stream.key))
            if (yield Pause(0)):
                return
        self._first = (self._first + 1) % count
        yield from self._report(REPORT_S)
        if not handled:
            yield from self._wait()

    def _wait(self) -> Work[None]:
        """Wait until a partition has more or a failure may be retried, half a second at most."""
        now = self._plan.time.monotonic()
        wait_ms = float(WAIT_MS if self._one_server else TURN_MS)
        news = []
        for turn in (*self._turns[self._first :], *self._turns[: self._first]):
            if turn.retry_at is not None:
                wait_ms = min(wait_ms, (turn.retry_at - now) * 1000)
            elif turn.position.next is not None:
                news.append((turn.stream, turn.position.next - 1))
        if not self._one_server:
            # Streams in different slots cannot be waited for together: take turns.
            news = news[:1]
        self._woken = []
        if news:
            self._woken = yield Ask(await_news(news, max(1, int(wait_ms))))
        else:
            yield Pause(max(0.001, wait_ms / 1000))
        now = self._plan.time.monotonic()
        for place, turn in enumerate(self._turns):
            turn.position.doubt(DOUBT_S)
            due = turn.retry_at is not None and turn.retry_at <= now
            if due or turn.position.next is None or turn.stream.name in self._woken:
                self._ready.add(place)

    def _report(self, every_s: float = 0.0) -> Work[None]:
        for turn in self._turns:
            yield from turn.position.report(every_s)


# ── Consumer shell ────────────────────────────────────────────────────────────────────────────────


H = TypeVar("H")


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

    def _each(self, act: Callable[[Turn], Work[T]]) -> Work[list[T]]:
        """Do something on all streams, and in all partitions of topics."""
        done: list[T] = []
        for turn in self._turns.values():
            done += yield from turn.each(act)
        return done

    def _dead(
        self, count: int, matching: LetterFilter | None, max_bytes: int | None
    ) -> Work[list[ConsumerLetter]]:
        """Return the oldest dead letters of all streams, no more once they have ``max_bytes``."""
        check_count(count)
        letters: list[ConsumerLetter] = []

        def keep_oldest(turn: Turn) -> Work[None]:
            nonlocal letters
            found = yield from turn.dead(count, matching, max_bytes)
            letters = oldest(letters + found, count, max_bytes)

        yield from self._each(keep_oldest)
        return letters

    def _redrive(self) -> Work[ConsumerRedriven]:
        """Handle the dead letters of all streams again."""
        done = yield from self._each(redrive)
        return ConsumerRedriven(sum(one.handled for one in done), sum(one.failed for one in done))

    def _discard(self, up_to: int | None, stream: str | None) -> Work[int]:
        """Drop the dead letters of all streams, or of one."""
        if up_to is None and stream is None:
            return sum((yield from self._each(discard)))
        if up_to is not None:
            check_offset(up_to, "up_to")
        if stream is None and len(self._turns) > 1:
            raise not_one_stream(", ".join(self.streams))
        turn, partition = self._named(stream)
        if up_to is not None and partition is None and isinstance(turn, TopicTurn):
            raise not_one_stream(f"{turn.topic.name}/0")
        return sum((yield from turn.each(lambda each: discard(each, up_to), partition)))

    @property
    def stats(self) -> ConsumerStats:
        """What was done since the consumer was made."""
        return reduce(add, [turn.stats for turn in self._turns.values()], ConsumerStats())

    def _report(self) -> ReportedPart:
        """Return what is told of this consumer to those who watch the store."""
        where, stats = ", ".join(self.streams)[:200], self.stats
        return ReportedPart(self.name, "consumer", where, "running", stats.handled, stats.dead)
