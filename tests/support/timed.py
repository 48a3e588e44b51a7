"""Runners of timed jobs of both manners, and a clock that moves only when a test moves it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import headwater
from headwater import aio
from headwater.timed.aio_runner import AsyncTimedRunner
from headwater.timed.engine import FinishedRun, TakenRun, TimedEngine
from headwater.timed.jobs import DueRun, TimedJob, cron_plan, every_plan
from headwater.timed.operating import job_stream, newest_records
from headwater.timed.runner import TimedRunner
from headwater.timed.states import JobEvent, JobSpec, JobState
from tests.support.blocking import Loop

# ── What must be true of the history of a timed job and of its handlers' own notes ───────────────
# It knows the policies, and nothing of how they are kept: each moment is counted by hand, and gets
# one verdict; runs begin when they may, one attempt after the other.


LATE_MS = 60_000
MOST_RUNS = 100

Moments = Callable[[int, int], list[int]]
Run = tuple[int, bool]


class Note(NamedTuple):
    """What a handler wrote down: which attempt at which run, and whether it came to its end."""

    due_ms: int
    attempt: int
    by_hand: bool
    ended: bool


@dataclass
class HistoryChecker:
    """Follows the events of one job; ``moments`` lists those after one time and up to another."""

    spec: JobSpec
    moments: Moments
    cursor: int | None = None
    # Attempts that were begun, of the runs that have not ended, and who does one now.
    active: dict[Run, int] = field(default_factory=dict)
    begun: dict[Run, str] = field(default_factory=dict)
    started: set[tuple[int, int, bool]] = field(default_factory=set)
    # How often an attempt was returned before its end, to be begun anew as the same one.
    released: Counter[tuple[int, int, bool]] = field(default_factory=Counter)
    done: set[Run] = field(default_factory=set)
    verdicts: dict[str, int] = field(default_factory=dict)
    paused: bool = False

    def follow(self, events: Iterable[JobEvent]) -> None:
        """Check the next events."""
        for event in events:
            getattr(self, f"_{event.what}")(event)

    def check_end(self, now_ms: int) -> None:
        """Check that nothing is left that was due up to now."""
        assert self.cursor is not None
        assert self.moments(self.cursor, now_ms) == []
        assert not self.active

    def check_notes(self, notes: Iterable[Note]) -> None:
        """Check what the handlers wrote: each attempt was begun once, each done run was done."""
        written = list(notes)
        begun = [(note.due_ms, note.attempt, note.by_hand) for note in written if not note.ended]
        for attempt, times in Counter(begun).items():
            assert times <= 1 + self.released[attempt], f"it was begun twice: {attempt}"
        assert set(begun) <= self.started, "a handler ran what nobody had taken"
        ended = {(note.due_ms, note.by_hand) for note in written if note.ended}
        assert self.done <= ended, "a run counts as done whose handler did not end"

    def _verdict(self, event: JobEvent, covered: int) -> None:
        """Check that an event covers the next moments, and that they are so many."""
        assert self.cursor is not None
        assert not self.paused
        found = self.moments(self.cursor, event.due_ms)
        assert found, f"nothing was due: {event}"
        assert found[-1] == event.due_ms, f"it is no moment of its own: {event}"
        assert len(found) == covered, f"{len(found)} moments, not {covered}: {event}"
        assert event.due_ms <= event.time_ms, f"early: {event}"
        self.cursor = event.due_ms
        self.verdicts[event.what] = self.verdicts.get(event.what, 0) + 1

    def _is_late(self, event: JobEvent) -> bool:
        return event.time_ms - event.due_ms > LATE_MS

    def _defined(self, event: JobEvent) -> None:
        self.cursor = event.time_ms

    def _due(self, event: JobEvent) -> None:
        self._verdict(event, 1 + event.count)
        if self.spec.missed == "all":
            assert event.count == 0, f"one was missed: {event}"
        if self.spec.missed == "skip":
            assert not self._is_late(event), f"it was missed, and is run: {event}"
        if self.spec.overlap == "skip":
            assert not self.active, f"one goes on: {event}"
        self.active[event.due_ms, False] = 0

    def _skipped(self, event: JobEvent) -> None:
        self._verdict(event, 1 + event.count)
        assert self.active
        assert self.spec.overlap == "skip" or len(self.active) >= MOST_RUNS
        assert self.spec.missed != "all" or not event.count

    def _missed(self, event: JobEvent) -> None:
        self._verdict(event, event.count)
        assert self.spec.missed == "skip"
        assert self._is_late(event)

    def _asked(self, event: JobEvent) -> None:
        assert (event.due_ms, True) not in self.active
        self.active[event.due_ms, True] = 0

    def _started(self, event: JobEvent) -> None:
        run = event.due_ms, event.by_hand
        assert event.time_ms >= event.due_ms or event.by_hand, f"early: {event}"
        assert run not in self.begun, f"somebody does it already: {event}"
        assert self.spec.overlap == "allow" or not self.begun, f"another goes on: {event}"
        assert not self.paused or event.by_hand
        self.active[run] += 1
        assert event.attempt == self.active[run] <= self.spec.max_attempts
        self.begun[run] = event.by
        self.started.add((event.due_ms, event.attempt, event.by_hand))

    def _released(self, event: JobEvent) -> None:
        run = event.due_ms, event.by_hand
        assert self.begun.pop(run) == event.by
        self.active[run] -= 1
        attempt = event.due_ms, event.attempt, event.by_hand
        self.started.discard(attempt)
        self.released[attempt] += 1

    def _failed(self, event: JobEvent) -> None:
        assert self.begun.pop((event.due_ms, event.by_hand)) == event.by
        assert event.attempt < self.spec.max_attempts

    def _lost(self, event: JobEvent) -> None:
        del self.begun[event.due_ms, event.by_hand]
        assert event.attempt < self.spec.max_attempts

    def _ended(self, event: JobEvent) -> None:
        run = event.due_ms, event.by_hand
        by = self.begun.pop(run)
        attempts = self.active.pop(run)
        if event.outcome == "done":
            assert by == event.by
            self.done.add(run)
        else:
            assert attempts == self.spec.max_attempts

    def _paused(self, event: JobEvent) -> None:  # noqa: ARG002
        assert not self.paused
        self.paused = True

    def _resumed(self, event: JobEvent) -> None:
        assert self.paused
        assert self.cursor is not None
        self.paused, self.cursor = False, max(self.cursor, event.time_ms)


# ── Runners of timed jobs of both manners, and a clock that moves only when a test moves it ──────

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
