"""The history of a store, kept in the store in fixed space: how it is written and read.

Each series has three rings: 5 minutes by the second, an hour by ten seconds, a day by the minute.
A point is in its ring by its time, and says which time that is, so that points of the last turn
are not taken for new ones, and a point that is written twice is there once. Rates are those of
the whole step, everything else is the worst of it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import struct
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence
from typing import Any, Final, NamedTuple, TypeAlias

import msgspec

from headwater.aio_client import AsyncHeadwater
from headwater.errors import HeadwaterError
from headwater.kernel.inputs import check_int
from headwater.metrics.sweeps import SharedAnswers, StoreSample, StoreWatch
from headwater.store.call import Call, Operation
from headwater.views.streams import lag_of

KEY: Final = "hw:{history}"
# What a series is about: its kind, and the names of its object.
Series: TypeAlias = tuple[str, ...]
STORE: Final[Series] = ("store",)
OUTBOX: Final[Series] = ("outbox",)


class Point(NamedTuple):
    """What is noted of a series; of the store it is the sum of all, and the age of the oldest.

    ``lag`` counts messages, rows or members that nobody has taken yet, ``lag_s`` is the age of the
    oldest of them; ``pending`` was taken and is not done, ``oldest_s`` is the age of the oldest.
    """

    in_per_s: float = 0.0
    out_per_s: float = 0.0
    lag: float = 0.0
    lag_s: float = 0.0
    pending: float = 0.0
    oldest_s: float = 0.0

    @property
    def is_busy(self) -> bool:
        """Whether anything moves or waits."""
        return any(self)


class Resolution(NamedTuple):
    """How far apart points are, and how many there are."""

    step_s: int
    points: int

    @property
    def span_s(self) -> int:
        """How much time a ring covers."""
        return self.step_s * self.points


RESOLUTIONS: Final = {1: Resolution(1, 300), 10: Resolution(10, 360), 60: Resolution(60, 1440)}
_POINT: Final = struct.Struct("<I6f")
SERIES_BYTES: Final = sum(one.points for one in RESOLUTIONS.values()) * _POINT.size
# How long a writer holds the right to write; a writer that dies leaves a gap of this length.
HOLD_MS: Final = 5000
# Between two points that are not further apart, the older one is drawn on: a large store is
# sampled less often than every second.
_BRIDGED_S: Final = 60


class SpacedPoints(NamedTuple):
    """Points of some series at the same times, in seconds; None where nothing is known."""

    times: list[int]
    series: dict[Series, list[Point | None]]


class KeptHistory(NamedTuple):
    """What is kept: who writes it, how many bytes it takes, and when each series was last busy."""

    now_ms: int
    writer: str
    bytes: int
    series: dict[Series, int]


class NewPoint(NamedTuple):
    """A point that is to be written: of which series, how far apart, at which step."""

    series: Series
    step_s: int
    slot: int
    point: Point


def spelled(series: Series) -> str:
    """Return a series as it stands in keys."""
    return msgspec.json.encode(series).decode()


def _ring(series: Series, step_s: int) -> str:
    return f"{step_s}:{spelled(series)}"


def write_points(writer: str, points: Iterable[NewPoint], hold_ms: int) -> Operation[bool]:
    """Write points; returns False when somebody else writes the history at present."""
    words: list[str | bytes | int] = [writer, hold_ms]
    for one in points:
        place = one.slot % RESOLUTIONS[one.step_s].points * _POINT.size
        words += [_ring(one.series, one.step_s), place, _POINT.pack(one.slot, *one.point)]
    return bool((yield Call("hw_history_write", KEY, tuple(words), repeatable=True)))


def keep_series(busy: dict[Series, int], forgotten: Iterable[Series]) -> Operation[None]:
    """Note when series were last busy, new ones too, and forget others with all their points."""
    words: list[str | int] = [len(busy)]
    for series, busy_ms in busy.items():
        words += [spelled(series), busy_ms]
    words += map(spelled, forgotten)
    yield Call("hw_history_keep", KEY, tuple(words), repeatable=True)


def kept_history() -> Operation[KeptHistory]:
    """Return what is kept."""
    reply: list[Any] = yield Call("hw_history_series", KEY, read_only=True)
    now_ms, writer, until_ms, size, *found = reply
    series = {
        msgspec.json.decode(one, type=Series): int(ms)
        for one, ms in zip(found[::2], found[1::2], strict=True)
    }
    holder = writer.decode() if until_ms > now_ms else ""
    return KeptHistory(now_ms, holder, size, series)


def read_points(
    wanted: Sequence[Series], step_s: int, span_s: int | None = None
) -> Operation[SpacedPoints]:
    """Return the points of some series up to now, those of ``span_s`` seconds or of all."""
    resolution = RESOLUTIONS[step_s]
    series = [STORE, *(one for one in wanted if one != STORE)]
    rings = tuple(_ring(one, step_s) for one in series)
    now_ms, *found = yield Call("hw_history_read", KEY, rings, read_only=True)
    newest = now_ms // 1000 // step_s
    count = resolution.points if span_s is None else min(span_s // step_s, resolution.points)
    slots = range(newest - count + 1, newest + 1)
    bridge = max(_BRIDGED_S // step_s, 2)

    def points_of(ring: bytes) -> list[Point | None]:
        whole = ring[: len(ring) // _POINT.size * _POINT.size]
        there = {slot: Point(*values) for slot, *values in _POINT.iter_unpack(whole)}
        return [there.get(slot) for slot in slots]

    store = points_of(found[0])
    known: dict[Series, list[Point | None]] = {}
    for one, ring in zip(series, found, strict=True):
        known[one] = points_of(ring)
        # A series that is not kept has no ring: nothing is known of it, which is not the same as 0.
        # One that is kept is 0 where the store was sampled and nothing of the series moved.
        if ring:
            pairs = zip(known[one], store, strict=True)
            quiet = [Point() if point is None and seen else point for point, seen in pairs]
            known[one] = _bridged(quiet, bridge)
    return SpacedPoints([slot * step_s for slot in slots], {one: known[one] for one in wanted})


def _bridged(points: list[Point | None], most: int) -> list[Point | None]:
    filled, last = list(points), None
    for place, point in enumerate(points):
        if point is None:
            continue
        if last is not None and 1 < place - last <= most:
            filled[last + 1 : place] = [points[last]] * (place - last - 1)
        last = place
    return filled


# An answer this young is given again.
_FRESH_S: Final = 2.0
_KEPT_FRESH_S: Final = 10.0


class CachedHistory:
    """Reads the history, at most once in two seconds for any number of pages that ask the same."""

    def __init__(self, hw: AsyncHeadwater, clock: Callable[[], float] = time.monotonic) -> None:
        self._run = hw.store.run
        self._answers = SharedAnswers(clock)

    async def points(
        self,
        series: Sequence[Series],
        step_s: int,
        span_s: int | None = None,
        fresh_s: float = _FRESH_S,
    ) -> SpacedPoints:
        """Return the points of some series up to now, or up to ``fresh_s`` before."""
        asked = (tuple(series), step_s, span_s)
        return await self._answers.get(
            asked, fresh_s, lambda: self._run(read_points(series, step_s, span_s))
        )

    async def kept(self) -> KeptHistory:
        """Return what is kept, and how much space it takes."""
        return await self._answers.get((), _KEPT_FRESH_S, lambda: self._run(kept_history()))


# Any number of processes may try: the one that holds the pen writes, the others check whether it
# is free. Quiet series are not written, so a store in which nothing happens costs one call a
# second.
log = logging.getLogger("headwater.metrics")

# The default number of series that are kept; each takes 58.8 kB at most.
MOST_SERIES: Final = 100
EVERY_S: Final = 1.0
# A series that was quiet for this long makes room for another.
QUIET_MS: Final = 600_000
# When series were last busy is noted so often.
_NOTED_MS: Final = 60_000


def check_history(most: int) -> int:
    """Return how many series may be kept, 0 for none; raises InvalidInput for what cannot be."""
    return check_int(most, "history", 0, 10_000)


class OutboxBacklog(NamedTuple):
    """What waits in the outbox of a database: how many rows, and how old the oldest is.

    ``batches`` is how many were streamed in all, ``rows_per_s`` how many rows a second lately.
    """

    rows: int
    oldest_s: float
    batches: int
    rows_per_s: float = 0.0


class Counter(NamedTuple):
    """How much has come in and gone out of an object until a moment, in all."""

    at_ms: int
    came: int
    went: int


class RateBook:
    """Rates of everything that is sampled, out of counters of this sample and of the last."""

    def __init__(self) -> None:
        self._last: dict[Series, Counter] = {}

    def points(self, sample: StoreSample, staged: OutboxBacklog | None) -> dict[Series, Point]:
        """Return a point for each object, and one for the store."""
        found: dict[Series, Point] = {}
        counters: dict[Series, Counter] = {}
        for series, came, went, point in counted(sample):
            now = counters[series] = Counter(sample.now_ms, came, went)
            found[series] = _rated(point, self._last.get(series), now)
        if staged is not None:
            now = counters[OUTBOX] = Counter(sample.now_ms, 0, staged.batches)
            waits = Point(lag=staged.rows, lag_s=staged.oldest_s)
            rated = _rated(waits, self._last.get(OUTBOX), now)
            # Of an outbox, what goes out are batches, and what comes into the log are rows.
            found[OUTBOX] = rated._replace(in_per_s=staged.rows_per_s)
        self._last = counters
        found[STORE] = _total(found)
        return found


def counted(sample: StoreSample) -> Iterator[tuple[Series, int, int, Point]]:
    """Yield each object: its series, what came, what went, and a point without rates."""
    now_ms = sample.now_ms
    for stream in sample.streams:
        yield ("stream", stream.name), stream.last, 0, Point()
        for reader, needed in stream.readers.items():
            lag, lag_s = lag_of(stream, needed), stream.reader_lag_ms[reader] / 1000
            yield ("reader", stream.name, reader), 0, needed, Point(lag=lag, lag_s=lag_s)
    for name, group in sample.groups:
        waits, held = age_s(group.new_since_ms, now_ms), age_s(group.pending_since_ms, now_ms)
        point = Point(0, 0, group.lag, waits, group.pending, held)
        yield ("group", name, group.name), 0, group.next - 1 - group.pending, point
    for query in sample.queries:
        if query.is_live:
            point = Point(lag=query.lag, lag_s=query.lag_ms / 1000)
            yield ("query", query.query), 0, sum(one.next for one in query.reads), point
    for queue in sample.queues:
        oldest = (queue.oldest_ms or 0) / 1000
        held = (queue.oldest_unacked_ms or 0) / 1000
        point = Point(0, 0, queue.ready, oldest, queue.unacked, held)
        yield ("queue", queue.name), queue.pushed, queue.acked, point
    for channel in sample.channels:
        point = Point(0, 0, channel.ready, channel.waited_ms / 1000, channel.reserved, 0)
        yield ("channel", channel.name), channel.added, 0, point


def _rated(point: Point, last: Counter | None, now: Counter) -> Point:
    if last is None or now.at_ms <= last.at_ms:
        return point
    seconds = (now.at_ms - last.at_ms) / 1000
    # A seek sends a group back, and a stream may be deleted and begun again.
    came, went = max(now.came - last.came, 0), max(now.went - last.went, 0)
    return point._replace(in_per_s=came / seconds, out_per_s=went / seconds)


def _total(found: dict[Series, Point]) -> Point:
    """Return the point of the store: of streams what came in, of whoever takes them the rest."""
    points = [(series[0], point) for series, point in found.items()]
    takers = [point for kind, point in points if kind in ("group", "queue")]
    return Point(
        sum(point.in_per_s for kind, point in points if kind in ("stream", "queue")),
        sum(point.out_per_s for point in takers),
        sum(point.lag for point in takers),
        max((point.lag_s for point in takers), default=0),
        sum(point.pending for point in takers),
        max((point.oldest_s for point in takers), default=0),
    )


def age_s(since_ms: int | None, now_ms: int) -> float:
    """Return for how long something waits that began at a time, or not at all."""
    return 0.0 if since_ms is None else max(now_ms - since_ms, 0) / 1000


class StepBook:
    """Points of longer steps out of those of samples: the mean of rates, the worst of the rest."""

    def __init__(self, step_s: int) -> None:
        self._step_s = step_s
        self._slot = 0
        self._sums: dict[Series, tuple[int, Point]] = {}

    def add(self, now_ms: int, points: dict[Series, Point]) -> list[NewPoint]:
        """Add points of a moment; returns those of the step that is over by then."""
        slot, over = now_ms // 1000 // self._step_s, []
        if slot != self._slot:
            over = [
                NewPoint(series, self._step_s, self._slot, _mean(count, point))
                for series, (count, point) in self._sums.items()
            ]
            self._slot, self._sums = slot, {}
        for series, point in points.items():
            count, so_far = self._sums.get(series, (0, Point()))
            rates = (so_far.in_per_s + point.in_per_s, so_far.out_per_s + point.out_per_s)
            worst = map(max, so_far[2:], point[2:])
            self._sums[series] = (count + 1, Point(*rates, *worst))
        return over


def _mean(count: int, point: Point) -> Point:
    return point._replace(in_per_s=point.in_per_s / count, out_per_s=point.out_per_s / count)


class SeriesBook:
    """Which series are kept, within a number of them."""

    def __init__(self, most: int, kept: dict[Series, int]) -> None:
        self._most = most
        self._kept = kept
        self._noted_ms = 0
        self.unkept = 0

    def choose(
        self, now_ms: int, points: dict[Series, Point]
    ) -> tuple[dict[Series, Point], dict[Series, int], list[Series]]:
        """Return the points to be written, series to be noted as busy, and those to be forgotten.

        What is busy is kept, what lags most first. When there is no room, it takes the place of
        the series that was quiet for longest, and for ten minutes at least.
        """
        busy = {series: point for series, point in points.items() if point.is_busy}
        new = [series for series in busy if series not in self._kept and series != STORE]
        new.sort(key=lambda one: (-busy[one].lag, -busy[one].in_per_s - busy[one].out_per_s))
        room = max(self._most - len(self._kept), 0)
        quiet = sorted(
            (one for one, ms in self._kept.items() if one not in busy and now_ms - ms > QUIET_MS),
            key=self._kept.__getitem__,
        )
        excess = max(len(self._kept) - self._most, 0)
        taken = new[: room + len(quiet) - excess] if room + len(quiet) > excess else []
        gone = quiet[: max(len(taken) - room, 0) + excess]
        for one in gone:
            del self._kept[one]
        self.unkept = len(new) - len(taken)
        noted = dict.fromkeys(taken, now_ms)
        for one in busy:
            if one in self._kept or one in noted:
                self._kept[one] = now_ms
        if now_ms - self._noted_ms > _NOTED_MS:
            noted = {one: ms for one, ms in self._kept.items() if one in busy}
            self._noted_ms = now_ms
        written = {one: point for one, point in busy.items() if one in self._kept}
        return {STORE: points[STORE], **written}, noted, gone


class HistoryRecorder:
    """Writes the history of a store while the block of ``recording`` runs.

    ``staged`` returns what waits in an outbox, if there is one.
    """

    def __init__(
        self,
        watch: StoreWatch,
        most: int = MOST_SERIES,
        staged: Callable[[], Awaitable[OutboxBacklog | None]] | None = None,
    ) -> None:
        self._watch = watch
        self._most = most
        self._staged = staged
        self._writer = secrets.token_hex(8)
        self._rates = RateBook()
        self._steps = [StepBook(step) for step in RESOLUTIONS if step > 1]
        self._book: SeriesBook | None = None
        self._last: StoreSample | None = None

    @property
    def unkept(self) -> int:
        """How many busy series are not kept, because there is no room."""
        return 0 if self._book is None else self._book.unkept

    @contextlib.asynccontextmanager
    async def recording(self) -> AsyncIterator[None]:
        """Write while the block runs, and let somebody else write at its end."""
        task = asyncio.create_task(self._record())
        try:
            yield
        finally:
            task.cancel()
            await asyncio.wait([task])
            await self.release()

    async def release(self) -> None:
        """Let somebody else write."""
        if self._book is not None:
            self._book = None
            with contextlib.suppress(HeadwaterError, TimeoutError):
                async with asyncio.timeout(1):
                    await self._watch.hw.store.run(write_points(self._writer, [], 0))

    async def _record(self) -> None:
        while True:
            try:
                if self._book is not None or await self._take_pen():
                    sample = await self._watch.newest(EVERY_S)
                    if sample is not self._last and sample.missing is None:
                        self._last = sample
                        await self.note(sample)
            except (HeadwaterError, TimeoutError) as error:
                log.debug("the history of %s has a gap: %s", self._watch.hw.store.where, error)
                self._book = None
            # A process that does not hold the pen checks less often whether it is free, and samples
            # nothing.
            await asyncio.sleep(EVERY_S if self._book is not None else HOLD_MS / 1000)

    async def _take_pen(self) -> bool:
        run = self._watch.hw.store.run
        if not await run(write_points(self._writer, [], HOLD_MS)):
            return False
        kept = await run(kept_history())
        await run(keep_series({STORE: kept.now_ms}, []))
        series = {one: busy_ms for one, busy_ms in kept.series.items() if one != STORE}
        self._book = SeriesBook(self._most, series)
        return True

    async def note(self, sample: StoreSample) -> bool:
        """Write a sample down; returns False when somebody else writes."""
        if self._book is None and not await self._take_pen():
            return False
        assert self._book is not None
        run, now_ms = self._watch.hw.store.run, sample.now_ms
        staged = None if self._staged is None else await self._staged()
        points = self._rates.points(sample, staged)
        written, noted, gone = self._book.choose(now_ms, points)
        if noted or gone:
            await run(keep_series(noted, gone))
        new = [NewPoint(series, 1, now_ms // 1000, point) for series, point in written.items()]
        for step in self._steps:
            new += step.add(now_ms, written)
        # A large store is sampled less often, by the same process nevertheless.
        hold_ms = max(HOLD_MS, round(3000 * sample.took_s))
        if not await run(write_points(self._writer, new, hold_ms)):
            self._book = None
            return False
        return True
