"""What compaction would remove, estimated from the newest messages of a stream; changes nothing."""

from __future__ import annotations

from typing import Final, NamedTuple

from headwater.log import arrow_compute as pc
from headwater.log.extents import extent
from headwater.log.handles import StreamHandle
from headwater.log.reading import scan_part
from headwater.store.call import Clock, Operation

_PART: Final = 5_000
# Tags are remembered: this many take some 50 MB.
_MOST_TAGS: Final = 500_000


class CompactionEstimate(NamedTuple):
    """Of the newest ``searched`` messages, how many would go, and the share of their bytes.

    ``whole`` says that these are all messages of the stream.
    """

    searched: int
    removed: int
    share: float
    tags: int
    whole: bool


def estimate(stream: str, max_ms: int) -> Operation[CompactionEstimate]:
    """Count what compaction would remove, from the newest message back, for about this long."""
    handle = StreamHandle(stream, set())
    begun = yield Clock()
    bounds = yield from extent(stream)
    seen: set[str] = set()
    searched = removed = size = removed_size = 0
    high = bounds.last
    while high >= bounds.first and len(seen) < _MOST_TAGS:
        if searched and (yield Clock()) - begun >= max_ms:
            break
        at = low = max(high - _PART + 1, bounds.first)
        parts = []
        while at:
            scanned = yield from scan_part(handle, at, high + 1)
            parts += scanned.pieces
            at = scanned.next
        for batch in reversed(parts):
            lengths = pc.binary_length(batch.column("value")).to_pylist()
            for tag, length in zip(
                reversed(batch.column("tag").to_pylist()), reversed(lengths), strict=True
            ):
                searched, size = searched + 1, size + length
                if tag in seen:
                    removed, removed_size = removed + 1, removed_size + length
                seen.add(tag)
        high = low - 1
    share = removed_size / size if size else 0.0
    return CompactionEstimate(searched, removed, share, len(seen), high < bounds.first)
