"""The history of a store as the pages of a process read it: each answer serves all for a moment."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Final, TypeAlias

from headwater.aio_client import AsyncHeadwater
from headwater.metrics.history import (
    KeptHistory,
    Series,
    SpacedPoints,
    kept_history,
    read_points,
)

_Asked: TypeAlias = "tuple[tuple[Series, ...], int, int | None]"

# An answer this young is given again.
_FRESH_S: Final = 2.0
_KEPT_FRESH_S: Final = 10.0
_MOST_ANSWERS: Final = 64


class CachedHistory:
    """Reads the history, at most once in two seconds for any number of pages that ask the same."""

    def __init__(self, hw: AsyncHeadwater, clock: Callable[[], float] = time.monotonic) -> None:
        self._hw = hw
        self._clock = clock
        self._answers: dict[_Asked, tuple[float, SpacedPoints]] = {}
        self._kept: tuple[float, KeptHistory] | None = None

    async def points(
        self,
        series: Sequence[Series],
        step_s: int,
        span_s: int | None = None,
        fresh_s: float = _FRESH_S,
    ) -> SpacedPoints:
        """Return the points of some series up to now, or up to ``fresh_s`` before."""
        asked = (tuple(series), step_s, span_s)
        found = self._answers.get(asked)
        if found is None or self._clock() - found[0] > fresh_s:
            points = await self._hw.store.run(read_points(series, step_s, span_s))
            found = (self._clock(), points)
            self._answers.pop(asked, None)
            self._answers[asked] = found
            while len(self._answers) > _MOST_ANSWERS:
                del self._answers[next(iter(self._answers))]
        return found[1]

    async def kept(self) -> KeptHistory:
        """Return what is kept, and how much space it takes."""
        if self._kept is None or self._clock() - self._kept[0] > _KEPT_FRESH_S:
            self._kept = (self._clock(), await self._hw.store.run(kept_history()))
        return self._kept[1]
