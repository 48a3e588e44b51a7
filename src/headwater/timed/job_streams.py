"""Operations on the streams of timed jobs: read a state, write the next one unless another did.

One producer for all runners writes a state, with the offset that it must get as its sequence. If
several runners write the next state of a job, the log accepts one, and the others are told that
they were too late. So whatever a runner decides from a state that is no longer the last has no
effect.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

import msgspec
from msgspec.structs import replace

from headwater.errors import InvalidInput, LostFuture, OutcomeUnknown, ReusedSequence, StaleSequence
from headwater.kernel.inputs import MAX_NAME_BYTES, OwnName, check_name
from headwater.log import reading, retention, writing
from headwater.log.handles import StreamHandle
from headwater.log.keys import list_streams
from headwater.log.types import Message
from headwater.store.call import Operation
from headwater.timed.states import (
    BOARD,
    PREFIX,
    JobRecord,
    JobState,
    decode_record,
    encode_record,
)
from headwater.timed.transitions import TimedStep

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


def history(stream: StreamHandle, count: int) -> Operation[list[JobRecord]]:
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
