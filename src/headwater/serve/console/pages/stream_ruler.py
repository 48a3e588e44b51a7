"""The ruler of a stream for its pages: who reads it, and where each of them stands."""

from __future__ import annotations

import time
from typing import Final, NamedTuple

from headwater.errors import HeadwaterError
from headwater.log.handles import GroupHandle, StreamHandle
from headwater.log.inspecting import (
    GroupRuler,
    StreamProfile,
    TimeBar,
    group_ruler,
    histogram,
    lag_at,
    stream_profile,
)
from headwater.log.types import GroupInfo, StreamInfo
from headwater.metrics.alarms import CONSUMER
from headwater.outbox.status import Checkpoint
from headwater.serve.console.calls import PageCall
from headwater.serve.console.links import consumer_link
from headwater.serve.console.outside_readers import registered_reader, spark_reads
from headwater.serve.console.render import age
from headwater.serve.console.ruler import OutsideReader, RulerPicture, Stretch, draw, window_of
from headwater.spark.queries.status import query_statuses
from headwater.store.many import together
from headwater.views import overview
from headwater.views.overview import StreamGroup

# How many rows and cells a ruler has, and how many places of the index a page looks at.
_ROWS: Final = 40
_CELLS: Final = 250
_SAMPLE: Final = 128
_BARS: Final = 60


class StreamRuler(NamedTuple):
    """A ruler with what its page shows beside it.

    ``hidden`` rows are not drawn; ``times`` are offsets with their times, for whoever points at
    the picture; ``without`` says who could not be asked.
    """

    picture: RulerPicture
    hidden: int
    bars: list[TimeBar]
    times: list[tuple[int, int]]
    profile: StreamProfile
    groups: list[StreamGroup]
    without: str | None


async def ruler_of(call: PageCall, info: StreamInfo) -> StreamRuler:
    """Return the ruler of a stream: one call for each group, none for a message."""
    window = window_of(info, call.number("first"), call.number("last"))
    rows = await call.hw.store.run(overview.groups_of([info]))
    rulers = await group_rulers(call, info.name, rows[:_ROWS], window)
    readers, without = await outside_readers(call, info)
    now_ms = int(time.time() * 1000)
    picture = draw(info, window, rulers, readers[:_ROWS], now_ms)
    profile = await call.hw.store.run(stream_profile(info.name, window.first, window.last, _SAMPLE))
    return StreamRuler(
        picture=picture,
        hidden=max(len(rows) - _ROWS, 0) + max(len(readers) - _ROWS, 0),
        bars=histogram(profile, window.first, window.last, _BARS),
        times=profile.points(window.first, window.last)[:: max(len(profile.sample) // 64, 1)],
        profile=profile,
        groups=rows,
        without=without,
    )


async def group_rulers(
    call: PageCall, stream: str, rows: list[StreamGroup], window: Stretch, cells: int = _CELLS
) -> list[tuple[GroupInfo, GroupRuler]]:
    """Return what became of a window in each group; one that is removed meanwhile is left out."""
    handles = [GroupHandle(StreamHandle(stream, set()), row.group.name, "console") for row in rows]
    rulers = await call.hw.store.run(
        together(group_ruler(one, window.first, window.last, cells) for one in handles)
    )
    return [
        (row.group, ruler) for row, ruler in zip(rows, rulers, strict=True) if ruler is not None
    ]


async def outside_readers(
    call: PageCall, info: StreamInfo
) -> tuple[list[OutsideReader], str | None]:
    """Return who reads a stream from outside the log, and who could not be asked."""
    consumers, without = await _consumers(call, info.name)
    readers = [
        registered_reader(name, needed, info.reader_lag_ms[name])
        for name, needed in sorted(info.readers.items())
        if name.removeprefix(CONSUMER) not in consumers
    ]
    lags = await call.hw.store.run(
        together(lag_at(info.name, one.next_offset) for one in consumers.values())
    )
    readers += [
        OutsideReader(
            "SQL",
            name,
            one.next_offset,
            f"last progress {age(one.idle_ms)} ago",
            lag.lag_ms,
            consumer_link(name),
        )
        for (name, one), lag in zip(consumers.items(), lags, strict=True)
    ]
    for query in await call.hw.store.run(query_statuses()):
        readers += spark_reads(query, info.name)
    return readers, without


async def _consumers(call: PageCall, stream: str) -> tuple[dict[str, Checkpoint], str | None]:
    """Return where the SQL consumers of a stream are, in the order of their names."""
    if call.served.database is None:
        return {}, None
    try:
        status = await call.served.database.status()
    except HeadwaterError as error:
        return {}, f"SQL consumers are not shown as their database says: {error}"
    own = [one for one in status.checkpoints if one.stream == stream]
    return {one.consumer: one for one in sorted(own, key=lambda one: one.consumer)}, None
