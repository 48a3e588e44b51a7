"""How many requests a second each token may make, counted in each process for itself."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from headwater.serve.http.messages import Refused
from headwater.serve.tokens import Grant

_MOST_HOLDERS: Final = 10_000


class Rates:
    """Lets each holder of a token make this many requests a second, and as many at once; 0: any."""

    def __init__(self, per_s: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._per_s = per_s
        self._clock = clock
        # For each holder the requests that are left, and when that was.
        self._left: dict[str, tuple[float, float]] = {}

    def take(self, grant: Grant) -> None:
        """Count a request; raises Refused, 429, for one too many."""
        if not self._per_s:
            return
        now = self._clock()
        left, since = self._left.get(grant.holder, (float(self._per_s), now))
        left = min(float(self._per_s), left + (now - since) * self._per_s)
        if left < 1:
            raise Refused(
                429, f"this token may make {self._per_s} requests a second here; retry later"
            )
        if len(self._left) >= _MOST_HOLDERS:
            self._left.clear()
        self._left[grant.holder] = (left - 1, now)
