"""A place for a process of an application: who is there, when it has to go, when the next begins.

A process that dies, or uses too much memory, soon after its start is started again later each time.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Literal

from headwater.app.child_messages import Stop
from headwater.app.part_run import FIRST_REST_S, LONGEST_REST_S, WELL_S
from headwater.app.plan import ProcessPlan
from headwater.app.process import GRACE_S, ChildProcess, how_it_ended
from headwater.kernel.failures import delay_s

log = logging.getLogger("headwater.app")

_MB: Final = 1_000_000


@dataclass(slots=True)
class ProcessPlace:
    """A process that should exist, and the one that there is."""

    plan: ProcessPlan
    process: ChildProcess | None = None
    start_at: float = 0.0
    clock: Callable[[], float] = time.monotonic
    _replaced_for: Literal["memory", "stuck"] | None = None
    _replaced_at: float = 0.0
    _short_lives: int = 0

    def __str__(self) -> str:
        return f"process {self.plan.number} ({', '.join(self.plan.parts)})"

    def replace_if_unfit(self, process: ChildProcess, memory: int, drain_ms: int) -> None:
        """Drain a process that has grown past its memory, or whose threads run past their time."""
        stuck = [part.name for part in process.parts.values() if part.stuck]
        if self._replaced_for is not None or not (stuck or 0 < memory < process.memory):
            return
        self._replaced_for = "stuck" if stuck else "memory"
        self._replaced_at = self.clock()
        why = f"uses {process.memory // _MB} MB, and --max-memory allows {memory // _MB} MB"
        if stuck:
            why = f"has a handler of {stuck[0]} that runs past its time"
        log.warning("%s %s: it is drained and replaced", self, why)
        process.tell(Stop())
        process.kill_after(drain_ms / 1000 + GRACE_S)

    def bury(self, process: ChildProcess, code: int) -> bool:
        """Note that the process has ended, and when the next is started; returns whether it died.

        It did not die when it was replaced.
        """
        replaced_for, self._replaced_for = self._replaced_for, None
        # Its drain is no part of its life: it may take long.
        lived_s = (self._replaced_at if replaced_for else self.clock()) - process.started
        self.process = None
        self.start_at = 0.0
        if lived_s >= WELL_S:
            self._short_lives = 0
        if replaced_for == "stuck" or (replaced_for and lived_s >= WELL_S):
            return False
        self._short_lives += 1
        rest_s = delay_s(self._short_lives, FIRST_REST_S, LONGEST_REST_S)
        self.start_at = self.clock() + rest_s
        if replaced_for is None:
            log.error("%s %s, and is started again in %g s", self, how_it_ended(code), rest_s)
            return True
        words = (
            "%s exceeded its memory within %.0f s, and is started again in %g s; "
            "raise --max-memory, or let its handlers hold less"
        )
        log.warning(words, self, lived_s, rest_s)
        return False
