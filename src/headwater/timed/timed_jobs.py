# Generated from aio_timed_jobs.py by `make derived`, which renews it: change that file.
"""The timed jobs of a store: what an operator may ask and do."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headwater.kernel.declaring import Scope, operation
from headwater.timed import operating
from headwater.timed.operating import EventCount, TimedJobInfo
from headwater.timed.states import JobEvent
from headwater.whole_store.members import member_name

if TYPE_CHECKING:
    from headwater.client import Headwater


class TimedJobs:
    """The timed jobs of a store, as an operator sees them.

    The history of a job shows ``by`` as the name of who changed it.
    """

    def __init__(self, hw: Headwater, by: str | None = None) -> None:
        self._run = hw.store.run
        self._by = by or member_name(hw.store.token())

    def list(self) -> list[TimedJobInfo]:
        """Return how all jobs stand that were ever declared, by their names."""
        return self._run(operating.list_infos())

    @operation(Scope.READ, http="GET", override=("command line",))
    def info(self, name: str) -> TimedJobInfo:
        """Return how a timed job stands: when it is due, what runs, how its last run ended.

        Raises UnknownTimedJob.
        """
        return self._run(operating.info(name))

    @operation(Scope.READ, "events", http="GET history", override=("command line",))
    def history(self, name: str, count: EventCount = 100) -> tuple[JobEvent, ...]:
        """Return the newest events of a timed job, oldest first.

        Raises UnknownTimedJob.
        """
        return self._run(operating.history(name, count))

    @operation(Scope.ADMIN, "changed", says="paused", says_not="paused already")
    def pause(self, name: str) -> bool:
        """Start no run of a timed job until it is resumed; returns whether that changed anything.

        Runs that have started finish. Raises UnknownTimedJob.
        """
        return self._run(operating.pause(name, self._by))

    @operation(Scope.ADMIN, "changed", says="runs", says_not="runs already")
    def resume(self, name: str) -> bool:
        """Run a paused timed job again; returns whether it was paused.

        What was due while it was paused is not run. Raises UnknownTimedJob.
        """
        return self._run(operating.resume(name, self._by))

    @operation(Scope.ADMIN, says="asked for a run; a runner begins it within a second or two")
    def run(self, name: str) -> None:
        """Run a timed job now, paused or not, in the next runner that has a free place.

        It is recorded as a run by hand. Raises UnknownTimedJob.
        """
        self._run(operating.run_now(name, self._by))

    @operation(
        Scope.ADMIN,
        "deleted",
        says="deleted",
        asks="Delete {job} with its history?",
        must=True,
        http="DELETE",
        resp="CRONDEL",
    )
    def delete(self, name: str) -> bool:
        """Remove a timed job with its history; a runner that still has it declares it again.

        Returns whether it was there.
        """
        return self._run(operating.delete(name))
