"""Timed jobs as a part of an application: all of one kind, sync or async, in one runner."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, Final, Protocol

from headwater.app.parts import Fault, Part, PartCounts, Work
from headwater.app.resources import Resources
from headwater.kernel.handlers import is_async
from headwater.timed.jobs import JobTable, TimedJob

# The parts of an application that run timed jobs: handlers in threads, and on the event loop.
SYNC_PART: Final = "timed"
ASYNC_PART: Final = "timed-async"


class TimedPart(Part):
    """Runs the timed jobs of an application; ``jobs`` may be added until it is opened."""

    kind: ClassVar[str] = "timed"

    def __init__(self, *, is_async: bool) -> None:
        super().__init__(ASYNC_PART if is_async else SYNC_PART, "timed jobs", is_async=is_async)
        self.jobs: list[TimedJob] = []

    def check(self, resources: Resources) -> Iterator[Fault]:  # noqa: ARG002
        """Find nothing: jobs are checked where they are declared."""
        return iter(())

    def open(self, resources: Resources) -> Work:
        """Return a runner of all jobs."""
        from headwater.timed.aio_runner import AsyncTimedRunner
        from headwater.timed.runner import TimedRunner

        runner: Any
        if self.is_async:
            runner = AsyncTimedRunner(resources.async_hw)
        else:
            runner = TimedRunner(resources.hw)
        for job in self.jobs:
            runner.add(job)
        work: Work = runner
        return work

    def counts(self, work: Any) -> PartCounts:
        """Return how many runs are done, and how many attempts failed."""
        return PartCounts(work.counts.done, work.counts.failed)

    def give_back(self, work: Any) -> int:
        """Return the runs whose handlers have not ended."""
        given: int = work.give_back()
        return given


class _Parts(Protocol):
    @property
    def parts(self) -> Mapping[str, Part]: ...
    def add(self, part: Part) -> None: ...


class AppJobs(JobTable):
    """The timed jobs of an application, of both kinds; each goes to the part of its own."""

    def __init__(self, app: _Parts) -> None:
        super().__init__()
        self._app = app

    def add(self, job: TimedJob) -> None:
        """Add a job; raises InvalidInput when there is one of its name, of whichever kind."""
        super().add(job)
        own = TimedPart(is_async=is_async(job.handler))
        part = self._app.parts.get(own.name)
        if not isinstance(part, TimedPart):
            self._app.add(own)
            part = own
        part.jobs.append(job)
