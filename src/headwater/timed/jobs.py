"""A timed job as an application declares it: a function, when it is due, and its policies."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, Final, NamedTuple, TypedDict, TypeVar, Unpack, get_args

from headwater.errors import InvalidInput
from headwater.kernel.handlers import check_takes
from headwater.kernel.inputs import Span, check_int, check_span
from headwater.timed.operating import check_job_name
from headwater.timed.states import JobSpec, Missed, Overlap, table_of
from headwater.timed.timetables import LEAST_INTERVAL_MS

# The function of a job, which decorators return as it is.
Job = TypeVar("Job", bound=Callable[..., Any])

MOST_ATTEMPTS: Final = 1000


class JobOptions(TypedDict, total=False):
    """The policies of a timed job; TimedRunner says what each means."""

    name: str
    missed: Missed
    overlap: Overlap
    max_attempts: int
    timeout: Span | None
    jitter: Span


class DueRun(NamedTuple):
    """What a handler is told of its run, if it takes an argument: when it was due, and which try.

    ``due_ms`` is in milliseconds since 1970. ``by_hand`` is set when somebody asked for the run.
    """

    job: str
    due_ms: int
    attempt: int
    by_hand: bool


class TimedJob(NamedTuple):
    """A job: its name, which is that of its history, its handler, and how it is run."""

    name: str
    handler: Callable[..., Any]
    spec: JobSpec
    timeout_ms: int | None
    takes_run: bool

    def call(self, run: DueRun) -> Any:
        """Call the handler, with its run if it takes one; returns what it returns."""
        return self.handler(run) if self.takes_run else self.handler()


class JobPlan(NamedTuple):
    """When a job is due, and its policies; ``job`` makes a job of it and a handler."""

    name: str | None
    spec: JobSpec
    timeout_ms: int | None

    def job(self, handler: Callable[..., Any], name: str | None = None) -> TimedJob:
        """Return a job; its name is that of the plan, else this one, else that of its handler."""
        chosen = self.name or name or name_of(handler)
        return TimedJob(
            check_job_name(chosen), handler, self.spec, self.timeout_ms, _takes_run(handler)
        )


class JobTable:
    """The jobs of a runner, as its decorators declare them."""

    def __init__(self) -> None:
        self.jobs: dict[str, TimedJob] = {}

    def add(self, job: TimedJob) -> None:
        """Add a job; raises InvalidInput when there is one of its name."""
        if job.name in self.jobs:
            raise InvalidInput(
                f"there are two timed jobs named {job.name!r}; give one of them another name="
            )
        self.jobs[job.name] = job

    def every(self, interval: Span, **options: Unpack[JobOptions]) -> Callable[[Job], Job]:
        """Run the function below at each multiple of an interval since 1970; returns it as it is.

        See TimedRunner for the options.
        """
        return self._declaring(every_plan(interval, **options), "every")

    def cron(
        self, expression: str, *, tz: str = "UTC", **options: Unpack[JobOptions]
    ) -> Callable[[Job], Job]:
        """Run the function below when a cron expression matches; returns it as it is.

        See TimedRunner for the options.
        """
        return self._declaring(cron_plan(expression, tz, **options), "cron")

    def _declaring(self, plan: JobPlan, kind: str) -> Callable[[Job], Job]:
        def declare(handler: Job) -> Job:
            # A second job of the same function has a name of its own.
            taken = self.jobs.get(name_of(handler))
            second = taken is not None and taken.handler is handler
            self.add(plan.job(handler, f"{name_of(handler)}.{kind}" if second else None))
            return handler

        return declare


def every_plan(interval: Span, **options: Unpack[JobOptions]) -> JobPlan:
    """Plan for each multiple of an interval since 1970; raises InvalidInput."""
    every_ms = check_span(interval, "the interval", LEAST_INTERVAL_MS)
    return _plan(JobSpec(every_ms=every_ms), **options)


def cron_plan(expression: str, tz: str = "UTC", **options: Unpack[JobOptions]) -> JobPlan:
    """Plan for when a cron expression matches in a time zone; raises InvalidInput."""
    table_of(0, expression, tz)
    return _plan(JobSpec(cron=" ".join(expression.split()), tz=tz), **options)


def _plan(
    when: JobSpec,
    *,
    name: str | None = None,
    missed: Missed = "skip",
    overlap: Overlap = "skip",
    max_attempts: int = 3,
    timeout: Span | None = None,
    jitter: Span = 0,
) -> JobPlan:
    for what, chosen, kinds in (("missed", missed, Missed), ("overlap", overlap, Overlap)):
        if chosen not in get_args(kinds):
            known = ", ".join(map(repr, get_args(kinds)))
            raise InvalidInput(f"{what} must be one of {known}, not {chosen!r}")
    spec = JobSpec(
        *when.when,
        missed=missed,
        overlap=overlap,
        max_attempts=check_int(max_attempts, "max_attempts", 1, MOST_ATTEMPTS),
        jitter_ms=check_span(jitter, "jitter"),
    )
    timeout_ms = None if timeout is None else check_span(timeout, "timeout", 1)
    return JobPlan(None if name is None else check_job_name(name), spec, timeout_ms)


def _takes_run(handler: Any) -> bool:
    """Return whether a handler takes its run; it may also take nothing."""
    try:
        inspect.signature(handler).bind()
    except (TypeError, ValueError):
        check_takes(handler, "run")
        return True
    return False


def name_of(handler: Any) -> str:
    """Return the name of a handler, beneath functools.partial."""
    while hasattr(handler, "func"):
        handler = handler.func
    return str(getattr(handler, "__name__", type(handler).__name__))
