"""One sample of a store for all requests, and what follows from samples: lags, rates, forecasts.

Objects are asked for many in one call, with pauses in between, so that a store of many objects
serves others meanwhile, and so does this process. A request gets the newest sample, and waits only
for the first one, which is made without pauses. A store without requests is not sampled.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
from bisect import bisect_left
from collections.abc import Awaitable, Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final, NamedTuple, TypeVar

import redis

from headwater.aio_client import AsyncHeadwater
from headwater.errors import HeadwaterError, StoreError
from headwater.ick.types import ChannelStats
from headwater.log.keys import stream_key
from headwater.log.replies import rows
from headwater.log.retention import RetentionPreview, preview
from headwater.log.types import GroupInfo, Retention, StreamInfo
from headwater.queue.types import QueueStats
from headwater.spark.queries.status import QueryStatus, query_statuses
from headwater.store.call import Operation
from headwater.store.doctor import explained
from headwater.views import overview
from headwater.views.overview import StreamGroup

# For a sealed message, the store knows only the time of the newest message in its node. A process
# that samples the stream has seen when each offset was reached, so it knows better, as far back as
# it has sampled.
# As many moments are remembered of a stream; when there are more, they are thinned out, so that one
# of some age is known to a 25th of that.
_MOMENTS: Final = 300
_CLOSE: Final = 25


class LagClock:
    """Remembers when streams had reached which offset."""

    def __init__(self) -> None:
        self._seen: dict[str, tuple[list[int], list[int]]] = {}

    def measured(
        self, now_ms: int, streams: list[StreamInfo], groups: list[StreamGroup]
    ) -> tuple[list[StreamInfo], list[StreamGroup]]:
        """Note where streams are; return them and groups with how long messages have waited."""
        read = {row.stream for row in groups}
        self._seen = {
            one.name: self._noted(now_ms, one) for one in streams if one.readers or one.name in read
        }
        measured = [self._of_readers(now_ms, one) if one.readers else one for one in streams]
        return measured, [row._replace(group=self._of_group(row)) for row in groups]

    def _noted(self, now_ms: int, info: StreamInfo) -> tuple[list[int], list[int]]:
        lasts, times = self._seen.get(info.name, ([], []))
        if lasts and info.last < lasts[-1]:
            lasts, times = [], []  # it was deleted, and begins again
        if not lasts or info.last > lasts[-1]:
            lasts.append(info.last)
            times.append(now_ms)
        if len(lasts) > _MOMENTS:
            lasts, times = _thinned(now_ms, lasts, times)
        return lasts, times

    def _of_readers(self, now_ms: int, info: StreamInfo) -> StreamInfo:
        ages = {
            reader: self._age_ms(now_ms, info, reader, said_ms)
            for reader, said_ms in info.reader_lag_ms.items()
        }
        return replace(info, reader_lag_ms=ages)

    def _age_ms(self, now_ms: int, info: StreamInfo, reader: str, said_ms: int) -> int:
        needed = max(info.readers[reader], info.first)
        if needed > info.last:
            return 0
        since_ms = self._since(info.name, needed, now_ms - said_ms)
        return said_ms if since_ms is None else max(now_ms - since_ms, said_ms)

    def _of_group(self, row: StreamGroup) -> GroupInfo:
        facts = row.group
        new = self._since(row.stream, facts.next, facts.new_since_ms)
        pending = self._since(row.stream, facts.ack_offset, facts.pending_since_ms)
        if (new, pending) == (facts.new_since_ms, facts.pending_since_ms):
            return facts
        return replace(facts, new_since_ms=new, pending_since_ms=pending)

    def _since(self, stream: str, offset: int, said_ms: int | None) -> int | None:
        """Return since when an offset waits; None when the store says that it does not."""
        seen = self._seen.get(stream)
        if said_ms is None or seen is None:
            return said_ms
        lasts, times = seen
        place = bisect_left(lasts, offset)
        return min(said_ms, times[place]) if place < len(times) else said_ms


def _thinned(now_ms: int, lasts: list[int], times: list[int]) -> tuple[list[int], list[int]]:
    kept_ms = -float("inf")
    places = []
    for place, time_ms in enumerate(times):
        if time_ms - kept_ms >= (now_ms - time_ms) / _CLOSE:
            places.append(place)
            kept_ms = time_ms
    # However long a process runs, the oldest go.
    places = places[-_MOMENTS + 50 :]
    return [lasts[place] for place in places], [times[place] for place in places]


log = logging.getLogger("headwater.metrics")

T = TypeVar("T")
# So many different answers are remembered.
_MOST_ANSWERS: Final = 64


class SharedAnswers:
    """SharedAnswers of a store that serve everybody who asks the same for a while."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._known: dict[Any, tuple[float, Any]] = {}

    async def get(self, asked: Any, fresh_s: float, ask: Callable[[], Awaitable[T]]) -> T:
        """Return the answer to what is asked, which is at most so old; asks where there is none."""
        if (found := self._known.get(asked)) is None or self._clock() - found[0] > fresh_s:
            found = (self._clock(), await ask())
            self._known.pop(asked, None)
            self._known[asked] = found
            while len(self._known) > _MOST_ANSWERS:
                del self._known[next(iter(self._known))]
        answer: T = found[1]
        return answer


# The store is sampled in the background as long as there was a request within this time.
ASKED_S: Final = 120.0
# How many objects are asked for in a call; behind it is a pause, of at least so long, and so many
# times as long as the call took.
_SLICE: Final = 100
_GAP_S: Final = 0.25
_PAUSE: Final = 5.0
# While a request waits: this many calls in parallel, to decode some while others arrive.
_SIDE_BY_SIDE: Final = 4
# Names, channels, which cost a call for each shard on a cluster, and queries of Spark, which cost
# some for each stream, are asked for so often.
_SELDOM_S: Final = 10.0
# A store that has not answered by then is down, although its client still tries.
_PATIENCE_S: Final = 5.0
# What was seen longer ago says nothing of now.
_RECENT_S: Final = 30.0
_FSYNC_MODES: Final = ("off", "no", "everysec", "always")


@dataclass(slots=True)
class StoreSample:
    """Where every object of a store stood at about one moment, by its clock.

    ``missing`` is what kept it from being complete: an error of the store, or None. ``at`` is the
    time of this process at which it was complete, ``took_s`` how long that took.
    """

    now_ms: int = 0
    streams: list[StreamInfo] = field(default_factory=list)
    groups: list[overview.StreamGroup] = field(default_factory=list)
    queues: list[QueueStats] = field(default_factory=list)
    channels: list[ChannelStats] = field(default_factory=list)
    queries: list[QueryStatus] = field(default_factory=list)
    missing: Exception | None = None
    at: float = -float("inf")
    took_s: float = 0.0


class StoreWatch:
    """Samples a store while somebody asks for it, as often as whoever asks most often wants."""

    def __init__(self, hw: AsyncHeadwater, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.hw = hw
        self.clock = clock
        self._newest = StoreSample()
        self._good = StoreSample()
        self._followers: list[Callable[[StoreSample], Awaitable[None]]] = []
        self._lag_clock = LagClock()
        self._asked: dict[float, float] = {}
        self._sampling: asyncio.Task[None] | None = None
        self._sampled = asyncio.Event()
        self._seldom = SharedAnswers(clock)

    async def newest(self, every_s: float) -> StoreSample:
        """Return the newest sample, whole or not; it is refreshed this often from now on."""
        self.ask(every_s)
        await self._sampled.wait()
        return self._newest

    def ask(self, every_s: float) -> None:
        """Have the sample refreshed this often from now on, without waiting for it."""
        now = self.clock()
        self._asked[every_s] = now
        if now - self._newest.at > every_s and self._sampling is None:
            self._sampling = asyncio.create_task(self._renew())
            self._sampling.add_done_callback(self._over)

    async def whole(self, every_s: float) -> StoreSample:
        """Return the newest sample that is complete; raises the error for which there is none."""
        found = await self.newest(every_s)
        if self._good.missing is None and self._good.at > -float("inf"):
            return self._good
        if isinstance(found.missing, HeadwaterError):
            raise found.missing
        raise TimeoutError(f"{self.hw.store.where} does not answer")

    @property
    def latest(self) -> StoreSample:
        """The newest sample that was complete, without asking for another; empty before one."""
        return self._good

    @property
    def missing(self) -> str | None:
        """Why the store did not answer when it was sampled just now; None when it did."""
        error = self._newest.missing
        if error is None or self.clock() - self._newest.at > _RECENT_S:
            return None
        return str(error) or f"no answer within {_PATIENCE_S:.0f} s"

    def follow(self, use: Callable[[StoreSample], Awaitable[None]]) -> None:
        """Have each new sample given to a function, before it is given to those who ask."""
        self._followers.append(use)

    async def close(self) -> None:
        """Stop sampling."""
        if self._sampling is not None:
            self._sampling.cancel()
            await asyncio.wait([self._sampling])

    def _over(self, task: asyncio.Task[None]) -> None:
        self._sampling = None
        # No request waits for a sample that does not come; the next request starts again.
        self._sampled.set()
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("%s could not be sampled", self.hw.store.where, exc_info=error)

    async def _renew(self) -> None:
        """Sample, and again as long as somebody asks."""
        while True:
            await self.sample_now(gently=self._sampled.is_set())
            now = self.clock()
            self._asked = {s: at for s, at in self._asked.items() if now - at <= ASKED_S}
            if not self._asked:
                return
            every_s = min(self._asked)
            await asyncio.sleep(max(every_s - self._newest.took_s, min(every_s, _GAP_S)))

    async def sample_now(self, *, gently: bool = False) -> StoreSample:
        """Sample the store, without pauses unless ``gently``; returns the sample, whole or not."""
        began = self.clock()
        sample = StoreSample()
        try:
            await self._look_at_objects(sample, gently=gently)
        except (HeadwaterError, TimeoutError) as error:
            why = str(error) or "the store is too slow"
            log.warning("the sample of %s is incomplete: %s", self.hw.store.where, why)
            sample.missing = error
        sample.at = self.clock()
        sample.took_s = sample.at - began
        self._newest = sample
        if sample.missing is None:
            self._good = sample
        for use in self._followers:
            await use(sample)
        self._sampled.set()
        return sample

    async def _look_at_objects(self, sample: StoreSample, *, gently: bool) -> None:
        # Names may be some seconds old: who asks once in a while gets them as they are.
        fresh_s = min(_SELDOM_S, 10 * min(self._asked, default=_SELDOM_S)) if gently else -1.0
        streams, queues = await self._seldom.get("names", fresh_s, self._names)
        at_once = 1 if gently else _SIDE_BY_SIDE
        for pairs in _sliced(_paired(streams, queues), at_once):
            asked = [self._ask(self._look(*pair), gently=gently) for pair in pairs]
            for found in await asyncio.gather(*asked):
                sample.streams += found.streams
                sample.groups += found.groups
                sample.queues += found.queues
                sample.now_ms = found.now_ms
        sample.channels = await self._seldom.get(
            "channels",
            fresh_s,
            lambda: self._ask(overview.all_channels(apart=self._is_apart), gently=gently),
        )
        sample.queries = await self._seldom.get(
            "queries", fresh_s, lambda: self._ask(query_statuses(), gently=gently)
        )
        # Where objects are apart, or there is none, no reply says what time it is.
        sample.now_ms = sample.now_ms or await self._now_ms()
        sample.streams, sample.groups = self._lag_clock.measured(
            sample.now_ms, sample.streams, sample.groups
        )

    def _look(self, streams: list[str], queues: list[str]) -> Operation[overview.StoreLook]:
        look = overview.look_apart if self._is_apart else overview.look_together
        return look(streams, queues)

    async def _names(self) -> tuple[list[str], list[str]]:
        async with asyncio.timeout(_PATIENCE_S):
            return await self.hw.streams(), await self.hw.queues()

    @property
    def _is_apart(self) -> bool:
        """Whether objects may be on different servers, so that no call is about two of them."""
        return self.hw.store.kind == "cluster"

    async def _ask(self, operation: Operation[T], *, gently: bool) -> T:
        """Ask for some objects, and then let the store serve others."""
        began = self.clock()
        async with asyncio.timeout(_PATIENCE_S):
            found = await self.hw.store.run(operation)
        if gently:
            await asyncio.sleep(max(_PAUSE * (self.clock() - began), _GAP_S))
        return found

    async def command(self, *words: str) -> list[Any]:
        """Run a command on every server of the store; raises StoreError."""
        try:
            async with asyncio.timeout(_PATIENCE_S):
                return await self.hw.store.command(*words)
        except (redis.RedisError, OSError) as error:
            raise explained(error, self.hw.store.where) from error

    async def fsync_mode(self) -> str | None:
        """Return how often the store syncs; of several servers, the weakest; None if not known."""
        try:
            replies = await self.command("CONFIG", "GET", "appendonly", "appendfsync")
        except (StoreError, TimeoutError):
            return None  # a managed server does not show it, and a slow one not in time
        settings = [dict(rows(reply, 2)) for reply in replies]
        modes = {
            one[b"appendfsync"].decode() if one[b"appendonly"] == b"yes" else "off"
            for one in settings
            if len(one) == 2
        }
        return next((mode for mode in _FSYNC_MODES if mode in modes), None)

    async def _now_ms(self) -> int:
        seconds, microseconds = (await self.command("TIME"))[0]
        return int(seconds) * 1000 + int(microseconds) // 1000


def _paired(streams: list[str], queues: list[str]) -> Iterator[tuple[list[str], list[str]]]:
    """Yield names for one call after the other: queues go with streams as long as there are."""
    empty: list[str] = []
    parts = (_sliced(streams, _SLICE), _sliced(queues, _SLICE))
    return itertools.zip_longest(*parts, fillvalue=empty)


def _sliced(items: Iterable[T], size: int) -> Iterator[list[T]]:
    rest = iter(items)
    while some := list(itertools.islice(rest, size)):
        yield some


# A rate is the mean since one of the last two marks, which are this far apart at least.
_MARK_MS: Final = 5000
# A sample is looked at for this long, and a large store is sampled less often.
_OLD_S: Final = 10.0
_LEAST_RATE_MS: Final = 500


class _Ends(NamedTuple):
    """Where streams ended at a moment."""

    at_ms: int
    lasts: dict[str, int]


class StreamRates:
    """Rates of the last five to ten seconds; asking for one costs the store nothing."""

    def __init__(self, watch: StoreWatch) -> None:
        self._watch = watch
        self._marks: list[_Ends] = []
        self._newest = _Ends(0, {})
        watch.follow(self._note)

    def of(self, stream: str) -> float | None:
        """Return the rate of a stream; None if it is not known, or no longer.

        The store is sampled every five seconds at least from now on; nobody waits for that.
        """
        self._watch.ask(_MARK_MS / 1000)
        sample, newest = self._watch.latest, self._newest
        if self._watch.clock() - sample.at > _OLD_S + 2 * sample.took_s:
            return None
        last = newest.lasts.get(stream)
        for mark in self._marks:
            before = mark.lasts.get(stream)
            span_ms = newest.at_ms - mark.at_ms
            if last is not None and before is not None and span_ms >= _LEAST_RATE_MS:
                # A stream may have been deleted and begun again.
                return max(last - before, 0) * 1000 / span_ms
        return None

    async def _note(self, sample: StoreSample) -> None:
        if sample.missing is not None:
            return
        mark = _Ends(sample.now_ms, {stream.name: stream.last for stream in sample.streams})
        # Nobody asked for a while: a mean of all that time would not be a rate of now.
        if mark.at_ms - self._newest.at_ms > 1000 * _OLD_S + 3000 * sample.took_s:
            self._marks.clear()
        self._newest = mark
        if not self._marks or mark.at_ms - self._marks[-1].at_ms >= _MARK_MS:
            self._marks = [*self._marks[-1:], mark]


# Rates are those of the last one to two minutes, and of no less than ten seconds.
_SPAN_MS: Final = 60_000
_LEAST_TRACK_MS: Final = 10_000


class _Mark(NamedTuple):
    """Where somebody was at some time, and where the stream ended then."""

    at_ms: int
    next: int
    end: int


class _Track(NamedTuple):
    """Two marks of somebody, a minute apart, and where it is now."""

    old: _Mark
    mid: _Mark
    now: _Mark


class CatchingUp:
    """Remembers where groups and readers that are behind were; three marks of each."""

    def __init__(self) -> None:
        self._tracks: dict[tuple[str, ...], _Track] = {}

    def note(self, sample: StoreSample) -> None:
        """Take in a sample; who is not behind any more is forgotten."""
        tracks = {}
        for who, now in _behind(sample):
            before = self._tracks.get(who)
            if before is None or now.next < before.now.next:  # it was set back by a seek
                tracks[who] = _Track(now, now, now)
            elif now.at_ms - before.mid.at_ms >= _SPAN_MS:
                tracks[who] = _Track(before.mid, now, now)
            else:
                tracks[who] = before._replace(now=now)
        self._tracks = tracks

    def words(self, who: tuple[str, ...], lag: int) -> str:
        """Say when somebody is level at its rate; nothing if that is not known yet."""
        track = self._tracks.get(who)
        took_ms = 0 if track is None else track.now.at_ms - track.old.at_ms
        if track is None or took_ms < _LEAST_TRACK_MS:
            return ""
        done = (track.now.next - track.old.next) * 1000 / took_ms
        new = (track.now.end - track.old.end) * 1000 / took_ms
        if not done:
            return f"no progress for {took_ms // 1000:,} s" if took_ms >= _SPAN_MS else ""
        if done <= new:
            return (
                f"it never catches up at this rate: {done:,.1f} a second of {new:,.1f} that arrive"
            )
        return f"level in about {_span(lag / (done - new))} at this rate"


def _behind(sample: StoreSample) -> Iterator[tuple[tuple[str, ...], _Mark]]:
    for stream, group in sample.groups:
        if group.lag:
            end = group.next + group.lag - 1
            yield ("group", stream, group.name), _Mark(sample.now_ms, group.next, end)
    for info in sample.streams:
        for reader, following in info.readers.items():
            if info.last >= following:
                yield ("reader", info.name, reader), _Mark(sample.now_ms, following, info.last)


def _span(seconds: float) -> str:
    for length, unit in ((86_400, "d"), (3600, "h"), (60, "min")):
        if seconds >= 2 * length:
            return f"{seconds / length:,.0f} {unit}"
    return f"{max(seconds, 1):.0f} s"


# An answer this young is given again.
_FRESH_S: Final = 5.0


class Passed(NamedTuple):
    """A group or reader that an eviction does not wait for, and how many offsets it would miss."""

    name: str
    missed: int


class RetentionForecast(NamedTuple):
    """What the policy would evict now.

    Of ``due`` offsets ``evicted`` go; the others wait for ``held_by``, which needs ``held_next``.
    ``more``: there may be more of them than one call counts.
    """

    due: int
    more: bool
    evicted: int
    held_by: str | None
    held_next: int | None
    passed: tuple[Passed, ...]


class RetentionForecasts:
    """Forecasts, each by one call of bounded cost, once in five seconds for any number of pages."""

    def __init__(self, hw: AsyncHeadwater, clock: Callable[[], float] = time.monotonic) -> None:
        self._hw = hw
        self._answers = SharedAnswers(clock)

    async def of(self, info: StreamInfo, groups: Iterable[GroupInfo]) -> RetentionForecast | None:
        """Return the forecast of a stream, of which these groups are known; None without limits."""
        if info.retention == Retention(max_idle_ms=info.retention.max_idle_ms):
            return None
        call = partial(preview, stream_key(info.name), info.retention, most_calls=1)
        asked = (info.name, info.retention, info.first)
        seen = await self._answers.get(asked, _FRESH_S, lambda: self._hw.store.run(call()))
        return forecast(info, seen, groups, int(time.time() * 1000))


def forecast(
    info: StreamInfo,
    seen: RetentionPreview,
    groups: Iterable[GroupInfo],
    now_ms: int,
    *,
    keep: Retention | None = None,
    force: bool = False,
) -> RetentionForecast:
    """Return what becomes of the messages that a preview has found to be due.

    ``keep`` is the policy, if it is not that of the stream. With ``force`` nobody is waited for.
    """
    most_idle_ms = (keep or info.retention).max_idle_ms

    def waits(idle_ms: int | None) -> bool:
        return not force and (most_idle_ms is None or idle_ms is None or idle_ms <= most_idle_ms)

    needs, ignored = dict[str, int](), dict[str, int]()
    for reader, offset in info.readers.items():
        (needs if waits(info.reader_idle_ms.get(reader)) else ignored)[reader] = offset
    for group in groups:
        held = not group.abandoned and waits(now_ms - group.seen_ms)
        (needs if held else ignored)[group.name] = group.ack_offset
    if info.slowest is not None and info.slowest_next is not None:
        # It is known as it is now, and groups only as they were a moment ago.
        needs.pop(info.slowest, None)
        ignored.pop(info.slowest, None)
        is_held = waits(info.slowest_idle_ms)
        (needs if is_held else ignored)[info.slowest] = info.slowest_next
    holder = min(needs, key=needs.__getitem__, default=None)
    held_next = None if holder is None or needs[holder] > seen.limit else needs[holder]
    end = seen.limit if held_next is None else max(held_next, seen.first) - 1
    return RetentionForecast(
        due=max(seen.limit - seen.first + 1, 0),
        more=seen.more,
        evicted=max(end - seen.first + 1, 0),
        held_by=None if held_next is None else holder,
        held_next=held_next,
        passed=tuple(
            Passed(name, end + 1 - max(offset, seen.first))
            for name, offset in sorted(ignored.items(), key=lambda one: one[1])
            if offset <= end
        ),
    )
