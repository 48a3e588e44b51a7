"""Since when messages wait for groups and readers, by when the stream had reached their offsets.

For a sealed message, the store knows only the time of the newest message in its node. A process
that samples the stream has seen when each offset was reached, so it knows better, as far back as it
has sampled.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import replace
from typing import Final

from headwater.log.types import GroupInfo, StreamInfo
from headwater.views.overview import StreamGroup

# As many moments are remembered of a stream; when there are more, they are thinned out, so that one
# of some age is known to a 25th of that.
_MOMENTS: Final = 300
_CLOSE: Final = 25


class LagClock:
    """Remembers when streams had reached which offset."""

    def __init__(self) -> None:
        self._seen: dict[str, tuple[list[int], list[int]]] = {}

    def measured(
        self, now_ms: int, streams: list[StreamInfo], groups: list[StreamGroup]
    ) -> tuple[list[StreamInfo], list[StreamGroup]]:
        """Note where streams are; return them and groups with how long messages have waited."""
        read = {row.stream for row in groups}
        self._seen = {
            one.name: self._noted(now_ms, one) for one in streams if one.readers or one.name in read
        }
        measured = [self._of_readers(now_ms, one) if one.readers else one for one in streams]
        return measured, [row._replace(group=self._of_group(row)) for row in groups]

    def _noted(self, now_ms: int, info: StreamInfo) -> tuple[list[int], list[int]]:
        lasts, times = self._seen.get(info.name, ([], []))
        if lasts and info.last < lasts[-1]:
            lasts, times = [], []  # it was deleted, and begins again
        if not lasts or info.last > lasts[-1]:
            lasts.append(info.last)
            times.append(now_ms)
        if len(lasts) > _MOMENTS:
            lasts, times = _thinned(now_ms, lasts, times)
        return lasts, times

    def _of_readers(self, now_ms: int, info: StreamInfo) -> StreamInfo:
        ages = {
            reader: self._age_ms(now_ms, info, reader, said_ms)
            for reader, said_ms in info.reader_lag_ms.items()
        }
        return replace(info, reader_lag_ms=ages)

    def _age_ms(self, now_ms: int, info: StreamInfo, reader: str, said_ms: int) -> int:
        needed = max(info.readers[reader], info.first)
        if needed > info.last:
            return 0
        since_ms = self._since(info.name, needed, now_ms - said_ms)
        return said_ms if since_ms is None else max(now_ms - since_ms, said_ms)

    def _of_group(self, row: StreamGroup) -> GroupInfo:
        facts = row.group
        new = self._since(row.stream, facts.next, facts.new_since_ms)
        pending = self._since(row.stream, facts.ack_offset, facts.pending_since_ms)
        if (new, pending) == (facts.new_since_ms, facts.pending_since_ms):
            return facts
        return replace(facts, new_since_ms=new, pending_since_ms=pending)

    def _since(self, stream: str, offset: int, said_ms: int | None) -> int | None:
        """Return since when an offset waits; None when the store says that it does not."""
        seen = self._seen.get(stream)
        if said_ms is None or seen is None:
            return said_ms
        lasts, times = seen
        place = bisect_left(lasts, offset)
        return min(said_ms, times[place]) if place < len(times) else said_ms


def _thinned(now_ms: int, lasts: list[int], times: list[int]) -> tuple[list[int], list[int]]:
    kept_ms = -float("inf")
    places = []
    for place, time_ms in enumerate(times):
        if time_ms - kept_ms >= (now_ms - time_ms) / _CLOSE:
            places.append(place)
            kept_ms = time_ms
    # However long a process runs, the oldest go.
    places = places[-_MOMENTS + 50 :]
    return [lasts[place] for place in places], [times[place] for place in places]
