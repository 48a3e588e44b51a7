"""The ruler: a stream as one strip of offsets, and under it one row for whoever reads it.

Everything is drawn from ranges that the store has; no message is read. Places are in a picture of
1000 units: what is narrower than ``LEAST`` is drawn that wide, so that a single message is seen.
"""

from __future__ import annotations

import datetime as dt
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from headwater.errors import InvalidInput
from headwater.log.handles import GroupHandle, StreamHandle
from headwater.log.inspecting import GroupRuler, group_ruler
from headwater.log.types import GroupInfo, StreamInfo
from headwater.metrics.alarms import CONSUMER
from headwater.serve.console.calls import PageCall
from headwater.serve.console.links import group_link
from headwater.store.many import together

if TYPE_CHECKING:
    from headwater.aio_client import AsyncHeadwater
    from headwater.spark.queries.status import QueryStatus
    from headwater.views.overview import StreamGroup


# No offset has more digits.
_DIGITS: Final = 16
_SPANS_S: Final = {"s": 1, "m": 60, "h": 3600, "d": 86400}


def steps_of(text: str) -> int | None:
    """Return how far a text like +1000 or -1000 goes; None for another one."""
    if text[:1] not in ("+", "-", "−") or not text[1:].isdecimal() or len(text) > _DIGITS:
        return None
    return int(text[1:]) if text[0] == "+" else -int(text[1:])


def moment_of(text: str) -> dt.datetime | None:
    """Return a time: ISO 8601, UTC without a zone, or a span before now like 2h; None else."""
    text = text.strip()
    if text[:-1].isdecimal() and len(text) <= _DIGITS and text[-1] in _SPANS_S:
        past = time.time() - int(text[:-1]) * _SPANS_S[text[-1]]
        return dt.datetime.fromtimestamp(max(past, 0), dt.UTC)
    # A number would be read as a year, or as a day of the calendar.
    if text.isdecimal():
        return None
    try:
        moment = dt.datetime.fromisoformat(text)
    except ValueError:
        return None
    return moment.replace(tzinfo=moment.tzinfo or dt.UTC)


async def position_of(call: PageCall, stream: str, text: str, base: int) -> int | str:
    """Return the offset that a form asks for, or ``first`` or ``last``; raises InvalidInput.

    Steps are counted from ``base``. A time costs a call.
    """
    word = text.replace(",", "").strip()
    if word in ("first", "last"):
        return word
    if word.isdecimal() and 0 < len(word) <= _DIGITS:
        return int(word)
    if (steps := steps_of(word)) is not None:
        return max(base + steps, 1)
    if (moment := moment_of(text)) is not None:
        return await call.hw.stream(stream).offset_at(moment)
    raise InvalidInput(
        f"{text!r} is no place in a stream; give an offset, +1000 or -1000, first, last, a span "
        "before now like 2h, or a time like 2026-11-17T14:00"
    )


WIDTH: Final = 1000.0
LEAST: Final = 2.0
# Attempts beyond this one are drawn alike.
_MOST_ATTEMPTS: Final = 3


class Stretch(NamedTuple):
    """The part of a stream that is looked at, both ends included."""

    first: int
    last: int

    @property
    def length(self) -> int:
        """How many offsets it has."""
        return self.last - self.first + 1

    def zoomed(self, factor: float, end: int) -> Stretch:
        """Return a window around the same middle, within 1..end."""
        length = max(min(round(self.length * factor), max(end, 1)), 1)
        return self._placed((self.first + self.last - length + 1) // 2, length, end)

    def moved(self, share: float, end: int) -> Stretch:
        """Return a window of the same length, moved by a share of it, within 1..end."""
        return self._placed(self.first + round(self.length * share), self.length, end)

    def _placed(self, first: int, length: int, end: int) -> Stretch:
        first = max(min(first, end - length + 1), 1)
        return Stretch(first, first + length - 1)


class Segment(NamedTuple):
    """Offsets that share one fate, and where they are drawn. ``note`` is shown on hover."""

    kind: str
    x: float
    width: float
    first: int
    last: int
    note: str = ""


class OutsideReader(NamedTuple):
    """Who reads a stream from outside the log, and the offset that it needs next.

    ``lag_ms`` is the age of the oldest message that waits for it, ``link`` its page.
    """

    kind: str
    name: str
    next: int
    note: str = ""
    lag_ms: int = 0
    link: str = ""


class RulerRow(NamedTuple):
    """What became of the offsets for one reader; ``note`` is what else is known of it.

    ``lag_ms`` is the age of the oldest message that waits for it, ``link`` its page.
    """

    kind: str
    name: str
    segments: list[Segment]
    lag: int
    info: GroupInfo | None = None
    note: str = ""
    lag_ms: int = 0
    link: str = ""


class RulerPicture(NamedTuple):
    """All of a ruler: the strip of the whole stream, that of the window, and the rows under it."""

    window: Stretch
    end: int
    whole: list[Segment]
    focus: list[Segment]
    mark: Segment
    rows: list[RulerRow]

    @property
    def kinds(self) -> set[str]:
        """The kinds of segments that are drawn, which are those that a legend names."""
        drawn = [self.whole, self.focus, *(row.segments for row in self.rows)]
        return {segment.kind for segments in drawn for segment in segments}


async def group_rulers(
    hw: AsyncHeadwater, stream: str, rows: Sequence[StreamGroup], window: Stretch, cells: int
) -> list[tuple[GroupInfo, GroupRuler]]:
    """Return what became of a window in each group; one that is removed meanwhile is left out."""
    handles = [GroupHandle(StreamHandle(stream, set()), row.group.name, "ruler") for row in rows]
    rulers = await hw.store.run(
        together(group_ruler(one, window.first, window.last, cells) for one in handles)
    )
    return [
        (row.group, ruler) for row, ruler in zip(rows, rulers, strict=True) if ruler is not None
    ]


def window_of(info: StreamInfo, first: int | None, last: int | None) -> Stretch:
    """Return the window that is asked for; without one, all that can be read."""
    end = max(info.last, 1)
    low = info.first if first is None else first
    high = end if last is None else last
    low = max(min(low, end), 1)
    return Stretch(low, max(min(high, end), low))


def draw(
    info: StreamInfo,
    window: Stretch,
    groups: Sequence[tuple[GroupInfo, GroupRuler]],
    readers: Sequence[OutsideReader],
    now_ms: int,
) -> RulerPicture:
    """Draw the ruler of a stream, with a row for each group and each reader outside the log."""
    end = max(info.last, 1)
    everything = Stretch(1, end)
    rows = [_group_row(facts, ruler, info, window, now_ms) for facts, ruler in groups]
    rows += [_reader_row(reader, info, window) for reader in readers]
    archived = max((one.next - 1 for one in readers if one.kind == "archive"), default=0)
    (mark,) = _segment("mark", window.first, window.last, everything)
    return RulerPicture(
        window=window,
        end=end,
        whole=_strip(info, everything, archived),
        focus=_strip(info, window, archived),
        mark=mark,
        rows=rows,
    )


def _strip(info: StreamInfo, window: Stretch, archived: int) -> list[Segment]:
    sealed = max(info.sealed, info.first - 1)
    in_archive = min(archived, info.first - 1)
    return [
        *_segment("archived", 1, in_archive, window, "evicted here, in the archive"),
        *_segment("evicted", in_archive + 1, info.first - 1, window, "evicted"),
        *_segment("sealed", info.first, sealed, window, "sealed: in nodes"),
        *_segment("tail", sealed + 1, info.last, window, "tail: not sealed yet"),
    ]


def _group_row(
    facts: GroupInfo, ruler: GroupRuler, info: StreamInfo, window: Stretch, now_ms: int
) -> RulerRow:
    segments = _passed(ruler.next, info, window, max(ruler.start, 1))
    if (unknown := ruler.not_known) is not None:
        low, high = max(ruler.start, 1), unknown.before - 1
        segments += _segment("unknown", low, high, window, unknown.why)
    for low, high in ruler.jumps:
        segments += _segment("passed", low, high, window, "skipped by a seek")
    for low, high in ruler.gaps:
        segments += _segment("missed", low, high, window, "missed: evicted before read")
    for one in ruler.pending:
        kind = "due" if one.due_ms <= now_ms else f"pending-{min(one.attempt, _MOST_ATTEMPTS)}"
        wait_s = max(one.due_ms - now_ms, 0) / 1000
        note = f"pending, attempt {one.attempt}, " + (
            "due for retry now" if one.due_ms <= now_ms else f"retried in {wait_s:.0f} s"
        )
        if one.ranges > 1:
            note = f"{one.ranges:,} pending ranges; the first: {note}"
        segments += _segment(kind, one.first, one.last, window, note)
    for low, high, attempt, ranges in ruler.dead:
        note = f"dead after {attempt} attempts"
        if ranges > 1:
            note = f"{ranges:,} ranges of dead letters, and between them others; the first: {note}"
        segments += _segment("dead", low, high, window, note)
    waits_ms = max(now_ms - facts.new_since_ms, 0) if facts.new_since_ms else 0
    link = group_link(info.name, facts.name)
    return RulerRow("group", facts.name, segments, facts.lag, facts, lag_ms=waits_ms, link=link)


def _reader_row(reader: OutsideReader, info: StreamInfo, window: Stretch) -> RulerRow:
    lag = max(info.last + 1 - max(reader.next, info.first), 0)
    segments = _passed(reader.next, info, window)
    known = (reader.note, reader.lag_ms, reader.link)
    return RulerRow(reader.kind, reader.name, segments, lag, None, *known)


def _passed(following: int, info: StreamInfo, window: Stretch, start: int = 1) -> list[Segment]:
    """Return what lies before the start of a reader, before its next offset, and from there on."""
    before = min(start, following) - 1
    return [
        *_segment("before", 1, before, window, "before its start: never handed out"),
        *_segment("done", before + 1, following - 1, window, "done"),
        *_segment("new", following, info.last, window, "not delivered yet"),
    ]


def _segment(kind: str, first: int, last: int, window: Stretch, note: str = "") -> list[Segment]:
    """Return where offsets are drawn; nothing when none of them is in the window."""
    low, high = max(first, window.first), min(last, window.last)
    if low > high:
        return []
    scale = WIDTH / window.length
    width = min(max((high - low + 1) * scale, LEAST), WIDTH)
    x = min((low - window.first) * scale, WIDTH - width)
    return [Segment(kind, round(x, 2), round(width, 2), first, last, note)]


# What a registered reader is, by the beginning of its name.
_READERS: Final = {CONSUMER: "SQL", "archive:": "archive"}


def registered_reader(name: str, needed: int, lag_ms: int) -> OutsideReader:
    """Return a reader that is registered at its stream, by what it is."""
    for prefix, kind in _READERS.items():
        if name.startswith(prefix):
            return OutsideReader(kind, name.removeprefix(prefix), needed, lag_ms=lag_ms)
    return OutsideReader("reader", name, needed, lag_ms=lag_ms)


def spark_reads(query: QueryStatus, stream: str) -> list[OutsideReader]:
    """Return where a query of Spark reads a stream."""
    name, note = query.name or query.query[:8], f"{query.state}, epoch {query.epoch:,}"
    return [
        OutsideReader("Spark", name, read.next, note, read.lag_ms, "/spark")
        for read in query.reads
        if read.stream == stream
    ]
