"""Charts over time: how they are drawn, and those of what a store has kept of its past.

A page makes a ``Chart``, and its template calls ``charts.chart(...)`` of ``charts.html``. The data
goes with the page, in an attribute; a chart with a ``source`` is renewed from that address, whose
answer is what ``charts_json`` returns. Nothing is inline, so the content security policy holds.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final, NamedTuple

import msgspec

from headwater.errors import InvalidInput
from headwater.metrics.history import OUTBOX, RESOLUTIONS, STORE, Point, Series, SpacedPoints
from headwater.serve.console.calls import PageCall
from headwater.serve.console.links import channel_link, consumer_link, group_link, queue_link
from headwater.serve.console.render import age, rate, rounded, size

# ── Charts ────────────────────────────────────────────────────────────────────────────────────────


WIDTH: Final = 600
HEIGHT: Final = 100
# A text alternative has at most so many rows; the newest are there.
_TOLD: Final = 20

Values = Sequence[float | None]


class ChartLine(NamedTuple):
    """One line of a chart: a value for each time, None where none is known."""

    label: str
    values: Values

    @property
    def newest(self) -> float | None:
        """The newest value that is known."""
        return next((value for value in reversed(self.values) if value is not None), None)


class Chart(NamedTuple):
    """A chart: its name in the page, its title, its times in seconds, and its lines.

    ``unit`` is how values are spelled: ``messages``, ``per s``, ``seconds`` or ``bytes``. A
    chart with a ``source``, an address from the root of the console on, is renewed from there every
    ``every_s`` seconds. ``bars`` draws columns in place of lines, for counts.
    """

    name: str
    title: str
    unit: str
    times: Sequence[int]
    lines: Sequence[ChartLine]
    source: str | None = None
    every_s: float = 2.0
    bars: bool = False

    @property
    def highest(self) -> float:
        """The highest value that is known, or 0."""
        known = (value for line in self.lines for value in line.values if value is not None)
        return max(known, default=0.0)

    @property
    def is_known(self) -> bool:
        """Whether any value is known."""
        return any(line.newest is not None for line in self.lines)

    @property
    def data(self) -> str:
        """What charts.js draws, as JSON."""
        return msgspec.json.encode(chart_data(self)).decode()

    def spelled(self, value: float | None) -> str:
        """Spell a value in the unit of the chart."""
        if value is None:
            return "–"
        if self.unit == "seconds":
            return age(value * 1000)
        if self.unit == "bytes":
            return size(value)
        return rate(value) if self.unit == "per s" else rounded(value)

    @property
    def drawn(self) -> list[list[str]]:
        """The lines as points of SVG, in a picture of 600 by 100; a text for each part of one."""
        return [list(self._stretches(line.values)) for line in self.lines]

    def _stretches(self, values: Values) -> Iterator[str]:
        points: list[str] = []
        for time, value in zip(self.times, values, strict=True):
            if value is None:
                if points:
                    yield " ".join(points)
                points = []
            else:
                points.append(f"{self._x(time):.1f},{self._y(value):.1f}")
        if points:
            yield " ".join(points)

    def _x(self, time: int) -> float:
        length = max(self.times[-1] - self.times[0], 1)
        return (time - self.times[0]) / length * WIDTH

    def _y(self, value: float) -> float:
        return HEIGHT - 2 - value / (self.highest or 1) * (HEIGHT - 4)

    @property
    def columns(self) -> list[tuple[float, float, float, float]]:
        """The columns of the first line: x, y, width and height of each."""
        if not self.lines or not self.times:
            return []
        wide = WIDTH / len(self.times)
        return [
            (round(place * wide, 1), round(y, 1), round(wide * 0.9, 1), round(HEIGHT - y, 1))
            for place, value in enumerate(self.lines[0].values)
            if value
            for y in (self._y(value),)
        ]

    @property
    def told(self) -> list[tuple[str, list[str]]]:
        """The newest values in words, the newest first: the time, and a text for each line."""
        rows = list(zip(self.times, *(line.values for line in self.lines), strict=True))
        step = max(-(-len(rows) // _TOLD), 1)
        return [
            (clock(time), [self.spelled(value) for value in values])
            for time, *values in rows[::-1][::step]
        ]

    @property
    def ends(self) -> tuple[str, str]:
        """The first and the last time, in words."""
        return (clock(self.times[0]), clock(self.times[-1])) if self.times else ("", "")


def clock(seconds: int) -> str:
    """Spell a time of the day, in UTC, as the rest of the console spells exact times."""
    return dt.datetime.fromtimestamp(seconds, dt.UTC).strftime("%H:%M:%S")


def chart_data(chart: Chart) -> dict[str, Any]:
    """Return what charts.js needs of a chart."""
    return {
        "times": list(chart.times),
        "lines": [
            {"label": line.label, "values": [_short(value) for value in line.values]}
            for line in chart.lines
        ],
    }


def charts_json(charts: Iterable[Chart]) -> dict[str, Any]:
    """Return what the source of some charts answers."""
    return {"charts": {chart.name: chart_data(chart) for chart in charts}}


def spark(values: Values, width: int = 100, height: int = 20) -> str:
    """Return a spark line as points of SVG, in a picture of so many units."""
    highest = max((value for value in values if value is not None), default=0) or 1
    step = width / max(len(values) - 1, 1)
    return " ".join(
        f"{place * step:.1f},{height - 1 - value / highest * (height - 2):.1f}"
        for place, value in enumerate(values)
        if value is not None
    )


def _short(value: float | None) -> float | None:
    return None if value is None else round(value, 3)


# ── History charts ────────────────────────────────────────────────────────────────────────────────
# Charts of what a store has kept of its past: of all, of a group, of a queue.


# By the second, by ten seconds, by the minute: how it is spelled, and what time that covers.
STEPS: Final = ((1, "1 s", "5 minutes"), (10, "10 s", "an hour"), (60, "1 min", "a day"))
# So many streams of a consumer have a line.
_CHARTED: Final = 5
_EVERY_S: Final = {1: 2.0, 10: 10.0, 60: 30.0}


def step_of(call: PageCall) -> int:
    """Return which points are asked for: 1, 10 or 60 seconds apart; raises InvalidInput."""
    step_s = call.number("step", 1) or 1
    if step_s not in RESOLUTIONS:
        raise InvalidInput(f"step is 1, 10 or 60 seconds, not {step_s}")
    return step_s


def name_of(series: Series) -> str:
    """Return what a series is about, in words."""
    kind, *names = series
    return f"{names[1]} of {names[0]}" if len(names) == 2 else names[0] if names else kind


def _line(
    found: SpacedPoints, series: Series, take: Callable[[Point], float], label: str
) -> ChartLine:
    points = found.series[series]
    return ChartLine(label, [None if point is None else take(point) for point in points])


def _times(found: SpacedPoints, lines: Sequence[ChartLine]) -> list[int]:
    """Return the times of a chart: none where nothing is recorded, which is not the same as 0."""
    known = any(value is not None for line in lines for value in line.values)
    return found.times if known else []


async def store_charts(call: PageCall, worst: Sequence[Series]) -> list[Chart]:
    """Return the four charts of the overview; ``worst`` are the series that lag most."""
    step_s = step_of(call)
    wanted = [STORE, OUTBOX, *worst]
    found = await call.served.watched.history.points(wanted, step_s)
    source, every_s = f"/charts?step={step_s}", _EVERY_S[step_s]

    def chart(name: str, title: str, unit: str, lines: list[ChartLine]) -> Chart:
        return Chart(name, title, unit, _times(found, lines), lines, source, every_s)

    title = "Oldest pending message"
    oldest = [_line(found, STORE, lambda one: one.oldest_s, "pending")]
    if call.served.database is not None:
        oldest.insert(0, _line(found, OUTBOX, lambda one: one.lag_s, "staged row"))
        title = "Oldest staged row and pending message"
    return [
        chart(
            "rates",
            "Messages per second",
            "per s",
            [
                _line(found, STORE, lambda one: one.in_per_s, "in"),
                _line(found, STORE, lambda one: one.out_per_s, "out"),
            ],
        ),
        chart(
            "lag",
            "Oldest unread message, worst five",
            "seconds",
            [_line(found, one, lambda point: point.lag_s, name_of(one)) for one in worst]
            or [_line(found, STORE, lambda one: one.lag_s, "all")],
        ),
        chart(
            "pending",
            "Pending messages",
            "messages",
            [_line(found, STORE, lambda one: one.pending, "pending")],
        ),
        chart("oldest", title, "seconds", oldest),
    ]


async def group_charts(call: PageCall, stream: str, group: str) -> list[Chart]:
    """Return lag and rates of a group over time; renewed from the address of its page."""
    return await _object_charts(call, ("group", stream, group), group_link(stream, group))


async def queue_charts(call: PageCall, queue: str) -> list[Chart]:
    """Return what waits in a queue, and its rates, over time."""
    charts = await _object_charts(call, ("queue", queue), queue_link(queue))
    # As the page of a queue calls them.
    words = {"waiting": "ready", "pending": "with consumers"}
    return [
        one._replace(
            lines=[line._replace(label=words.get(line.label, line.label)) for line in one.lines]
        )
        for one in charts
    ]


async def channel_charts(call: PageCall, channel: str) -> list[Chart]:
    """Return what waits in a channel of dirty lists over time, and for how long."""
    charts = await _object_charts(call, ("channel", channel), channel_link(channel))
    words = {
        "lag": ("Waiting members", ("waiting", "reserved")),
        "age": ("Longest wait", ("waiting",)),
        "rates": ("Adds per second", ("added",)),
    }
    drawn = []
    for one in charts:
        title, labels = words[one.name]
        lines = [line._replace(label=label) for line, label in zip(one.lines, labels, strict=False)]
        drawn.append(one._replace(title=title, lines=lines))
    return drawn


async def outbox_charts(call: PageCall) -> list[Chart]:
    """Return what is staged in the outbox over time, for how long, and how it is streamed."""
    step_s = step_of(call)
    found = await call.served.watched.history.points([OUTBOX], step_s)
    wanted: tuple[tuple[str, str, str, str, Callable[[Point], float]], ...] = (
        ("staged", "Staged rows", "messages", "staged", lambda one: one.lag),
        ("age", "Oldest staged row", "seconds", "oldest", lambda one: one.lag_s),
        ("rows", "Rows streamed per second", "per s", "mean of a minute", lambda one: one.in_per_s),
        ("batches", "Batches per second", "per s", "batches", lambda one: one.out_per_s),
    )
    source, every_s = f"/outbox/charts?step={step_s}", _EVERY_S[step_s]
    return [
        Chart(name, title, unit, _times(found, lines), lines, source, every_s)
        for name, title, unit, label, take in wanted
        for lines in [[_line(found, OUTBOX, take, label)]]
    ]


async def consumer_charts(call: PageCall, streams: Sequence[str], consumer: str) -> list[Chart]:
    """Return how far behind a SQL consumer of some streams is over time, and how fast it reads."""
    step_s = step_of(call)
    source, every_s = f"{consumer_link(consumer)}/charts?step={step_s}", _EVERY_S[step_s]
    reader, drawn = f"consumer:{consumer}", sorted(streams)[:_CHARTED]
    series: list[Series] = [("reader", stream, reader) for stream in drawn]
    found = await call.served.watched.history.points(series, step_s)
    wanted: tuple[tuple[str, str, str, Callable[[Point], float]], ...] = (
        ("lag", "Waiting messages", "messages", lambda one: one.lag),
        ("rates", "Messages per second", "per s", lambda one: one.out_per_s),
    )
    return [
        Chart(name, title, unit, _times(found, lines), lines, source, every_s)
        for name, title, unit, take in wanted
        for lines in [[_line(found, one, take, one[1]) for one in series]]
    ]


async def _object_charts(call: PageCall, series: Series, page: str) -> list[Chart]:
    step_s = step_of(call)
    found = await call.served.watched.history.points([series], step_s)
    source, every_s = f"{page}/charts?step={step_s}", _EVERY_S[step_s]

    def chart(name: str, title: str, unit: str, **lines: Callable[[Point], float]) -> Chart:
        drawn = [_line(found, series, take, label) for label, take in lines.items()]
        return Chart(name, title, unit, _times(found, drawn), drawn, source, every_s)

    rates: dict[str, Callable[[Point], float]] = {"out": lambda one: one.out_per_s}
    if series[0] in ("queue", "channel"):
        rates = {"in": lambda one: one.in_per_s, **rates}
    return [
        chart(
            "lag",
            "Waiting messages",
            "messages",
            waiting=lambda one: one.lag,
            pending=lambda one: one.pending,
        ),
        chart(
            "age",
            "Oldest message",
            "seconds",
            waiting=lambda one: one.lag_s,
            pending=lambda one: one.oldest_s,
        ),
        chart("rates", "Messages per second", "per s", **rates),
    ]
