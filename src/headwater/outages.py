"""Outages: how long to wait before a retry, and what to log of it.

An outage is logged when it begins and when it is over, whatever the number of retries in between.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from headwater.errors import StoreError

FIRST_DELAY_S = 0.05
LONGEST_DELAY_S = 2.0
# How long work that has an end waits out an outage; what runs on and on waits as long as it lasts.
PATIENCE_S = 60.0
# How long a program that runs on and on waits at its start for a store that is not there yet.
START_MS = 30_000


def store_may_recover(error: StoreError) -> bool:
    """Return whether the store may serve by the next retry, without anybody doing anything."""
    return not error.lasting


def delay_s(failures: int, first_s: float, longest_s: float) -> float:
    """Return how long to wait after so many failures in a row: twice as long after each."""
    return min(first_s * 2.0 ** min(failures - 1, 60), longest_s)


class Outage:
    """One outage after another, each logged when it begins and when it is over.

    ``most_s`` is how long the caller retries, when it does not retry forever.
    """

    BEGIN = "%s is held up, and retries %s: %s"
    END = "%s works again, after %.1f s and %d tries"

    def __init__(
        self,
        who: str,
        log: logging.Logger,
        clock: Callable[[], float] = time.monotonic,
        *,
        most_s: float | None = None,
    ) -> None:
        self._who = who
        self._how_long = "until it works" if most_s is None else f"for up to {most_s:g} s"
        self._log = log
        self._clock = clock
        self._failures = 0
        self._since = 0.0
        self._logged = False

    def meet(self, error: BaseException) -> float:
        """Note an error, and log the first; returns the seconds to wait before the next try."""
        self._failures += 1
        if self._failures == 1:
            self._since = self._clock()
        if not self._logged and self._is_worth_logging(error, self._failures):
            self._logged = True
            why = self._reason(error)
            self._log.warning(self.BEGIN, self._who, self._how_long, why)
        return delay_s(self._failures, FIRST_DELAY_S, LONGEST_DELAY_S)

    @property
    def lasts_s(self) -> float:
        """How long the outage lasts that is under way; 0 when there is none."""
        return self._clock() - self._since if self._failures else 0.0

    def over(self) -> None:
        """Note that it works again, and log the end of an outage."""
        if self._logged:
            took = self._clock() - self._since
            self._log.warning(self.END, self._who, took, self._failures)
        self._failures, self._logged = 0, False

    def _reason(self, error: BaseException) -> str:
        return str(error).strip().partition("\n")[0]

    def _is_worth_logging(self, error: BaseException, failures: int) -> bool:  # noqa: ARG002
        return True
