"""The state of an outbox: what waits in it, since when, who streams it, where its consumers are."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from headwater.outbox.batches import count_ids, read_runs
from headwater.outbox.consumer_letters import is_among_letters

if TYPE_CHECKING:
    from headwater.outbox.database import OutboxDatabase

# To count rows takes time in proportion; beyond this many the span of ids is reported instead.
_COUNTED = 10_000


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The position of a consumer: the next offset it will handle, and how long ago it moved."""

    consumer: str
    stream: str
    next_offset: int
    idle_ms: int


@dataclass(frozen=True, slots=True)
class Status:
    """An outbox at a moment. Ages are by the database's clock."""

    # Rows that are staged and committed; an upper bound when not ``exact``.
    backlog: int
    exact: bool
    # How long the row with the lowest id has waited; None when nothing waits.
    oldest_ms: int | None
    # Rows of the last batch that are not deleted yet.
    claimed: int
    batch: int
    # How long ago the last batch was claimed or, once nothing of it is left, done; None before it.
    batch_idle_ms: int | None
    producer: str
    # Which process holds the lock of the streamer; None when nobody leads.
    leader: str | None
    streaming: bool
    # Rows that went to the log, over the last minute; None without the ledger of batches.
    rows_per_s: float | None
    checkpoints: tuple[Checkpoint, ...]


def read_status(database: OutboxDatabase) -> Status:
    """Read the state of an outbox; costs the same however much is in it."""
    count, span, oldest = database.staged(_COUNTED)
    exact = count < _COUNTED
    now = database.now_ms()
    control = database.control()
    leader = database.leader()
    return Status(
        backlog=count if exact else span,
        exact=exact,
        oldest_ms=None if oldest is None else max(now - oldest, 0),
        claimed=count_ids(read_runs(control.claimed)),
        batch=control.batch,
        batch_idle_ms=max(now - database.claimed_ms(), 0) if control.batch else None,
        producer=control.producer,
        leader=leader,
        streaming=leader is not None,
        rows_per_s=database.rows_per_s(now, control.batch),
        checkpoints=tuple(
            Checkpoint(consumer, stream, next_offset, max(now - moved, 0))
            for consumer, stream, next_offset, moved in database.checkpoints()
            # Where it is among its own dead letters is of no interest to anybody else.
            if not is_among_letters(stream, consumer)
        ),
    )
