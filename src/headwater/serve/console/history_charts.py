"""Charts of what a store has kept of its past: of all, of a group, of a queue."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from headwater.errors import InvalidInput
from headwater.metrics.history import OUTBOX, RESOLUTIONS, STORE, Point, Series, SpacedPoints
from headwater.serve.console.calls import PageCall
from headwater.serve.console.charts import Chart, ChartLine
from headwater.serve.console.links import channel_link, consumer_link, group_link, queue_link

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
