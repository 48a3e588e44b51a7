"""Operations on the streams of timed jobs: their states, and what an operator does to them.

All of it is a change of the state of a job, as runners make them; so a job that is paused does not
begin a run any more when ``pause`` has returned, in whichever runner.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Annotated, Final, NamedTuple, TypeAlias

import msgspec
from msgspec.structs import replace

from headwater.errors import (
    InvalidInput,
    LostFuture,
    OutcomeUnknown,
    ReusedSequence,
    StaleSequence,
    UnknownTimedJob,
)
from headwater.kernel.declaring import Param
from headwater.kernel.inputs import MAX_NAME_BYTES, OwnName, check_int, check_name
from headwater.log import reading, retention, writing
from headwater.log.handles import StreamHandle
from headwater.log.keys import list_streams
from headwater.log.types import Message
from headwater.store.call import Operation
from headwater.store.many import sound
from headwater.timed import states
from headwater.timed.states import (
    BOARD,
    PREFIX,
    ActiveRun,
    EndedRun,
    JobEvent,
    JobRecord,
    JobState,
    Missed,
    Overlap,
    TimedStep,
    decode_record,
    encode_record,
)

# ── Job streams ───────────────────────────────────────────────────────────────────────────────────
# Operations on the streams of timed jobs: read a state, write the next one unless another did.
#
# One producer for all runners writes a state, with the offset that it must get as its sequence. If
# several runners write the next state of a job, the log accepts one, and the others are told that
# they were too late. So whatever a runner decides from a state that is no longer the last has no
# effect.


# The stream of a job keeps at least this many messages; a run has two.
KEPT: Final = 200
# The stream of the runners keeps enough for hundreds of them.
BOARD_KEPT: Final = 5000
_PRODUCER: Final = "timed"
_PAGE: Final = 100


class KnownJob(NamedTuple):
    """A job as it was read or written last: its state, and the offset of that."""

    state: JobState | None
    offset: int


class Notice(msgspec.Struct, frozen=True, omit_defaults=True):
    """A message of the stream of the runners: one of them lives, or a job is to be looked at.

    ``left`` is the last one of a runner: it has nothing in hand any more.
    """

    by: str
    at_ms: int = 0
    job: str = ""
    left: bool = False


_notices: Final = msgspec.json.Decoder(Notice)


def check_job_name(name: str) -> str:
    """Accept the name of a job, which is part of the name of its stream."""
    check_name(name, "timed job")
    most = MAX_NAME_BYTES - len(PREFIX)
    if len(name.encode()) > most:
        raise InvalidInput(
            f"the name of a timed job must have at most {most} bytes, not {len(name.encode())}; "
            "choose another"
        )
    return name


def job_stream(name: str, registered: set[str] | None = None) -> StreamHandle:
    """Return the stream of a job; ``registered`` is shared by the handles of one runner."""
    return StreamHandle(OwnName(PREFIX + name), set() if registered is None else registered)


def list_jobs() -> Operation[list[str]]:
    """Return the names of all jobs that were ever declared in this store, sorted."""
    names = yield from list_streams()
    return [name.removeprefix(PREFIX) for name in names if name.startswith(PREFIX)]


def load(stream: StreamHandle) -> Operation[KnownJob]:
    """Read the state of a job from the end of its stream."""
    _, first, last = yield from reading.read(stream, 1, 0, None, with_info=True)
    end = last or 0
    while end >= max(first or 1, 1):
        start = max(end - 4, first or 1, 1)
        found, *_ = yield from reading.read(stream, start, end - start + 1, None)
        record = _newest(found)
        if record is not None:
            return KnownJob(record.job, last or 0)
        end = start - 1
    return KnownJob(None, last or 0)


def refresh(stream: StreamHandle, known: KnownJob) -> Operation[KnownJob]:
    """Read what was written after a state that was known."""
    if known.state is None:
        return (yield from load(stream))
    try:
        found, *_ = yield from reading.read(stream, known.offset + 1, _PAGE, None)
    except LostFuture:
        # The store has lost what it said it had; what is there now counts.
        return (yield from load(StreamHandle(stream.name, stream.registered)))
    record = _newest(found)
    if record is None or len(found) == _PAGE or None in found:
        return (yield from load(stream))
    return KnownJob(record.job, known.offset + len(found))


def write(stream: StreamHandle, known: KnownJob, step: TimedStep) -> Operation[KnownJob | None]:
    """Write the next state of a job; None when another was written meanwhile."""
    record = JobRecord(known.offset + 1, step.events, step.state)
    entry = (step.events[-1].what, encode_record(record))
    try:
        offsets = yield from writing.write_many(stream, [entry], KEPT, _PRODUCER, record.number)
    except (StaleSequence, ReusedSequence, LostFuture):
        return None
    return KnownJob(step.state, record.number) if offsets.start == record.number else None


def change(
    stream: StreamHandle,
    decide: Callable[[JobState | None], TimedStep | None],
    known: KnownJob | None = None,
) -> Operation[tuple[KnownJob, TimedStep | None]]:
    """Change a job by what ``decide`` makes of its newest state; None changes nothing.

    Returns the state after it, and the step that was made.
    """
    now = known if known is not None else (yield from load(stream))
    while True:
        step = decide(now.state)
        if step is None:
            return now, None
        written = yield from write(stream, now, step)
        if written is not None:
            return written, step
        now = yield from refresh(stream, now)


def newest_records(stream: StreamHandle, count: int) -> Operation[list[JobRecord]]:
    """Return the newest records of a job, oldest first."""
    _, first, last = yield from reading.read(stream, 1, 0, None, with_info=True)
    if not last:
        return []
    start = max(last - count + 1, first or 1, 1)
    found, *_ = yield from reading.read(stream, start, last - start + 1, None)
    return [record for record in map(_record, found) if record is not None]


def remove(stream: StreamHandle) -> Operation[bool]:
    """Remove a job with its history; returns whether it was there."""
    return (yield from retention.delete(stream))


def post(board: StreamHandle, notice: Notice) -> Operation[int]:
    """Tell all runners something; returns the time of the store."""
    while True:
        try:
            value = msgspec.json.encode(notice)
            offset = yield from writing.write(board, notice.job, value, BOARD_KEPT)
        except OutcomeUnknown:
            continue  # to say it twice does no harm
        # By another handle: this one may have read reports that a failover has lost, see hear.
        written = StreamHandle(board.name, board.registered)
        (found, *_), *_ = yield from reading.read(written, offset, 1, None)
        return found.time_ms if found is not None else 0


def hear(board: StreamHandle, offset: int) -> Operation[tuple[list[Notice], int]]:
    """Return what was told from an offset on, and where to continue."""
    heard: list[Notice] = []
    while True:
        try:
            passage = yield from reading.read_from(board, offset, _PAGE, None)
        except LostFuture as lost:
            # A failover has lost reports that were heard; what was said since is in their place.
            offset = lost.first
            continue
        for message in passage.messages:
            try:
                said = _notices.decode(message.value)
            except (msgspec.DecodeError, UnicodeDecodeError):
                continue
            heard.append(said if said.at_ms else replace(said, at_ms=message.time_ms))
        if len(passage.messages) < _PAGE:
            return heard, passage.next
        offset = passage.next


def board_stream(registered: set[str] | None = None) -> StreamHandle:
    """Return the stream by which runners know of each other."""
    return StreamHandle(BOARD, set() if registered is None else registered)


def _newest(messages: list[Message | None]) -> JobRecord | None:
    return next((found for found in map(_record, reversed(messages)) if found is not None), None)


def _record(message: Message | None) -> JobRecord | None:
    return None if message is None else decode_record(message.value, message.offset)


# ── Operating ─────────────────────────────────────────────────────────────────────────────────────


_UNITS: Final = {"d": 86_400_000, "h": 3_600_000, "m": 60_000, "s": 1000}
MOST_EVENTS: Final = 10_000
EventCount: TypeAlias = Annotated[int, Param("How many events.", least=0, most=MOST_EVENTS)]


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
        next_ms=states.next_due_ms(state, now_ms),
        running=[run for run in state.runs if run.by],
        waiting=[run for run in state.runs if not run.by],
        last=state.last,
        missed_runs=state.missed,
        skipped_runs=state.skipped,
    )


def list_infos() -> Operation[list[TimedJobInfo]]:
    """Return how all jobs stand that were ever declared, by their names."""
    return (yield from infos_of((yield from list_jobs())))


def infos_of(names: Sequence[str]) -> Operation[list[TimedJobInfo]]:
    """Return how some jobs stand; those that are not there, or are broken, are left out."""
    if not names:
        return []
    found = yield from sound(load(job_stream(name)) for name in names)
    now_ms = yield from _now_ms([known for known in found if known is not None])
    return [
        info_of(name, known.state, now_ms)
        for name, known in zip(names, found, strict=True)
        if known is not None and known.state is not None
    ]


def info(name: str) -> Operation[TimedJobInfo]:
    """Return how a job stands; raises UnknownTimedJob."""
    known = yield from load(job_stream(name))
    state = known.state or (yield from _unknown(name))
    return info_of(name, state, (yield from _now_ms([known])))


def history(name: str, count: int) -> Operation[tuple[JobEvent, ...]]:
    """Return the newest events of a job, oldest first; raises UnknownTimedJob."""
    check_int(count, "count", 0, MOST_EVENTS)
    records = yield from newest_records(job_stream(name), count)
    if not records:
        yield from _unknown(name)
    events = tuple(event for record in records for event in record.events)
    return events[max(len(events) - count, 0) :]


def pause(name: str, by: str) -> Operation[bool]:
    """Have nothing of a job begun any more; returns whether it was not paused yet."""
    return (yield from _change(name, by, states.pause))


def resume(name: str, by: str) -> Operation[bool]:
    """Have a paused job run again; returns whether it was paused."""
    return (yield from _change(name, by, states.resume))


def run_now(name: str, by: str) -> Operation[bool]:
    """Add a run by hand, for the next runner that has a free place."""
    return (yield from _change(name, by, states.ask))


def delete(name: str) -> Operation[bool]:
    """Remove a job with its history; returns whether it was there.

    A runner that still has it declares it again.
    """
    return (yield from remove(job_stream(name)))


def span_text(ms: int) -> str:
    """Return a span of time as it may be written: 5m, 90s, 1500ms."""
    for unit, size in _UNITS.items():
        if ms % size == 0:
            return f"{ms // size}{unit}"
    return f"{ms}ms"


def _change(
    name: str, by: str, step: Callable[[JobState, int, str], TimedStep | None]
) -> Operation[bool]:
    stream, board = job_stream(name), board_stream()
    known = yield from load(stream)
    if known.state is None:
        yield from _unknown(name)
    now_ms = yield from post(board, Notice(by))

    def decide(state: JobState | None) -> TimedStep | None:
        return None if state is None else step(state, now_ms, by)

    _, made = yield from change(stream, decide, known)
    if made is not None:
        yield from post(board, Notice(by, job=name))
    return made is not None


def _unknown(name: str) -> Operation[JobState]:
    names = yield from list_jobs()
    near = get_close_matches(name, names, n=1)
    raise UnknownTimedJob(name, near[0] if near else None)


def _now_ms(jobs: list[KnownJob]) -> Operation[int]:
    """Return the time, as far as the streams tell it: a lower bound of that of the store."""
    board = board_stream()
    _, _, last = yield from reading.read(board, 1, 0, None, with_info=True)
    told = [known.state.upto_ms for known in jobs if known.state is not None]
    if last:
        (message, *_), *_ = yield from reading.read(board, last, 1, None)
        told += [] if message is None else [message.time_ms]
    return max(told, default=0)
