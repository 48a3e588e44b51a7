"""What an operator does to timed jobs: list them, look at their history, pause, resume, run now.

All of it is a change of the state of a job, as runners make them; so a job that is paused does not
begin a run any more when ``pause`` has returned, in whichever runner.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Final

from headwater.errors import UnknownTimedJob
from headwater.kernel.inputs import check_int
from headwater.log import reading
from headwater.store.call import Operation
from headwater.store.many import sound
from headwater.timed import job_streams, transitions
from headwater.timed.job_streams import KnownJob, Notice
from headwater.timed.states import ActiveRun, EndedRun, JobEvent, JobState, Missed, Overlap
from headwater.timed.transitions import TimedStep

_UNITS: Final = {"d": 86_400_000, "h": 3_600_000, "m": 60_000, "s": 1000}
MOST_EVENTS: Final = 10_000


@dataclass(frozen=True, slots=True)
class TimedJobInfo:
    """How a timed job stands.

    ``when`` is its cron expression, or "every 5m". ``next_ms`` is when it is due next, None while
    it is paused. ``missed_runs`` and ``skipped_runs`` count since it was first declared.
    """

    name: str
    when: str
    tz: str
    missed: Missed
    overlap: Overlap
    max_attempts: int
    paused: bool
    next_ms: int | None
    running: list[ActiveRun]
    waiting: list[ActiveRun]
    last: EndedRun | None
    missed_runs: int
    skipped_runs: int


def info_of(name: str, state: JobState, now_ms: int) -> TimedJobInfo:
    """Return how a job stands."""
    spec = state.spec
    return TimedJobInfo(
        name=name,
        when=f"every {span_text(spec.every_ms)}" if spec.every_ms else spec.cron,
        tz=spec.tz,
        missed=spec.missed,
        overlap=spec.overlap,
        max_attempts=spec.max_attempts,
        paused=state.paused,
        next_ms=transitions.next_due_ms(state, now_ms),
        running=[run for run in state.runs if run.by],
        waiting=[run for run in state.runs if not run.by],
        last=state.last,
        missed_runs=state.missed,
        skipped_runs=state.skipped,
    )


def list_infos() -> Operation[list[TimedJobInfo]]:
    """Return how all jobs stand that were ever declared, by their names."""
    return (yield from infos_of((yield from job_streams.list_jobs())))


def infos_of(names: Sequence[str]) -> Operation[list[TimedJobInfo]]:
    """Return how some jobs stand; those that are not there, or are broken, are left out."""
    if not names:
        return []
    found = yield from sound(job_streams.load(job_streams.job_stream(name)) for name in names)
    now_ms = yield from _now_ms([known for known in found if known is not None])
    return [
        info_of(name, known.state, now_ms)
        for name, known in zip(names, found, strict=True)
        if known is not None and known.state is not None
    ]


def info(name: str) -> Operation[TimedJobInfo]:
    """Return how a job stands; raises UnknownTimedJob."""
    known = yield from job_streams.load(job_streams.job_stream(name))
    state = known.state or (yield from _unknown(name))
    return info_of(name, state, (yield from _now_ms([known])))


def history(name: str, count: int) -> Operation[tuple[JobEvent, ...]]:
    """Return the newest events of a job, oldest first; raises UnknownTimedJob."""
    check_int(count, "count", 0, MOST_EVENTS)
    records = yield from job_streams.history(job_streams.job_stream(name), count)
    if not records:
        yield from _unknown(name)
    events = tuple(event for record in records for event in record.events)
    return events[max(len(events) - count, 0) :]


def pause(name: str, by: str) -> Operation[bool]:
    """Have nothing of a job begun any more; returns whether it was not paused yet."""
    return (yield from _change(name, by, transitions.pause))


def resume(name: str, by: str) -> Operation[bool]:
    """Have a paused job run again; returns whether it was paused."""
    return (yield from _change(name, by, transitions.resume))


def run_now(name: str, by: str) -> Operation[bool]:
    """Add a run by hand, for the next runner that has a free place."""
    return (yield from _change(name, by, transitions.ask))


def delete(name: str) -> Operation[bool]:
    """Remove a job with its history; returns whether it was there.

    A runner that still has it declares it again.
    """
    return (yield from job_streams.remove(job_streams.job_stream(name)))


def span_text(ms: int) -> str:
    """Return a span of time as it may be written: 5m, 90s, 1500ms."""
    for unit, size in _UNITS.items():
        if ms % size == 0:
            return f"{ms // size}{unit}"
    return f"{ms}ms"


def _change(
    name: str, by: str, step: Callable[[JobState, int, str], TimedStep | None]
) -> Operation[bool]:
    stream, board = job_streams.job_stream(name), job_streams.board_stream()
    known = yield from job_streams.load(stream)
    if known.state is None:
        yield from _unknown(name)
    now_ms = yield from job_streams.post(board, Notice(by))

    def decide(state: JobState | None) -> TimedStep | None:
        return None if state is None else step(state, now_ms, by)

    _, made = yield from job_streams.change(stream, decide, known)
    if made is not None:
        yield from job_streams.post(board, Notice(by, job=name))
    return made is not None


def _unknown(name: str) -> Operation[JobState]:
    names = yield from job_streams.list_jobs()
    near = get_close_matches(name, names, n=1)
    raise UnknownTimedJob(name, near[0] if near else None)


def _now_ms(jobs: list[KnownJob]) -> Operation[int]:
    """Return the time, as far as the streams tell it: a lower bound of that of the store."""
    board = job_streams.board_stream()
    _, _, last = yield from reading.read(board, 1, 0, None, with_info=True)
    told = [known.state.upto_ms for known in jobs if known.state is not None]
    if last:
        (message, *_), *_ = yield from reading.read(board, last, 1, None)
        told += [] if message is None else [message.time_ms]
    return max(told, default=0)
