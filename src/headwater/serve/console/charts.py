"""Charts over time: what a page draws as SVG before scripts, and what charts.js draws from then on.

A page makes a ``Chart``, and its template calls ``charts.chart(...)`` of ``charts.html``. The data
goes with the page, in an attribute; a chart with a ``source`` is renewed from that address, whose
answer is what ``charts_json`` returns. Nothing is inline, so the content security policy holds.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final, NamedTuple

import msgspec

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
