"""One part while it runs: what it is doing, how often it died, and when it is started again."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Final, Literal, NamedTuple, TypeAlias

from headwater.app.parts import Part, PartCounts, Work
from headwater.kernel.failures import delay_s

log = logging.getLogger("headwater.app")

PartStatus: TypeAlias = Literal["starting", "running", "resting", "stopped"]
FIRST_REST_S: Final = 0.5
LONGEST_REST_S: Final = 30.0
# A part that ran for this long before it died is restarted as if it died for the first time.
WELL_S: Final = 60.0


class PartState(NamedTuple):
    """What is known of a part at a moment; ``why`` is what it died of."""

    name: str
    kind: str
    object: str
    status: PartStatus
    counts: PartCounts
    restarts: int
    why: str | None = None


class PartRun:
    """A part in one process; ``over`` decides when it is started again."""

    def __init__(self, part: Part, clock: Callable[[], float] = time.monotonic) -> None:
        self.part = part
        self.status: PartStatus = "starting"
        self.why: str | None = None
        self.restarts = 0
        self._deaths = 0
        self._clock = clock
        self._began = clock()
        self._work: Work | None = None
        self._before = PartCounts()
        self._stopping = False
        # Between a start and a request to stop, which come from different threads.
        self._lock = threading.Lock()

    def begin(self, work: Work) -> bool:
        """Note that the work is opened; returns whether it should run."""
        with self._lock:
            self._work = work
            self._began = self._clock()
            self.status = "stopped" if self._stopping else "running"
            return not self._stopping

    def over(self, error: BaseException | None) -> float | None:
        """Note that the work has ended; returns the seconds until its next start, if any."""
        with self._lock:
            self._before = self._total()
            self._work = None
            if self._stopping:
                self.status = "stopped"
                if error is not None:
                    log.warning("part %s failed as it stopped: %s", self.part.name, _reason(error))
                return None
            if self.status == "running" and self._clock() - self._began >= WELL_S:
                self._deaths = 0
            self._deaths += 1
            self.restarts += 1
            self.status = "resting"
            self.why = "it ended by itself" if error is None else _reason(error)
        rest_s = delay_s(self._deaths, FIRST_REST_S, LONGEST_REST_S)
        log.error(
            "part %s died, and is started again in %g s: %s",
            self.part.name, rest_s, self.why, exc_info=error,
        )  # fmt: skip
        return rest_s

    def stop(self) -> None:
        """Ask the work to end, or not to begin."""
        with self._lock:
            self._stopping = True
            if self._work is not None:
                self._work.stop()

    def ended(self) -> None:
        """Note that nothing of it runs any more."""
        self.status = "stopped"

    def give_back(self) -> int:
        """Return what the work still holds; returns how many messages."""
        work = self._work
        return 0 if work is None else self.part.give_back(work)

    def state(self) -> PartState:
        """Return what is known of the part now."""
        part = self.part
        why = self.why if self.status == "resting" else None
        return PartState(
            part.name, part.kind, part.object, self.status, self._total(), self.restarts, why
        )

    def _total(self) -> PartCounts:
        work = self._work
        return self._before if work is None else self._before.plus(self.part.counts(work))


def _reason(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}".strip().partition("\n")[0]
