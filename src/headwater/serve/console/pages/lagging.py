"""What is wrong and what lags, the worst first, with links: alarms, and everything that reads."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple

from headwater.metrics.alarms import CONSUMER, KINDS, Alarm, consumer_letters
from headwater.metrics.history import Point, Series, counted
from headwater.metrics.sweeps import StoreSample
from headwater.serve.console.links import (
    Place,
    channel_link,
    consumer_link,
    group_link,
    job_link,
    query,
    queue_link,
    stream_link,
)
from headwater.views.overview import live_members

# So many alarms of a kind are lines of their own; more become one line.
_APART: Final = 3
# The page that shows all objects of which something is wrong, by their kind.
_PAGES: Final = {
    "group": "/streams",
    "stream": "/streams",
    "queue": "/queues",
    "consumer": "/consumers",
    "consumer letters": "/dead#of-consumers",
}
_LINKS: Final[dict[str, Callable[..., str]]] = {
    "group": group_link,
    "stream": stream_link,
    "queue": queue_link,
    "consumer": consumer_link,
    "timed": job_link,
}


class AlarmButton(NamedTuple):
    """An action of the console: its words, its name, its fields, and the object it changes."""

    words: str
    do: str
    fields: dict[str, str]
    name: str


def link_of(alarm: Alarm) -> str:
    """Return the page of what an alarm is about, from the root of the console on."""
    kind, *names = alarm.about
    if alarm.kind == "dead":
        return "/dead" if alarm.members else f"/dead?{query(place=_place(alarm).key)}"
    if kind in _LINKS and not alarm.members:
        return _LINKS[kind](*names)
    return _PAGES.get(kind, f"/{kind}")


def button_of(alarm: Alarm) -> AlarmButton | None:
    """Return the action that helps, if there is one."""
    kind, *names = alarm.about
    if alarm.kind == "dead":
        # Dead letters of many places are redriven everywhere by one job.
        where = {} if alarm.members else {"place": _place(alarm).key}
        fields = {"action": "redrive", "which": "all"} | where
        return AlarmButton("Redrive all", "letters", fields, names[0])
    keys = ("stream", "group") if kind == "group" else ("queue",)
    actions = {"abandoned": ("Remove", "remove"), "paused": ("Resume", f"{kind}-state")}
    if alarm.members or alarm.kind not in actions:
        return None
    return AlarmButton(*actions[alarm.kind], dict(zip(keys, names, strict=True)), names[0])


def _place(alarm: Alarm) -> Place:
    _, name, *group = alarm.about
    return Place(name, group[0] if group else "")


def gathered(alarms: Sequence[Alarm]) -> list[Alarm]:
    """Return alarms in their order; those of a kind with many as one, where its first was."""
    kinds: dict[str, list[Alarm]] = {}
    for one in alarms:
        kinds.setdefault(one.kind, []).append(one)
    shown = []
    for one in alarms:
        same = kinds[one.kind]
        if not KINDS[one.kind].many or len(same) <= _APART:
            shown.append(one)
        elif one is same[0]:
            shown.append(_together(same))
    return shown


def _together(same: list[Alarm]) -> Alarm:
    times = [one.since_ms for one in same if one.since_ms is not None]
    return same[0]._replace(
        text=KINDS[same[0].kind].many.format(
            n=f"{len(same):,}", count=f"{sum(one.amount for one in same):,}"
        ),
        since_ms=min(times, default=None),
        first_seen=any(one.first_seen for one in same),
        detail="",
        members=tuple(same),
    )


# As many lines the chart of what lags has.
_WORST: Final = 5


class Lagging(NamedTuple):
    """An object for which something waits, and how it stands."""

    series: Series
    kind: str
    name: str
    # The streams that it reads.
    where: tuple[str, ...]
    link: str
    point: Point
    dead: int = 0
    members: int | None = None

    @property
    def rank(self) -> tuple[float, float, float, str]:
        """What is worse comes first: by age, by number, by what is pending."""
        one = self.point
        return -max(one.lag_s, one.oldest_s), -one.lag, -one.pending, self.name


def lagging(sample: StoreSample) -> list[Lagging]:
    """Return everything that waits or is pending, the worst first."""
    waits = (row for row in every_reader(sample) if row.point.lag or row.point.pending or row.dead)
    return list(waits)


def every_reader(sample: StoreSample) -> list[Lagging]:
    """Return everybody who reads, the worst first, and those who are level by name."""
    return sorted(_rows(sample), key=lambda row: row.rank)


def worst_of(rows: list[Lagging]) -> list[Series]:
    """Return the few that lag most, as the history knows them."""
    known = [row.series for row in rows if row.kind in ("group", "queue") and row.point.lag]
    return known[:_WORST]


def _rows(sample: StoreSample) -> Iterator[Lagging]:
    points = {series: point for series, _, _, point in counted(sample)}
    for stream, group in sample.groups:
        series: Series = ("group", stream, group.name)
        link = group_link(stream, group.name)
        members = len(live_members(group, now_ms=sample.now_ms))
        point = points[series]
        yield Lagging(series, "group", group.name, (stream,), link, point, group.dead, members)
    given_up = {(one.stream, one.consumer): one.dead for one in consumer_letters(sample)}
    for info in sample.streams:
        for reader in info.readers:
            series = ("reader", info.name, reader)
            name, point = reader.removeprefix(CONSUMER), points[series]
            where: tuple[str, ...] = (info.name,)
            if name == reader:
                link = stream_link(info.name) + "/groups"
                yield Lagging(series, "reader", name, where, link, point)
            else:
                dead = given_up.get((info.name, name), 0)
                link = consumer_link(name)
                yield Lagging(series, "SQL consumer", name, where, link, point, dead)
    for status in sample.queries:
        if status.is_live:
            series, name = ("query", status.query), status.name or status.query
            where = tuple(read.stream for read in status.reads)
            yield Lagging(series, "Spark", name, where, "/spark", points[series])
    for queue in sample.queues:
        series, link = ("queue", queue.name), queue_link(queue.name)
        point = points[series]
        yield Lagging(series, "queue", queue.name, (), link, point, queue.dead)
    for channel in sample.channels:
        series = ("channel", channel.name)
        link = channel_link(channel.name)
        yield Lagging(series, "dirty list", channel.name, (), link, points[series])
