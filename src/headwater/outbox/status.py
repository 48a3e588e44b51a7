"""The state of an outbox and its consumers, and what puts both back to the beginning."""

from __future__ import annotations

from collections.abc import Awaitable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, overload

import msgspec

from headwater.errors import InvalidInput
from headwater.log.aio_stream import AsyncStream
from headwater.log.keys import MAX_OFFSET, check_count, check_name
from headwater.log.stream import Stream
from headwater.log.types import Message, Passage
from headwater.outbox.batches import count_ids, read_runs
from headwater.outbox.consumer_letters import is_among_letters

if TYPE_CHECKING:
    from headwater.outbox.database import OutboxDatabase


# ── Status ────────────────────────────────────────────────────────────────────────────────────────


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


# ── Reset ─────────────────────────────────────────────────────────────────────────────────────────
# Reset records: messages that tell a consumer, in the log's order, to replace its state.
#
# A reset record is a message with the tag ``headwater.reset:<consumer>``: compaction keeps the
# latest of each consumer. It holds a position, and the state that is right once everything up to
# that position is applied. The consumer of that name replaces its state in one transaction,
# applies again what is between the position and the record, and continues behind it. Other
# consumers skip it.


_PREFIX = "headwater.reset:"


class Reset(msgspec.Struct, frozen=True):
    """What a reset record holds: ``state`` is right once all up to ``position`` is applied."""

    position: int
    state: Any = None


def reset_tag(consumer: str) -> str:
    """Return the tag of the reset records for a consumer."""
    return _PREFIX + consumer


def resets_in(messages: list[Message]) -> list[Message]:
    """Return the reset records among messages, for whichever consumer they are."""
    return [message for message in messages if message.tag.startswith(_PREFIX)]


def reset_of(message: Message) -> Reset:
    """Read a reset record. Raises InvalidInput when it cannot be one."""
    try:
        reset = msgspec.json.decode(message.value, type=Reset)
    except msgspec.MsgspecError as error:
        raise InvalidInput(
            f"the reset record at offset {message.offset} cannot be read ({error}); "
            "write such records with headwater.outbox.write_reset"
        ) from None
    if not 0 <= reset.position < message.offset:
        raise InvalidInput(
            f"the reset record at offset {message.offset} is about position {reset.position}; "
            "the position must be before the record"
        )
    return reset


@overload
def write_reset(stream: Stream[Any], consumer: str, position: int, state: Any) -> int: ...
@overload
def write_reset(
    stream: AsyncStream[Any], consumer: str, position: int, state: Any
) -> Awaitable[int]: ...
def write_reset(
    stream: Stream[Any] | AsyncStream[Any], consumer: str, position: int, state: Any
) -> int | Awaitable[int]:
    """Tell a consumer to replace its state by ``state``, right at ``position``; returns the offset.

    ``state`` is anything that JSON can hold; the consumer's ``on_reset(conn, state)`` receives it.
    ``position`` is the last offset that the state contains, 0 for none. What comes after it in the
    stream is applied again, so it must not be evicted before the consumer is past the record. A
    record that is written twice does no harm. With an AsyncStream, await the result.
    """
    if stream.codec is not None:
        raise InvalidInput("a reset record is not a value for a codec; open the stream without one")
    check_name(consumer, "consumer")
    check_count(position, "position", MAX_OFFSET)
    try:
        value = msgspec.json.encode(Reset(position, state))
    except (TypeError, msgspec.MsgspecError) as error:
        raise InvalidInput(f"the state must be what JSON can hold: {error}") from None
    return stream.write(reset_tag(consumer), value)


# ── Consumer batch ────────────────────────────────────────────────────────────────────────────────
# What one transaction of a consumer applies: messages up to a reset record, or that record.


class ConsumerBatch(NamedTuple):
    """The messages between two positions, or one reset record; ``gap`` is what was evicted."""

    at: int
    after: int
    messages: list[Message]
    reset: Message | None
    gap: tuple[int, int] | None

    @property
    def records(self) -> list[Message]:
        """All that is handled, the reset record included."""
        return [self.reset] if self.reset else self.messages

    @property
    def bytes(self) -> int:
        """The size of all values."""
        return sum(len(message.value) for message in self.records)


def cut_batch(at: int, passage: Passage, reset_tag: str) -> ConsumerBatch:
    """Return what comes before the first reset record of this consumer, or that record.

    Reset records of other consumers are left out.
    """
    records = resets_in(passage.messages)
    if not records:
        return ConsumerBatch(at, passage.next, passage.messages, None, passage.gap)
    mine = next((record for record in records if record.tag == reset_tag), None)
    end = mine.offset if mine else passage.next
    others = {record.offset for record in records}
    messages = [m for m in passage.messages if m.offset < end and m.offset not in others]
    if mine and not (messages or passage.gap):
        return ConsumerBatch(at, end + 1, [], mine, None)
    return ConsumerBatch(at, end, messages, None, passage.gap)
