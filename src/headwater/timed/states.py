"""What is stored of a timed job, and what happens next: pure functions from state and time.

Each message of the stream holds what happened and the whole state after it, so that a reader needs
the last message only, and the stream is the job's history. A message holds its own number, too: one
that is not at the offset of that number lost a race, and is void.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Final, Literal, NamedTuple, TypeAlias
from zlib import crc32

import msgspec
from msgspec.structs import replace

from headwater.kernel.failures import delay_s
from headwater.kernel.inputs import OwnName
from headwater.timed.timetables import CronTable, IntervalTable, Timetable, count_due

# ── States ────────────────────────────────────────────────────────────────────────────────────────


Missed: TypeAlias = Literal["skip", "once", "all"]
Overlap: TypeAlias = Literal["skip", "queue", "allow"]
Outcome: TypeAlias = Literal["done", "failed", "lost"]
What: TypeAlias = Literal[
    "defined", "changed", "due", "skipped", "missed", "asked", "started", "failed", "lost",
    "released", "ended", "paused", "resumed",
]  # fmt: skip

# The stream of a job is called so, and its name; that of the runners has the first part alone.
BOARD: Final = OwnName("hw.timed")
PREFIX: Final = f"{BOARD}."


class JobSpec(msgspec.Struct, frozen=True, omit_defaults=True):
    """When a job is due, and what is done about runs that were missed or are still running."""

    every_ms: int = 0
    cron: str = ""
    tz: str = "UTC"
    missed: Missed = "skip"
    overlap: Overlap = "skip"
    max_attempts: int = 3
    jitter_ms: int = 0

    @property
    def when(self) -> tuple[int, str, str]:
        """When it is due; all else are policies."""
        return self.every_ms, self.cron, self.tz


class ActiveRun(msgspec.Struct, frozen=True, omit_defaults=True):
    """A run that has not ended. It waits until ``at_ms``, or is being run ``by`` a runner."""

    due_ms: int
    at_ms: int = 0
    attempt: int = 0
    by: str = ""
    began_ms: int = 0
    by_hand: bool = False


class EndedRun(msgspec.Struct, frozen=True, omit_defaults=True):
    """How a run ended: when it was due, by whom it was run, and how long its last attempt took."""

    due_ms: int
    ended_ms: int
    outcome: Outcome
    attempt: int = 0
    by: str = ""
    took_ms: int = 0
    error: str = ""
    by_hand: bool = False


class JobEvent(msgspec.Struct, frozen=True, omit_defaults=True):
    """One thing that happened to a job; ``count`` is of what was skipped or missed."""

    what: What
    time_ms: int
    by: str = ""
    due_ms: int = 0
    attempt: int = 0
    count: int = 0
    took_ms: int = 0
    outcome: Outcome | None = None
    error: str = ""
    by_hand: bool = False


class JobState(msgspec.Struct, frozen=True, omit_defaults=True):
    """A job as it stands; whatever was due up to ``upto_ms`` is decided."""

    spec: JobSpec
    upto_ms: int
    runs: tuple[ActiveRun, ...] = ()
    paused: bool = False
    missed: int = 0
    skipped: int = 0
    last: EndedRun | None = None


class JobRecord(msgspec.Struct, frozen=True):
    """One message of the stream of a job."""

    number: int
    events: tuple[JobEvent, ...]
    job: JobState


_decoder: Final = msgspec.json.Decoder(JobRecord)


def encode_record(record: JobRecord) -> bytes:
    """Return a record as it is stored."""
    return msgspec.json.encode(record)


def decode_record(value: bytes, offset: int) -> JobRecord | None:
    """Return the record of a message; None for one that is void, or no record."""
    try:
        record = _decoder.decode(value)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
    return record if record.number == offset else None


# ── Transitions ───────────────────────────────────────────────────────────────────────────────────
# What happens to a timed job next: pure functions from its state and the time to another state.
#
# Every moment at which a job is due gets one verdict. It is *run*; or *skipped*, because the run
# before it continues and ``overlap`` says so; or *missed*, because no runner saw it in time and
# ``missed`` does not have it run. A moment is seen in time when a runner looks while it is the
# latest one and not older than ``LATE_MS``.
#
# A run is begun by one runner at a time. It is retried when its handler fails and when its runner
# is lost, ``max_attempts`` times in all.


# What is due for longer than this, and was not seen by any runner, is missed.
LATE_MS: Final = 60_000
# How many runs of a job wait or run at once, at most.
MOST_RUNS: Final = 100
# Missed moments are counted up to here at once.
MOST_COUNTED: Final = 1000
FIRST_RETRY_MS: Final = 1000
LONGEST_RETRY_MS: Final = 60_000


class TimedStep(NamedTuple):
    """A change of a job: its next state, what happened, and the run that its maker has to do."""

    state: JobState
    events: tuple[JobEvent, ...]
    taken: ActiveRun | None = None


@lru_cache(maxsize=4096)
def table_of(every_ms: int, cron: str, tz: str) -> Timetable:
    """Return the timetable of a job."""
    return IntervalTable(every_ms) if every_ms else CronTable(cron, tz)


def define(state: JobState | None, spec: JobSpec, now_ms: int, by: str) -> TimedStep | None:
    """Declare a job; None when it is declared so already.

    What is before the first declaration, or before another timetable, is not due.
    """
    if state is None:
        new = JobState(spec, now_ms)
        return TimedStep(new, (JobEvent("defined", now_ms, by),))
    if state.spec == spec:
        return None
    upto_ms = state.upto_ms if state.spec.when == spec.when else max(now_ms, state.upto_ms)
    return TimedStep(replace(state, spec=spec, upto_ms=upto_ms), (JobEvent("changed", now_ms, by),))


def look(
    state: JobState, job: str, now_ms: int, by: str, free: bool, lost: Callable[[ActiveRun], bool]
) -> TimedStep | None:
    """Do what is to be done about a job now; None when there is nothing.

    Runs whose runner is lost are retried or given up, what is due gets its verdict, and when the
    runner has a ``free`` place, it takes a run.
    """
    events: list[JobEvent] = []
    for run in state.runs:
        if run.by and lost(run):
            state, event = _without_runner(state, run, now_ms, by)
            events.append(event)
    if not state.paused:
        decided = _decide(state, job, now_ms, by)
        if decided is not None:
            state, event = decided
            events.append(event)
    taken = _ready(state, now_ms) if free else None
    if taken is not None:
        begun = replace(taken, attempt=taken.attempt + 1, by=by, began_ms=now_ms, at_ms=0)
        state = _with(state, taken, begun)
        events.append(_event("started", now_ms, begun))
        taken = begun
    return TimedStep(state, tuple(events), taken) if events else None


def end(
    state: JobState, run: ActiveRun, now_ms: int, took_ms: int, error: str | None
) -> TimedStep | None:
    """Note the end of an attempt; None when the run was taken over by somebody else meanwhile.

    ``error`` is why it failed, None when it did not.
    """
    if run not in state.runs:
        return None
    if error is None or run.attempt >= state.spec.max_attempts:
        outcome: Outcome = "done" if error is None else "failed"
        return TimedStep(*_ended(state, run, now_ms, run.by, outcome, took_ms, error or ""))
    delay_ms = delay_s(run.attempt, FIRST_RETRY_MS, LONGEST_RETRY_MS)
    waiting = replace(run, by="", began_ms=0, at_ms=now_ms + int(delay_ms))
    event = _event("failed", now_ms, run, took_ms=took_ms, error=error)
    return TimedStep(_with(state, run, waiting), (event,))


def release(state: JobState, run: ActiveRun, now_ms: int) -> TimedStep | None:
    """Return a run that was taken and not begun; None when somebody else has it meanwhile."""
    if run not in state.runs:
        return None
    waiting = replace(run, by="", began_ms=0, at_ms=now_ms, attempt=run.attempt - 1)
    return TimedStep(_with(state, run, waiting), (_event("released", now_ms, run),))


def ask(state: JobState, now_ms: int, by: str) -> TimedStep:
    """Add a run by hand, which runs as soon as ``overlap`` allows, even while the job is paused."""
    due_ms = max([now_ms, *(run.due_ms + 1 for run in state.runs if run.by_hand)])
    run = ActiveRun(due_ms, at_ms=now_ms, by_hand=True)
    event = JobEvent("asked", now_ms, by, due_ms=due_ms, by_hand=True)
    return TimedStep(replace(state, runs=(*state.runs, run)), (event,))


def pause(state: JobState, now_ms: int, by: str) -> TimedStep | None:
    """Have nothing begun any more; None when the job is paused already."""
    if state.paused:
        return None
    return TimedStep(replace(state, paused=True), (JobEvent("paused", now_ms, by),))


def resume(state: JobState, now_ms: int, by: str) -> TimedStep | None:
    """Have a job run again; what was due while it was paused is not due any more."""
    if not state.paused:
        return None
    upto_ms = max(now_ms, state.upto_ms)
    return TimedStep(
        replace(state, paused=False, upto_ms=upto_ms), (JobEvent("resumed", now_ms, by),)
    )


def is_ready(state: JobState, now_ms: int) -> bool:
    """Return whether a run may begin now, if a runner has a free place."""
    return _ready(state, now_ms) is not None


def next_due_ms(state: JobState, now_ms: int) -> int | None:
    """Return when the job is due next; None while it is paused."""
    return (
        None if state.paused else table_of(*state.spec.when).next_after(max(state.upto_ms, now_ms))
    )


def _decide(state: JobState, job: str, now_ms: int, by: str) -> tuple[JobState, JobEvent] | None:
    """Give the next verdict about what is due; None when there is nothing due, or it waits."""
    table, spec = table_of(*state.spec.when), state.spec
    first = table.next_after(state.upto_ms)
    if first is None or first > now_ms:
        return None
    latest = table.last_until(now_ms) or first
    alone = not state.runs or spec.overlap == "allow"
    if spec.missed == "all" and (first < latest or now_ms - latest > LATE_MS):
        # One after the other, each as soon as it may run and the one before it has begun.
        if not alone or any(not run.attempt for run in state.runs) or _is_full(state):
            return None
        return _add(state, job, first, now_ms, by, 0)
    runs = spec.missed == "once" or now_ms - latest <= LATE_MS
    earlier = 0
    if first < latest:
        earlier = count_due(table, state.upto_ms, latest - 1, MOST_COUNTED)
    if not runs:
        state = replace(state, upto_ms=latest, missed=state.missed + earlier + 1)
        return state, JobEvent("missed", now_ms, by, due_ms=latest, count=earlier + 1)
    if (alone or spec.overlap == "queue") and not _is_full(state):
        return _add(state, job, latest, now_ms, by, earlier)
    state = replace(state, upto_ms=latest, skipped=state.skipped + 1, missed=state.missed + earlier)
    return state, JobEvent("skipped", now_ms, by, due_ms=latest, count=earlier)


def _is_full(state: JobState) -> bool:
    return len(state.runs) >= MOST_RUNS


def _add(
    state: JobState, job: str, due_ms: int, now_ms: int, by: str, earlier: int
) -> tuple[JobState, JobEvent]:
    at_ms = due_ms
    if state.spec.jitter_ms:
        # The same for all runners, and another one for each job and each run.
        at_ms += crc32(f"{job} {due_ms}".encode()) % (state.spec.jitter_ms + 1)
    runs = (*state.runs, ActiveRun(due_ms, at_ms=at_ms))
    new = replace(state, runs=runs, upto_ms=due_ms, missed=state.missed + earlier)
    return new, JobEvent("due", now_ms, by, due_ms=due_ms, count=earlier)


def _ready(state: JobState, now_ms: int) -> ActiveRun | None:
    """Return the run that may begin now; without ``allow`` they begin one after the other."""
    together = state.spec.overlap == "allow"
    if not together and any(run.by for run in state.runs):
        return None
    for run in state.runs:
        # One that waits behind a pause does not hold up one by hand.
        if run.by or (state.paused and not run.by_hand):
            continue
        if run.at_ms <= now_ms:
            return run
        if not together:
            return None
    return None


def _without_runner(
    state: JobState, run: ActiveRun, now_ms: int, by: str
) -> tuple[JobState, JobEvent]:
    if run.attempt >= state.spec.max_attempts:
        gone, (event,) = _ended(state, run, now_ms, by, "lost", 0, f"{run.by} was lost")
        return gone, event
    waiting = replace(run, by="", began_ms=0, at_ms=now_ms)
    return _with(state, run, waiting), _event("lost", now_ms, run)


def _ended(
    state: JobState,
    run: ActiveRun,
    now_ms: int,
    by: str,
    outcome: Outcome,
    took_ms: int,
    error: str,
) -> tuple[JobState, tuple[JobEvent, ...]]:
    ended = EndedRun(run.due_ms, now_ms, outcome, run.attempt, run.by, took_ms, error, run.by_hand)
    runs = tuple(each for each in state.runs if each != run)
    event = replace(
        _event("ended", now_ms, run, took_ms=took_ms, error=error), outcome=outcome, by=by
    )
    return replace(state, runs=runs, last=ended), (event,)


def _with(state: JobState, old: ActiveRun, new: ActiveRun) -> JobState:
    return replace(state, runs=tuple(new if run == old else run for run in state.runs))


def _event(
    what: str, now_ms: int, run: ActiveRun, *, took_ms: int = 0, error: str = ""
) -> JobEvent:
    return JobEvent(
        what,  # type: ignore[arg-type]
        now_ms,
        run.by,
        due_ms=run.due_ms,
        attempt=run.attempt,
        took_ms=took_ms,
        error=error,
        by_hand=run.by_hand,
    )
