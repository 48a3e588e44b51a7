"""What is stored of a timed job: its state, and what happened, as JSON in a stream of its own.

Each message of the stream holds what happened and the whole state after it, so that a reader needs
the last message only, and the stream is the job's history. A message holds its own number, too: one
that is not at the offset of that number lost a race, and is void.
"""

from __future__ import annotations

from typing import Final, Literal, TypeAlias

import msgspec

from headwater.kernel.inputs import OwnName

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
