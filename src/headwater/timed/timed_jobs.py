# Generated from aio_timed_jobs.py by `make derived`, which renews it: change that file.
"""The timed jobs of a store: what an operator may ask and do."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headwater.timed import operating
from headwater.timed.operating import TimedJobInfo
from headwater.timed.states import JobEvent
from headwater.whole_store.client_handles import member_name

if TYPE_CHECKING:
    from headwater.client import Headwater


class TimedJobs:
    """The timed jobs of a store, as an operator sees them."""

    def __init__(self, hw: Headwater) -> None:
        self._run = hw.store.run
        self._by = member_name(hw.store.token())

    def list(self) -> list[TimedJobInfo]:
        """Return how all jobs stand that were ever declared, by their names."""
        return self._run(operating.list_infos())

    def info(self, name: str) -> TimedJobInfo:
        """Return how a job stands; raises UnknownTimedJob."""
        return self._run(operating.info(name))

    def history(self, name: str, count: int = 100) -> tuple[JobEvent, ...]:
        """Return the newest events of a job, oldest first; raises UnknownTimedJob."""
        return self._run(operating.history(name, count))

    def pause(self, name: str) -> bool:
        """Have nothing of a job begun any more; returns whether it was not paused yet.

        Runs that have started finish. Raises UnknownTimedJob.
        """
        return self._run(operating.pause(name, self._by))

    def resume(self, name: str) -> bool:
        """Have a paused job run again; returns whether it was paused.

        What was due while it was paused is not run. Raises UnknownTimedJob.
        """
        return self._run(operating.resume(name, self._by))

    def run(self, name: str) -> None:
        """Have a job run now, by the next runner that has a free place; raises UnknownTimedJob.

        It is recorded as a run by hand, and also happens while the job is paused.
        """
        self._run(operating.run_now(name, self._by))

    def delete(self, name: str) -> bool:
        """Remove a job with its history; returns whether it was there.

        A runner that still has it declares it again.
        """
        return self._run(operating.delete(name))
