"""A page of a timeline as servers return it: read in steps, and no more once it has 4 MiB."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from headwater.kernel.headers import LIST_BYTES
from headwater.kernel.inputs import check_int
from headwater.timeline.records import MAX_SIZE, Cursor, Record

if TYPE_CHECKING:
    from headwater.timeline.farm.aio_farm import AsyncFarm

# Members may be large: a page begins with so many, and goes on by their size.
_FIRST: Final = 16


class TimelinePart(NamedTuple):
    """Records of a timeline, the newest first, and why some may be missing."""

    records: list[Record]
    failures: list[Any]


async def timeline_part(
    farm: AsyncFarm, key: Any, offset: int, limit: int, start: Any = None, stop: Any = None
) -> TimelinePart:
    """Return records by rank, or behind and before places; with places, offset is 0."""
    records: list[Record] = []
    failures: list[Any] = []
    size = 0
    step = min(check_int(limit, "limit", 1, MAX_SIZE), _FIRST)
    while True:
        if start is None and stop is None:
            found = await farm.select([key], offset, step)
        else:
            found = await farm.select_range([key], start, stop, step)
        some = found[key]
        failures += [one for one in found.failures if str(one) not in map(str, failures)]
        for record in some:
            records.append(record)
            size += len(record.member)
            if size >= LIST_BYTES:
                return TimelinePart(records, failures)
        if len(some) < step or len(records) >= limit:
            return TimelinePart(records, failures)
        # What is inserted meanwhile does not move a place.
        start = Cursor.of(records[-1])
        fitting = (LIST_BYTES - size) * len(records) // max(size, 1)
        step = max(1, min(limit - len(records), fitting))
