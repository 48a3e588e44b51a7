"""Which time it is for timed jobs: that of the store. No clock of a runner decides anything.

A runner gets the time of the store with each beat, and continues with its own monotonic clock. What
it takes for the time is never ahead of the store: a reply is older when it arrives.

A test gives a runner a clock of its own, ``clock=``: any function that returns milliseconds since
1970. Then all that the runner decides and writes goes by that clock, also which runner is lost.
"""

from __future__ import annotations

import time
from collections.abc import Callable

# A clock as tests give it: milliseconds since 1970.
NowMs = Callable[[], int]


class HeardClock:
    """The time of the store, as it was heard last, and the time that has passed here since."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._heard_ms = 0
        self._heard_at = monotonic()

    def __call__(self) -> int:
        """Return the milliseconds since 1970."""
        return self._heard_ms + int((self._monotonic() - self._heard_at) * 1000)

    def heard(self, time_ms: int) -> None:
        """Take over the time of the store, which a reply has just brought."""
        self._heard_ms, self._heard_at = time_ms, self._monotonic()
