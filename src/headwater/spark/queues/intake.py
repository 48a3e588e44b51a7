"""The intake of a queue: a stream in which rows wait until the driver pushes them into the queue.

There is one for each queue and producer. Tasks stage their rows beside it. The driver's commit
publishes them there, once for each producer and sequence, and brings them from there into the queue
in pushes of bounded size. Each push has the intake as its producer, and as its sequence the offset
of its last row: so the queue itself knows, by the same call that took the rows, up to where it has
the intake. A commit that is repeated goes on from there, with the rows of the first attempt.

What was brought over is evicted from the intake, which is empty between two commits.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import WriterCommitMessage

from headwater.errors import InvalidInput, StaleSequence
from headwater.kernel.headers import NO_HEADERS, Headers
from headwater.kernel.inputs import MAX_MS, MAX_NAME_BYTES
from headwater.log.node import encoded_column
from headwater.log.reading import extent, newest_sequence
from headwater.log.retention import PRODUCER_MS
from headwater.log.stream import Stream
from headwater.queue.keys import MAX_PRIORITY, queue_key
from headwater.spark.engine.write_identity import content_of_tasks
from headwater.spark.log.staging import (
    LogSink,
    StagedRows,
    new_staging,
    stage_rows,
    unstage_rows,
)
from headwater.spark.log.target import StreamOrTopic
from headwater.spark.queues.target import QueueAddress

# What one push takes at most: enough to be quick, and milliseconds for the server.
PUSH_ROWS = 5000
PUSH_BYTES = 8 * 1024 * 1024
# What distinguishes an intake from another one of its name: a colon and microseconds.
_STAMP_BYTES = 17
_BOUNDS = {
    "priority": (-MAX_PRIORITY, MAX_PRIORITY),
    "delay_ms": (0, MAX_MS),
    "ttl_ms": (1, MAX_MS),
}


def intake_name(queue: str, producer: str) -> str:
    """Return the name of the intake of a queue and a producer. Raises InvalidInput."""
    # The length keeps two pairs of names apart.
    name = f"intake:{len(queue)}:{queue}:{producer}"
    if len(name.encode()) + _STAMP_BYTES > MAX_NAME_BYTES:
        raise InvalidInput(
            f"the names of queue {queue!r} and producer {producer!r} are too long together; "
            "choose a shorter one"
        )
    return name


def target_of(address: QueueAddress, producer: str) -> StreamOrTopic:
    """Return the intake of a queue and a producer as what is written to."""
    return StreamOrTopic(address.url, intake_name(address.queue, producer), False)


def _intake_of(address: QueueAddress, producer: str) -> LogSink:
    return LogSink(target_of(address, producer), 0)


# ── In tasks ─────────────────────────────────────────────────────────────────────────────────


def stage(
    address: QueueAddress,
    producer: str,
    batches: Iterable[pa.RecordBatch],
    query: str | None = None,
    *,
    repeatable: bool = True,
) -> StagedRows:
    """Stage the rows of a task beside the intake."""
    rows = (to_messages(batch) for batch in batches if batch.num_rows)
    intake = _intake_of(address, producer)
    return stage_rows(intake, rows, new_staging(query), query, repeatable=repeatable)


def to_messages(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return rows as messages of the intake: the tag says how to push; equal tags are adjacent."""
    names = [name for name in _BOUNDS if name in batch.schema.names]
    for name in names:
        _check_bounds(batch.column(name), name)
    if names:
        order = pc.sort_indices(batch, [(name, "ascending") for name in names])
        batch = batch.take(order)
    words = [
        pc.coalesce(batch.column(name).cast(pa.string()), pa.scalar(""))
        if name in names
        else pa.repeat(pa.scalar(""), batch.num_rows)
        for name in _BOUNDS
    ]
    tags = pc.binary_join_element_wise(*words, ":")
    messages = pa.RecordBatch.from_arrays([tags, batch.column("value")], names=["tag", "value"])
    if "headers" not in batch.schema.names:
        return messages
    return messages.append_column("headers", batch.column("headers"))


def _check_bounds(values: pa.Array, name: str) -> None:
    least, most = _BOUNDS[name]
    found = pc.min_max(values).as_py()
    for value in (found["min"], found["max"]):
        if value is not None and not least <= value <= most:
            raise InvalidInput(f"{name} must be from {least} to {most}, not {value}; correct it")


# ── On the driver ────────────────────────────────────────────────────────────────────────────


class Push(NamedTuple):
    """Rows of the intake that are pushed by one call; ``last`` is the offset of the last."""

    tag: str
    values: list[bytes]
    headers: list[Headers]
    last: int


def commit(
    address: QueueAddress,
    messages: Iterable[WriterCommitMessage | None],
    producer: str,
    sequence: int,
    plan: str = "",
) -> None:
    """Bring what tasks have staged into the queue; a repeat goes on with the first commit.

    Raises ReusedSequence when the first one had other content, and not the same ``plan``, and
    StaleSequence.
    """
    messages = [*messages]
    staged = [m.staging for m in messages if isinstance(m, StagedRows) and m.places]
    if not staged:
        return
    intake = address.hw.stream(intake_name(address.queue, producer))
    content = content_of_tasks(messages).digest(plan)
    found = intake.publish(*staged, producer=producer, sequence=sequence, content=content)
    # Nobody repeats what is older than the memory of producers.
    intake.retain(max_age_ms=PRODUCER_MS)
    # What an earlier commit has left goes first, and is cut as that one would have cut it.
    bring_over(address, intake, found.first)
    bring_over(address, intake, found.last + 1)
    intake.evict(found.last)


def abort(
    address: QueueAddress, messages: Iterable[WriterCommitMessage | None], producer: str
) -> None:
    """Drop what tasks have staged."""
    unstage_rows(_intake_of(address, producer), messages)


def delete(address: QueueAddress, producer: str) -> None:
    """Delete the intake of a producer whose write nobody can repeat."""
    address.hw.stream(intake_name(address.queue, producer)).delete()


def bring_over(address: QueueAddress, intake: Stream, stop: int) -> None:
    """Push the rows of the intake before an offset, from where the queue has it on."""
    run, queue = address.hw.store.run, address.hw.queue(address.queue)
    # An intake that was deleted and made anew counts its offsets anew: it is another producer.
    producer = f"{intake.name}:{run(extent(intake.name)).created}"
    newest = run(newest_sequence(queue_key(address.queue), producer)) or 0
    for push in pushes(intake.scan(newest + 1, stop, headers=True)):
        priority, delay_ms, ttl_ms = push.tag.split(":")
        # What is older than the remembered answers is in the queue: an intake is pushed in order.
        with contextlib.suppress(StaleSequence):
            queue.push_many(
                push.values,
                priority=int(priority or 0),
                delay_ms=int(delay_ms or 0),
                ttl_ms=int(ttl_ms) if ttl_ms else None,
                headers=push.headers if any(push.headers) else None,
                producer=producer,
                sequence=push.last,
            )


def pushes(batches: Iterable[pa.RecordBatch]) -> Iterator[Push]:
    """Cut rows into pushes, in order; rows from one offset on are always cut in the same way."""
    tag, values, all_headers, size, last = "", list[bytes](), list[Headers](), 0, 0
    for batch in batches:
        columns = (batch.column(name).to_pylist() for name in ("offset", "tag", "value"))
        for offset, its_tag, value, headers in zip(*columns, _headers(batch), strict=True):
            its_size = len(value) + len(headers.encoded)
            full = len(values) >= PUSH_ROWS or size + its_size > PUSH_BYTES
            if values and (full or its_tag != tag):
                yield Push(tag, values, all_headers, last)
                values, all_headers, size = [], [], 0
            values.append(value)
            all_headers.append(headers)
            tag, size, last = its_tag, size + its_size, offset
    if values:
        yield Push(tag, values, all_headers, last)


def _headers(batch: pa.RecordBatch) -> list[Headers]:
    """Return the headers of each row of an intake."""
    column = batch.column("headers")
    encoded = encoded_column(column) if len(column.keys) else None
    if encoded is None:
        return [NO_HEADERS] * batch.num_rows
    return [Headers.stored(one) if one else NO_HEADERS for one in encoded.to_pylist()]
