"""Everything that lags, the worst first: groups, readers, queries, queues, dirty lists."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from headwater.metrics.alarms import CONSUMER, consumer_letters
from headwater.metrics.history import Point, Series, counted
from headwater.metrics.sweeps import StoreSample
from headwater.serve.console.links import (
    channel_link,
    consumer_link,
    group_link,
    queue_link,
    stream_link,
)
from headwater.views.overview import live_members

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
        link, members = group_link(stream, group.name), len(live_members(group, sample.now_ms))
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
    for query in sample.queries:
        if query.is_live:
            series, name = ("query", query.query), query.name or query.query
            where = tuple(read.stream for read in query.reads)
            yield Lagging(series, "Spark", name, where, "/spark", points[series])
    for queue in sample.queues:
        series, link = ("queue", queue.name), queue_link(queue.name)
        point = points[series]
        yield Lagging(series, "queue", queue.name, (), link, point, queue.dead)
    for channel in sample.channels:
        series = ("channel", channel.name)
        link = channel_link(channel.name)
        yield Lagging(series, "dirty list", channel.name, (), link, points[series])
