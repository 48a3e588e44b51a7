"""A rate that holds over time: a bucket of tokens that refills."""

from __future__ import annotations

import time
from collections.abc import Callable


class Bucket:
    """Grants ``rate`` tokens a second, and as many at once after a second of rest."""

    def __init__(self, rate: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._rate = rate
        self._clock = clock
        self._tokens = float(rate)
        self._filled = clock()

    def take(self, n: int) -> bool:
        """Take n tokens, or none; who needs more than there can ever be needs a full bucket.

        What it takes beyond that is owed.
        """
        self._fill()
        if not self._rate or self._tokens < min(n, self._rate):
            return False
        self._tokens -= n
        return True

    def take_some(self, n: int) -> int:
        """Take as many of n tokens as there are."""
        self._fill()
        granted = max(0, min(n, int(self._tokens)))
        self._tokens -= granted
        return granted

    def _fill(self) -> None:
        now = self._clock()
        self._tokens = min(self._rate, self._tokens + (now - self._filled) * self._rate)
        self._filled = now
