"""Charts over time: how they are drawn, and those of what a store has kept of its past.

A page makes a ``Chart``, and its template calls ``charts.chart(...)`` of ``charts.html``. The data
goes with the page, in an attribute; a chart with a ``source`` is renewed from that address, whose
answer is what ``charts_json`` returns. Nothing is inline, so the content security policy holds.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec

from headwater.errors import InvalidInput
from headwater.metrics.alarms import CONSUMER
from headwater.metrics.history import OUTBOX, RESOLUTIONS, STORE, Series
from headwater.serve.console.calls import PageCall
from headwater.serve.console.links import channel_link, consumer_link, group_link, queue_link
from headwater.serve.console.render import age, rate, rounded, size

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
    ``every_s`` seconds.
    """

    name: str
    title: str
    unit: str
    times: Sequence[int]
    lines: Sequence[ChartLine]
    source: str | None = None
    every_s: float = 2.0

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


# By the second, by ten seconds, by the minute: how it is spelled, and what time that covers.
STEPS: Final = ((1, "1 s", "5 minutes"), (10, "10 s", "an hour"), (60, "1 min", "a day"))
# So many streams of a consumer have a line.
_CHARTED: Final = 5
_EVERY_S: Final = {1: 2.0, 10: 10.0, 60: 30.0}


class Drawing(NamedTuple):
    """A chart before it has points; ``lines`` name fields of the points, by label."""

    name: str
    title: str
    unit: str
    lines: Mapping[str, str]


_GROUP: Final = (
    Drawing("lag", "Waiting messages", "messages", {"waiting": "lag", "pending": "pending"}),
    Drawing("age", "Oldest message", "seconds", {"waiting": "lag_s", "pending": "oldest_s"}),
    Drawing("rates", "Messages per second", "per s", {"out": "out_per_s"}),
)
# As the page of a queue calls them.
_QUEUE: Final = (
    Drawing("lag", "Waiting messages", "messages", {"ready": "lag", "with consumers": "pending"}),
    Drawing("age", "Oldest message", "seconds", {"ready": "lag_s", "with consumers": "oldest_s"}),
    Drawing("rates", "Messages per second", "per s", {"in": "in_per_s", "out": "out_per_s"}),
)
_CHANNEL: Final = (
    Drawing("lag", "Waiting members", "messages", {"waiting": "lag", "reserved": "pending"}),
    Drawing("age", "Longest wait", "seconds", {"waiting": "lag_s"}),
    Drawing("rates", "Adds per second", "per s", {"added": "in_per_s"}),
)
_OUTBOX: Final = (
    Drawing("staged", "Staged rows", "messages", {"staged": "lag"}),
    Drawing("age", "Oldest staged row", "seconds", {"oldest": "lag_s"}),
    Drawing("rows", "Rows streamed per second", "per s", {"mean of a minute": "in_per_s"}),
    Drawing("batches", "Batches per second", "per s", {"batches": "out_per_s"}),
)
_CONSUMER: Final = (
    Drawing("lag", "Waiting messages", "messages", {"": "lag"}),
    Drawing("rates", "Messages per second", "per s", {"": "out_per_s"}),
)


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


async def _charts(
    call: PageCall, page: str, *wanted: tuple[Drawing, Mapping[str, Series]]
) -> list[Chart]:
    """Return charts of some series, by the prefixes of their labels, that a page renews.

    A chart of which nothing is recorded has no times, which is not the same as 0.
    """
    step_s = step_of(call)
    asked = dict.fromkeys(one for _, series in wanted for one in series.values())
    points = await call.served.watched.history.points([*asked], step_s)
    charts = []
    for drawing, series in wanted:
        lines = [
            ChartLine(
                prefix + label, [point and getattr(point, field) for point in points.series[one]]
            )
            for prefix, one in series.items()
            for label, field in drawing.lines.items()
        ]
        times = points.times if any(line.newest is not None for line in lines) else []
        source, every_s = f"{page}/charts?step={step_s}", _EVERY_S[step_s]
        charts.append(Chart(*drawing[:3], times, lines, source, every_s))
    return charts


async def store_charts(call: PageCall, worst: Sequence[Series]) -> list[Chart]:
    """Return the four charts of the overview; ``worst`` are the series that lag most."""
    store, outbox = {"": STORE}, {"": OUTBOX}
    oldest = Drawing("oldest", "Oldest pending message", "seconds", {"pending": "oldest_s"})
    charts = await _charts(
        call,
        "",
        (
            Drawing(
                "rates", "Messages per second", "per s", {"in": "in_per_s", "out": "out_per_s"}
            ),
            store,
        ),
        (
            Drawing("lag", "Oldest unread message, worst five", "seconds", {"": "lag_s"}),
            {name_of(one): one for one in worst} or {"all": STORE},
        ),
        (Drawing("pending", "Pending messages", "messages", {"pending": "pending"}), store),
        (oldest, store),
        (Drawing("staged", "", "seconds", {"staged row": "lag_s"}), outbox),
    )
    *shown, staged = charts
    if call.served.database is not None:
        lines = [*staged.lines, *shown[-1].lines]
        title = "Oldest staged row and pending message"
        times = staged.times or shown[-1].times
        shown[-1] = shown[-1]._replace(title=title, lines=lines, times=times)
    return shown


async def _charts_of(
    call: PageCall, drawings: Iterable[Drawing], series: Series, page: str
) -> list[Chart]:
    return await _charts(call, page, *((one, {"": series}) for one in drawings))


async def group_charts(call: PageCall) -> list[Chart]:
    """Return lag and rates of the group of a page over time."""
    return await _charts_of(call, _GROUP, ("group", *call.names), group_link(*call.names))


async def queue_charts(call: PageCall) -> list[Chart]:
    """Return what waits in the queue of a page, and its rates, over time."""
    return await _charts_of(call, _QUEUE, ("queue", call.name), queue_link(call.name))


async def channel_charts(call: PageCall) -> list[Chart]:
    """Return what waits in the channel of dirty lists of a page over time, and for how long."""
    return await _charts_of(call, _CHANNEL, ("channel", call.name), channel_link(call.name))


async def outbox_charts(call: PageCall) -> list[Chart]:
    """Return what is staged in the outbox over time, for how long, and how it is streamed."""
    return await _charts_of(call, _OUTBOX, OUTBOX, "/outbox")


async def consumer_charts(call: PageCall, streams: Iterable[str]) -> list[Chart]:
    """Return how far behind a SQL consumer of some streams is over time, and how fast it reads."""
    reader = CONSUMER + call.name
    series: dict[str, Series] = {
        stream: ("reader", stream, reader) for stream in sorted(streams)[:_CHARTED]
    }
    return await _charts(call, consumer_link(call.name), *((one, series) for one in _CONSUMER))
