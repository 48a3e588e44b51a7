"""Runners of timed jobs of both manners, and a clock that moves only when a test moves it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import headwater
from headwater import aio
from headwater.timed.aio_runner import AsyncTimedRunner
from headwater.timed.engine import FinishedRun, TakenRun, TimedEngine
from headwater.timed.jobs import DueRun, TimedJob, cron_plan, every_plan
from headwater.timed.operating import job_stream, newest_records
from headwater.timed.runner import TimedRunner
from headwater.timed.states import JobEvent, JobState
from tests.support.blocking import Loop

# A Monday, 2024-01-01T00:00:00Z.
START_MS = 1_704_067_200_000
MINUTE_MS = 60_000
HOUR_MS = 60 * MINUTE_MS


def declare_job(hw: headwater.Headwater, name: str, **options: Any) -> None:
    """Declare a job, as a runner does when it begins, and run nothing."""
    job = _job(name, print, options or {"every": "1h"})
    hw.store.run(TimedEngine([job], hw.store.token()).begin())


class Clockwork:
    """Makes runners of one manner that share a clock."""

    def __init__(self, manner: str, url: str, loop: Loop) -> None:
        self._end = ExitStack()
        self.manner = manner
        self.now_ms = START_MS
        self.hw = self._end.enter_context(headwater.connect(url))
        self._loop = loop
        self._async_hw: aio.AsyncHeadwater = loop.wait(aio.connect(url))
        self._end.callback(lambda: loop.wait(self._async_hw.close()))

    def close(self) -> None:
        """Close the clients."""
        self._end.close()

    def runner(self, name: str, handler: Callable[[DueRun], Any], **options: Any) -> Due:
        """Make a runner of one job, whose times are the option ``every`` or ``cron``."""
        if self.manner == "sync":
            made: Any = TimedRunner(self.hw, clock=self.read)
        else:
            made = AsyncTimedRunner(self._async_hw, clock=self.read)
            handler = _awaited(handler)
        made.add(_job(name, handler, options))
        return lambda: self._waited(made.run_due())

    def _waited(self, result: Any) -> list[FinishedRun]:
        found: list[FinishedRun] = result if self.manner == "sync" else self._loop.wait(result)
        return found

    def take(self, name: str, **options: Any) -> tuple[TimedEngine, list[TakenRun]]:
        """Begin what is due, and go no further: who took it may die or finish it."""
        engine = TimedEngine([_job(name, print, options)], self.hw.store.token(), self.read)
        self.hw.store.run(engine.begin())
        return engine, self.hw.store.run(engine.turn(1))

    def finish(self, engine: TimedEngine, taken: TakenRun) -> list[FinishedRun]:
        """End a run that was taken; returns it when another runner had taken it over."""
        return self.hw.store.run(engine.settle([FinishedRun(taken)]))

    def read(self) -> int:
        """Return the time."""
        return self.now_ms

    def events(self, job: str) -> list[JobEvent]:
        """Return all that happened to a job."""
        records = self.hw.store.run(newest_records(job_stream(job), 1000))
        return [event for record in records for event in record.events]

    def state(self, job: str) -> JobState:
        """Return how a job stands."""
        return last_state(self.hw, job)


Due = Callable[[], list[FinishedRun]]


def last_state(hw: headwater.Headwater, job: str) -> JobState:
    """Return how a job stands."""
    return hw.store.run(newest_records(job_stream(job), 1))[-1].job


def _job(name: str, handler: Callable[..., Any], options: dict[str, Any]) -> TimedJob:
    rest = {key: value for key, value in options.items() if key not in ("every", "cron")}
    if "every" in options:
        return every_plan(options["every"], name=name, **rest).job(handler)
    return cron_plan(options["cron"], name=name, **rest).job(handler)


def _awaited(handler: Callable[[DueRun], Any]) -> Callable[[DueRun], Any]:
    async def handle(run: DueRun) -> None:
        handler(run)

    return handle
