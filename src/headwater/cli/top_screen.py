"""The screen of ``headwater top``: what it shows, and the keys that it takes."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import termios
import tty
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from rich.cells import cell_len
from rich.console import Group, RenderableType
from rich.live import Live
from rich.table import Column, Table
from rich.text import Text

from headwater.aio_client import connect
from headwater.cli import output
from headwater.cli.screens import FittedColumn, FittedTable
from headwater.errors import StoreError
from headwater.metrics.alarm_watch import AlarmWatch, FirstSeen
from headwater.metrics.alarms import StoreFacts
from headwater.metrics.history import (
    STORE,
    CachedHistory,
    HistoryRecorder,
    Point,
    RateBook,
    check_history,
)
from headwater.metrics.sweeps import StoreWatch, StreamRates
from headwater.serve.api.databases import open_database
from headwater.serve.console.pages.lagging import every_reader, gathered
from headwater.serve.console.ruler import (
    draw,
    group_rulers,
    registered_reader,
    spark_reads,
    window_of,
)
from headwater.views.overview import look_apart

if TYPE_CHECKING:
    from headwater.aio_client import AsyncHeadwater
    from headwater.log.types import StreamInfo
    from headwater.metrics.alarms import Alarm
    from headwater.metrics.sweeps import StoreSample
    from headwater.queue.types import QueueStats
    from headwater.serve.console.pages.lagging import Lagging
    from headwater.serve.console.ruler import RulerPicture, RulerRow, Segment
    from headwater.store.doctor import DoctorReport, PastChecks


class Mark(NamedTuple):
    """A segment of the ruler as a character, its colour, and its words in the legend."""

    sign: str
    colour: str
    words: str = ""


# Where several share a cell, the later wins.
MARKS: Final = {
    "evicted": Mark("░", "dim", "evicted"),
    "archived": Mark("▒", "dim"),
    "sealed": Mark("▓", "cyan", "sealed"),
    "tail": Mark("█", "cyan", "tail"),
    "done": Mark("✓", "green", "done"),
    "unknown": Mark("?", "dim", "not known"),
    "before": Mark("-", "dim", "skipped, or before its start"),
    "passed": Mark("-", "dim"),
    "new": Mark("·", "dim", "not delivered yet"),
    "pending-1": Mark("①", "yellow", "pending, by attempt"),
    "pending-2": Mark("②", "yellow"),
    "pending-3": Mark("③", "bold yellow"),
    "due": Mark("↻", "magenta", "due for retry"),
    "missed": Mark("✗", "bold red", "dead or missed"),
    "dead": Mark("✗", "red"),
}
_ORDER: Final = tuple(MARKS)
_SPARKS: Final = "▁▂▃▄▅▆▇█"
_WIDTH: Final = 1000.0
_ALARMS: Final = 4
# A terminal of fewer lines has none for the last verify.
_LOW: Final = 20
_COLUMNS: Final = (
    FittedColumn("name", least=12),
    FittedColumn("stream", rank=2, least=8),
    FittedColumn("kind", rank=5),
    FittedColumn("lag", right=True),
    FittedColumn("behind", rank=3, right=True),
    FittedColumn("pending", right=True),
    FittedColumn("oldest", rank=4, right=True),
    FittedColumn("dead", rank=1, right=True),
    FittedColumn("last 2 min", rank=6),
)
# In fewer columns, a strip of the ruler has a line of its own.
_NARROW: Final = 100
# The columns of how somebody stands, beside a strip.
_STANDING: Final = 44
_KEYS: Final = "j k move · ⏎ enter · q leave"
BACK: Final = "esc back · q leave"


class TopPicture(NamedTuple):
    """What the overview shows: the sample, what is made of it, and which row is chosen."""

    where: str
    sample: StoreSample
    store: Point
    alarms: Sequence[Alarm]
    rows: Sequence[Lagging]
    sparks: dict[tuple[str, ...], str]
    chosen: int | None = None
    age_s: float = 0.0
    checks: PastChecks | None = None
    report: DoctorReport | None = None


def overview_picture(top: TopPicture, width: int = 100, height: int = 1000) -> RenderableType:
    """Draw the overview in so many columns and lines; its rows are those around the chosen one.

    What is narrow leaves out columns; what is low, alarms. No number is cut.
    """
    parts: list[Text] = [_head(top, width)]
    if top.report is not None:
        colour = {"fail": "bold red", "warn": "yellow"}.get(top.report.verdict, "green")
        promise = output.readable(top.report.durability)
        parts.append(_cut(Text.assemble(("durability ", "dim"), (promise, colour)), width))
    parts += _facts(top, width)
    most = min(max((height - 9) // 4, 1), _ALARMS)
    for alarm in top.alarms[:most]:
        act = alarm.level == "act"
        words = Text.assemble(
            ("Act   " if act else "Check ", "bold red" if act else "bold yellow"),
            output.readable(alarm.text),
            (f": {alarm.cure}", "dim"),
        )
        parts.append(_cut(words, width))
    if len(top.alarms) > most:
        parts.append(Text(f"and {len(top.alarms) - most:,} more need attention", "dim"))
    if top.checks is not None and top.checks.verify is not None and height >= _LOW:
        at = output.time_text(top.checks.verify.at_ms)
        parts.append(_cut(Text(f"last verify {at}: {top.checks.verify}", "dim"), width))
    parts.append(Text())
    most = max(height - len(parts) - (top.chosen is not None) - 2, 3)
    shown = _shown(top, most)
    keys = [] if top.chosen is None else [_keys(top, shown, width)]
    return Group(*parts, _rows_table(top, shown), *keys)


def _keys(top: TopPicture, shown: range, width: int) -> Text:
    """Say what keys do, and which of the rows are on the screen if not all are."""
    words = [_KEYS]
    if len(shown) < len(top.rows):
        words.append(f"rows {shown[0] + 1:,} to {shown[-1] + 1:,} of {len(top.rows):,}")
    return _cut(Text(" · ".join(words), "dim"), width)


def _shown(top: TopPicture, most: int) -> range:
    """Return the places of the rows around the chosen one that are on the screen."""
    first = max(min((top.chosen or 0) - most // 2, len(top.rows) - most), 0)
    return range(first, min(first + most, len(top.rows)))


def _head(top: TopPicture, width: int) -> Text:
    """Name the store, by the end of its address where that is long, and the age of the sample."""
    age = f"   sampled {output.age_text(round(top.age_s * 1000))} ago"
    where = Text(output.readable(top.where))
    room = max(width - len("Headwater ") - len(age), 10)
    if where.cell_len > room:
        where = Text(f"…{where.plain[1 - room :]}")
    return Text.assemble(("Headwater ", "bold"), where, (age, "dim"))


def _facts(top: TopPicture, width: int) -> list[Text]:
    """Return what is known of the whole store, in as many lines as that takes."""
    sample, store = top.sample, top.store
    dead = sum(row.dead for row in top.rows)
    words = (
        f"{output.counted(len(sample.streams), 'stream')} · "
        f"{output.counted(len(sample.groups), 'group')} · "
        f"{output.counted(len(sample.queues), 'queue')}",
        f"in {store.in_per_s:,.0f}/s · out {store.out_per_s:,.0f}/s",
        f"lag {store.lag:,.0f} · pending {store.pending:,.0f} · {dead:,} dead",
    )
    return [Text(line) for line in _packed(words, "   ", width)]


def _packed(pieces: Iterable[str], gap: str, width: int) -> Iterator[str]:
    """Yield pieces of text in lines of such a width; a line breaks between pieces only."""
    line = ""
    for piece in pieces:
        if line and cell_len(f"{line}{gap}{piece}") > width:
            yield line
            line = ""
        line = f"{line}{gap}{piece}" if line else piece
    yield line


def _cut(text: Text, width: int) -> Text:
    """Return a text as one line: cut between words, so that each number in it is whole."""
    if text.cell_len <= width:
        return text
    end = text.plain.rfind(" ", 0, width)
    cut = text[: end if end > 0 else width - 1]
    return cut.append("…")


def _rows_table(top: TopPicture, shown: range) -> RenderableType:
    if not top.rows:
        return Text("Nobody reads this store yet: it has no group, reader, queue or dirty list.")
    table = FittedTable(_COLUMNS)
    for place in shown:
        row, point = top.rows[place], top.rows[place].point
        table.add_row(
            output.readable(row.name),
            output.readable(", ".join(row.where)),
            row.kind,
            f"{point.lag:,.0f}",
            spelled_age(point.lag_s),
            f"{point.pending:,.0f}",
            spelled_age(point.oldest_s),
            Text(f"{row.dead:,}", "yellow" if row.dead else ""),
            top.sparks.get(row.series, ""),
            style="reverse" if place == top.chosen else "",
        )
    return table


def spelled_age(seconds: float) -> str:
    """Return how long something has waited, as the console spells it; "-" for nothing."""
    if not seconds:
        return "-"
    for length, unit in ((86_400, "d"), (3600, "h"), (60, "min")):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit}"
    # As the console has it: what rounds to 10.0 is spelled as what follows it.
    return f"{seconds:.1f} s" if seconds < 9.95 else f"{seconds:.0f} s"


def place_kept(before: Sequence[Lagging], chosen: int, rows: Sequence[Lagging]) -> int:
    """Return where the object of a chosen row is among new rows; the same place without it."""
    series = before[chosen].series if chosen < len(before) else None
    return next((place for place, row in enumerate(rows) if row.series == series), chosen)


def spark_text(values: Sequence[float | None], width: int = 20) -> str:
    """Return values as a line of characters; each stands for the highest of its part."""
    if not any(values):
        return ""
    size = max(-(-len(values) // width), 1)
    parts = [values[at : at + size] for at in range(0, len(values), size)]
    heights = [max((one for one in part if one is not None), default=None) for part in parts]
    highest = max(one for one in heights if one is not None) or 1
    return "".join(
        " " if one is None else _SPARKS[min(int(one / highest * len(_SPARKS)), len(_SPARKS) - 1)]
        for one in heights
    )


def strip_text(segments: Sequence[Segment], width: int) -> Text:
    """Return a strip of the ruler as so many characters; what is rarer is drawn over the rest."""
    cells = [""] * width
    for segment in sorted(segments, key=lambda one: _ORDER.index(one.kind)):
        first = min(int(segment.x / _WIDTH * width), width - 1)
        last = max(-(-int(segment.x + segment.width) * width // int(_WIDTH)), first + 1)
        for cell in range(first, min(last, width)):
            cells[cell] = segment.kind
    text = Text(no_wrap=True)
    for kind in cells:
        text.append(*MARKS.get(kind, Mark(" ", ""))[:2])
    return text


def ruler_picture(
    info: StreamInfo, rate: float | None, picture: RulerPicture, width: int
) -> RenderableType:
    """Draw a stream with all who read it, in so many columns."""
    window = picture.window
    facts = [f"{info.length:,} message{'s' * (info.length != 1)}"]
    facts += [f"{info.bytes / info.length:,.1f} B each"] if info.length else []
    facts += [] if rate is None else [f"{rate:,.0f}/s" if rate >= 10 else f"{rate:,.1f}/s"]
    rows = [
        _Strip("whole", picture.whole, [f"1 - {picture.end:,}"]),
        _Strip("readable", picture.focus, [f"{window.first:,} - {window.last:,}"]),
        *(_Strip(_who(row), row.segments, _standing(row)) for row in picture.rows),
    ]
    pieces = [f"{mark.sign} {mark.words}" for mark in MARKS.values() if mark.words]
    return Group(
        Text(output.readable(info.name), "bold"),
        *(Text(line) for line in _packed(facts, " · ", width)),
        Text(),
        _strips_below(rows, width) if width < _NARROW else _strips_beside(rows, width),
        Text(),
        *(Text(line, "dim") for line in _packed(pieces, "   ", width)),
        Text(BACK, "dim"),
    )


def _who(row: RulerRow) -> str:
    """Return the name of who reads, and what it is unless it is a group."""
    kind = "" if row.kind in ("group", "reader") else f"{row.kind} "
    return f"{kind}{output.readable(row.name)}"


class _Strip(NamedTuple):
    """A strip of the ruler: who reads, what became of the offsets, and how it stands."""

    who: str
    segments: Sequence[Segment]
    standing: Sequence[str]


def _standing(row: RulerRow) -> list[str]:
    behind = f" ({spelled_age(row.lag_ms / 1000)})" if row.lag and row.lag_ms else ""
    words = [f"lag {row.lag:,}{behind}"]
    if row.info is not None and row.info.pending:
        words.append(f"pending {row.info.pending:,}")
    if row.info is not None and row.info.dead:
        words.append(f"{row.info.dead:,} dead")
    if row.info is not None and row.info.missed:
        words.append(f"{row.info.missed:,} missed")
    return words


def _strips_beside(strips: Sequence[_Strip], width: int) -> RenderableType:
    """Draw each strip between the name of who reads and how it stands."""
    cells = width - 18 - _STANDING
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(no_wrap=True, width=16)
    table.add_column(no_wrap=True, width=cells)
    table.add_column(no_wrap=True)
    for who, segments, standing in strips:
        words = "\n".join(_packed(standing, " · ", _STANDING - 2))
        table.add_row(Text(who), strip_text(segments, cells), words)
    return table


def _strips_below(strips: Sequence[_Strip], width: int) -> RenderableType:
    """Draw each strip in the full width, below the name of who reads and how it stands."""
    lines: list[Text] = []
    for who, segments, (first, *more) in strips:
        lines += map(Text, _packed([f"{who}  {first}", *more], " · ", width))
        lines.append(strip_text(segments, width))
    return Group(*lines)


def list_picture(row: Lagging) -> RenderableType:
    """Show how a dirty list stands."""
    return _picture(
        row.name,
        ("ready", f"{row.point.lag:,.0f}"),
        ("oldest", spelled_age(row.point.lag_s)),
        ("reserved", f"{row.point.pending:,.0f}"),
    )


def queue_picture(stats: QueueStats) -> RenderableType:
    """Show how a queue stands."""
    return _picture(
        stats.name,
        ("ready", f"{stats.ready:,}"),
        ("oldest", spelled_age((stats.oldest_ms or 0) / 1000)),
        ("delayed", f"{stats.delayed:,}"),
        ("with consumers", f"{stats.unacked:,}"),
        ("dead", f"{stats.dead:,}"),
        ("pushed", f"{stats.pushed_per_s:,.1f}/s"),
        ("acked", f"{stats.acked_per_s:,.1f}/s"),
        ("waiting consumers", f"{stats.waiting:,}"),
        ("paused", "yes" if stats.paused else "no"),
    )


def _picture(name: str, *facts: tuple[str, str]) -> RenderableType:
    columns = (Column(style="dim"), Column(justify="right"))
    table = Table(*columns, box=None, pad_edge=False, show_header=False)
    for words, value in facts:
        table.add_row(words, value)
    return Group(Text(output.readable(name), "bold"), Text(), table, Text(), Text(BACK, "dim"))


_EVERY_S: Final = 1.0
# A store that has not answered by then is said to be away.
_PATIENCE_S: Final = 3.0
_SPARK_WIDTH: Final = 40
_SPARK_SPAN_S: Final = 120
# Groups that a ruler has rows for, and the cells that are asked for.
_ROWS: Final = 30
_CELLS: Final = 200
_UP: Final = (b"k", b"\x1b[A", b"\x1bOA")
_DOWN: Final = (b"j", b"\x1b[B", b"\x1bOB")
_ENTER: Final = (b"\r", b"\n", b"l", b"\x1b[C")
_BACK: Final = (b"\x1b", b"h", b"\x7f", b"\x1b[D")
_LEAVE: Final = (b"q", b"\x03", b"\x04")


class TopScreen:
    """What ``headwater top`` shows, and the row that is chosen."""

    def __init__(self, url: str | None, history: int, db: str | None = None) -> None:
        self._url = url
        self._db = db
        self._history = check_history(history)
        self._rates = RateBook()
        self._store_point = Point()
        self._sample: StoreSample | None = None
        self._rows: list[Lagging] = []
        self._chosen = 0
        self._moved = False
        self._entered = False
        self._keys: asyncio.Queue[bytes] = asyncio.Queue()

    async def run(self, *, live: bool) -> None:
        """Show the store until somebody leaves, or once."""
        async with connect(self._url, wait_ms=0) as hw, contextlib.AsyncExitStack() as opened:
            self._hw: AsyncHeadwater = hw
            self._watch = StoreWatch(hw)
            self._stream_rates = StreamRates(self._watch)
            self._past = CachedHistory(hw)
            self._facts = StoreFacts(self._watch, self._url)
            opened.push_async_callback(self._watch.close)
            opened.push_async_callback(self._facts.close)
            outbox = None
            if self._db is not None:
                database = opened.enter_context(open_database(self._db, self._url))
                outbox = database.status
            seen = FirstSeen(hw, writes=False)
            self._alarms = AlarmWatch(self._watch, self._facts, seen, outbox=outbox)
            opened.push_async_callback(self._alarms.close)
            if not live:
                self._facts.report()
                await self._watch.sample_now()
                await self._facts.close()
                output.console().print(await self._overview(chosen=False), highlight=False)
                return
            if self._history:
                recorder = HistoryRecorder(self._watch, self._history)
                await opened.enter_async_context(recorder.recording())
            await self._show()

    async def _show(self) -> None:
        console = output.console()
        with (
            _single_keys(self._keys.put_nowait),
            Live(console=console, screen=True, auto_refresh=False) as shown,
        ):
            while True:
                shown.update(await self._drawn(), refresh=True)
                try:
                    async with asyncio.timeout(_EVERY_S):
                        key = await self._keys.get()
                except TimeoutError:
                    continue
                if key in _LEAVE:
                    return
                self._press(key)

    def _press(self, key: bytes) -> None:
        self._moved = self._moved or key in (*_UP, *_DOWN, *_ENTER)
        if key in _UP and not self._entered:
            self._chosen = max(self._chosen - 1, 0)
        elif key in _DOWN and not self._entered:
            self._chosen = min(self._chosen + 1, max(len(self._rows) - 1, 0))
        elif key in _ENTER:
            self._entered = bool(self._rows)
        elif key in _BACK:
            self._entered = False

    def _take_rows(self, rows: list[Lagging]) -> None:
        """Take new rows; before somebody moves, the worst of them is chosen."""
        self._chosen = place_kept(self._rows, self._chosen, rows) if self._moved else 0
        self._rows = rows

    async def _drawn(self) -> RenderableType:
        """Return the picture, or that the store is away: then it is tried again."""
        try:
            async with asyncio.timeout(_PATIENCE_S):
                return await self._picture()
        except (StoreError, TimeoutError) as error:
            why = output.readable(error) if str(error) else "silent"
            return Text(f"{self._hw.store.where} does not answer ({why}); trying again · q leave")

    async def _picture(self) -> RenderableType:
        if not self._entered:
            return await self._overview(chosen=True)
        row = self._rows[min(self._chosen, len(self._rows) - 1)]
        if row.kind == "queue":
            return queue_picture(await self._hw.queue(row.name).stats())
        if row.where:
            return await self._ruler(row.where[0])
        return list_picture(row)

    async def _overview(self, *, chosen: bool) -> RenderableType:
        sample = await self._watch.whole(_EVERY_S)
        if sample is not self._sample:
            self._sample = sample
            self._store_point = self._rates.points(sample, None)[STORE]
            self._take_rows(every_reader(sample))
        self._chosen = min(self._chosen, max(len(self._rows) - 1, 0))
        wanted = [row.series for row in self._rows[:_SPARK_WIDTH]]
        past = await self._past.points([STORE, *wanted], 1, _SPARK_SPAN_S)
        # One look knows no rates, but another process may have kept them.
        kept = None if chosen else past.series[STORE][-1] or past.series[STORE][-2]
        point = self._store_point if kept is None else kept
        sparks = {
            one: spark_text([None if at is None else at.lag for at in past.series[one]])
            for one in wanted
        }
        console = output.console()
        picture = TopPicture(
            self._hw.store.where,
            sample,
            point,
            gathered(await self._alarms.found(sample, once=not chosen)),
            self._rows,
            sparks,
            self._chosen if chosen else None,
            self._watch.clock() - sample.at,
            await self._facts.past_checks(),
            self._facts.report(),
        )
        return overview_picture(picture, console.width, console.height if chosen else 1000)

    async def _ruler(self, stream: str) -> RenderableType:
        _, (info,), groups, _ = await self._hw.store.run(look_apart([stream]))
        window = window_of(info, None, None)
        rulers = await group_rulers(self._hw, stream, groups[:_ROWS], window, _CELLS)
        readers = [
            registered_reader(name, at, info.reader_lag_ms[name])
            for name, at in sorted(info.readers.items())
        ]
        sample = self._watch.latest
        readers += [one for query in sample.queries for one in spark_reads(query, stream)]
        picture = draw(info, window, rulers, readers[:_ROWS], sample.now_ms)
        # Also while a stream is shown, the sample is renewed: its rate comes from it.
        rate = self._stream_rates.of(stream)
        return ruler_picture(info, rate, picture, output.console().width)


@contextlib.contextmanager
def _single_keys(take: Callable[[bytes], None]) -> Iterator[None]:
    """Have each key given to a function as it is pressed, in the running event loop."""
    fd, loop = sys.stdin.fileno(), asyncio.get_running_loop()
    before = termios.tcgetattr(fd)

    def ready() -> None:
        pressed = os.read(fd, 64)
        # The end of the input is the end of the work; a key with a sequence is one key.
        for key in [pressed] if pressed.startswith(b"\x1b") else [bytes([one]) for one in pressed]:
            take(key)
        if not pressed:
            take(_LEAVE[-1])

    tty.setcbreak(fd)
    loop.add_reader(fd, ready)
    try:
        yield
    finally:
        loop.remove_reader(fd)
        termios.tcsetattr(fd, termios.TCSADRAIN, before)
