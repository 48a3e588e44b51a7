"""What retention would evict of a stream at present, and whose messages; nothing is changed."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Final, NamedTuple, TypeAlias

from headwater.aio_client import AsyncHeadwater
from headwater.log.keys import stream_key
from headwater.log.retention import RetentionPreview, preview
from headwater.log.types import GroupInfo, Retention, StreamInfo

_Asked: TypeAlias = tuple[str, Retention, int]

# An answer this young is given again.
_FRESH_S: Final = 5.0
_MOST_ANSWERS: Final = 64


class Passed(NamedTuple):
    """A group that retention does not wait for, and how many offsets it would miss."""

    group: str
    missed: int


class RetentionForecast(NamedTuple):
    """What the policy would evict now.

    Of ``due`` offsets ``evicted`` go; the others wait for ``held_by``, which needs ``held_next``.
    ``more``: there may be more of them than one call counts.
    """

    due: int
    more: bool
    evicted: int
    held_by: str | None
    held_next: int | None
    passed: tuple[Passed, ...]


class RetentionForecasts:
    """Forecasts, each by one call of bounded cost, once in five seconds for any number of pages."""

    def __init__(self, hw: AsyncHeadwater, clock: Callable[[], float] = time.monotonic) -> None:
        self._hw = hw
        self._clock = clock
        self._answers: dict[_Asked, tuple[float, RetentionPreview]] = {}

    async def of(self, info: StreamInfo, groups: Iterable[GroupInfo]) -> RetentionForecast | None:
        """Return the forecast of a stream, of which these groups are known; None without limits."""
        if info.retention == Retention(max_idle_ms=info.retention.max_idle_ms):
            return None
        return forecast(info, await self._preview(info), groups, int(time.time() * 1000))

    async def _preview(self, info: StreamInfo) -> RetentionPreview:
        asked = (info.name, info.retention, info.first)
        found = self._answers.get(asked)
        if found is None or self._clock() - found[0] > _FRESH_S:
            call = preview(stream_key(info.name), info.retention, most_calls=1)
            found = (self._clock(), await self._hw.store.run(call))
            self._answers.pop(asked, None)
            self._answers[asked] = found
            while len(self._answers) > _MOST_ANSWERS:
                del self._answers[next(iter(self._answers))]
        return found[1]


def forecast(
    info: StreamInfo, seen: RetentionPreview, groups: Iterable[GroupInfo], now_ms: int
) -> RetentionForecast:
    """Return what becomes of the messages that a preview has found to be due."""
    most_idle_ms = info.retention.max_idle_ms

    def waits(idle_ms: int | None) -> bool:
        return most_idle_ms is None or idle_ms is None or idle_ms <= most_idle_ms

    needs, ignored = dict[str, int](), dict[str, int]()
    for reader, offset in info.readers.items():
        (needs if waits(info.reader_idle_ms.get(reader)) else ignored)[reader] = offset
    for group in groups:
        held = not group.abandoned and waits(now_ms - group.seen_ms)
        (needs if held else ignored)[group.name] = group.ack_offset
    if info.slowest is not None and info.slowest_next is not None:
        # It is known as it is now, and groups only as they were a moment ago.
        needs.pop(info.slowest, None)
        ignored.pop(info.slowest, None)
        is_held = waits(info.slowest_idle_ms)
        (needs if is_held else ignored)[info.slowest] = info.slowest_next
    holder = min(needs, key=needs.__getitem__, default=None)
    held_next = None if holder is None or needs[holder] > seen.limit else needs[holder]
    end = seen.limit if held_next is None else max(held_next, seen.first) - 1
    return RetentionForecast(
        due=max(seen.limit - seen.first + 1, 0),
        more=seen.more,
        evicted=max(end - seen.first + 1, 0),
        held_by=None if held_next is None else holder,
        held_next=held_next,
        passed=tuple(
            Passed(name, end + 1 - max(offset, seen.first))
            for name, offset in sorted(ignored.items(), key=lambda one: one[1])
            if offset <= end
        ),
    )
