"""Views of timed jobs: how they stand, and what happened to them."""

from __future__ import annotations

from headwater.timed.operating import TimedJobInfo
from headwater.timed.states import ActiveRun, EndedRun, JobEvent, Missed, Outcome, Overlap
from headwater.views.record import View, copied, mirror

JobEventView = mirror("JobEventView", JobEvent)


class ActiveRunView(View, frozen=True, kw_only=True):
    """A run that waits until ``at_ms``, or is being run ``by`` a runner since ``began_ms``."""

    due_ms: int
    at_ms: int
    attempt: int
    by: str
    began_ms: int
    by_hand: bool

    @classmethod
    def of(cls, run: ActiveRun) -> ActiveRunView:
        """Return the view of a run."""
        return cls(**copied(cls, run))


class EndedRunView(View, frozen=True, kw_only=True):
    """How a run ended."""

    due_ms: int
    ended_ms: int
    outcome: Outcome
    attempt: int
    by: str
    took_ms: int
    error: str
    by_hand: bool

    @classmethod
    def of(cls, run: EndedRun) -> EndedRunView:
        """Return the view of a run."""
        return cls(**copied(cls, run))


class TimedJobView(View, frozen=True, kw_only=True):
    """How a timed job stands; see the Python class TimedJobInfo."""

    name: str
    when: str
    tz: str
    missed: Missed
    overlap: Overlap
    max_attempts: int
    paused: bool
    next_ms: int | None
    running: list[ActiveRunView]
    waiting: list[ActiveRunView]
    last: EndedRunView | None
    missed_runs: int
    skipped_runs: int

    @classmethod
    def of(cls, info: TimedJobInfo) -> TimedJobView:
        """Return the view of a job."""
        own = {
            "running": [ActiveRunView.of(run) for run in info.running],
            "waiting": [ActiveRunView.of(run) for run in info.waiting],
            "last": None if info.last is None else EndedRunView.of(info.last),
        }
        return cls(**copied(cls, info, **own))
