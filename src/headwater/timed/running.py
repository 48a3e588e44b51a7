"""What both kinds of runners of timed jobs do alike: names, counts, and what is logged."""

from __future__ import annotations

import logging

from headwater.kernel.inputs import check_int
from headwater.timed.engine import FinishedRun
from headwater.whole_store.client_handles import member_name

MOST_AT_ONCE = 1000

log = logging.getLogger("headwater.timed")


class RunCounts:
    """How many attempts a runner has brought to an end, and how many of them failed."""

    def __init__(self) -> None:
        self.done = 0
        self.failed = 0

    def add(self, finished: FinishedRun) -> None:
        """Count an attempt."""
        if finished.error is not None:
            self.failed += 1
        elif finished.begun:
            self.done += 1


def check_concurrency(concurrency: int) -> int:
    """Accept how many runs are in progress at once."""
    return check_int(concurrency, "concurrency", 1, MOST_AT_ONCE)


def runner_name(token: str) -> str:
    """Return the name of a runner among all: where it runs, and which."""
    return member_name(token)


def log_end(finished: FinishedRun, *, taken_over: bool) -> None:
    """Log a run that failed, or whose end came too late."""
    job, run = finished.taken.job, finished.taken.run
    where = f"timed job {job.name}, due at {run.due_ms}, attempt {run.attempt}"
    if finished.error is not None:
        last = run.attempt >= job.spec.max_attempts
        then = "it is given up" if last else "it is retried"
        log.error("%s failed; %s", where, then, exc_info=finished.error)
    if taken_over:
        log.warning("%s ended after another runner had taken it over", where)
