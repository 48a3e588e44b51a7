"""A queue as a sink: each row is one message in it, once, whoever dies and is repeated.

Tasks stage their rows beside a stream, the *intake* of this queue and this query. The driver's
commit publishes them there, once for each query and epoch, and brings them from there into the
queue in pushes of bounded size. Each push has the intake as its producer, and as its sequence the
offset of its last row: so the queue itself knows, by the same call that took the rows, up to where
it has the intake. A commit that is repeated goes on from there, with the rows of the first attempt.

What was brought over is evicted from the intake, which is empty between two commits.

The columns are ``value`` (binary or string) and, if they are there, ``priority``, ``delay_ms`` and
``ttl_ms``. Within a task rows are ordered by these three, and else as they come, which no consumer
can tell: a queue has an order within a priority only.
"""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import BinaryType, IntegerType, LongType, StringType

from headwater.client import Headwater
from headwater.errors import InvalidInput, StaleSequence
from headwater.inputs import MAX_MS, MAX_NAME_BYTES
from headwater.log.extents import extent
from headwater.log.reading import newest_sequence
from headwater.log.retention import PRODUCER_MS
from headwater.log.stream import Stream
from headwater.queue.keys import queue_key
from headwater.queue.limits import MAX_PRIORITY
from headwater.spark.engine.accepted_columns import AcceptedColumns
from headwater.spark.engine.connections import client
from headwater.spark.engine.failures import one_line
from headwater.spark.engine.write_identity import queries_of, query_of_task
from headwater.spark.log import sink as log_sink
from headwater.spark.log.sink import LogSink, StagedRows, fresh_name
from headwater.spark.log.target import StreamOrTopic

# What one push takes at most: enough to be quick, and milliseconds for the server.
PUSH_ROWS = 5000
PUSH_BYTES = 8 * 1024 * 1024
ACCEPTED = AcceptedColumns(
    "a queue",
    {
        "value": (BinaryType, StringType),
        "priority": (IntegerType, LongType),
        "delay_ms": (IntegerType, LongType),
        "ttl_ms": (IntegerType, LongType),
    },
    ["value"],
)
# What tells an intake from another one of its name: a colon and microseconds.
_STAMP_BYTES = 17
_BOUNDS = {
    "priority": (-MAX_PRIORITY, MAX_PRIORITY),
    "delay_ms": (0, MAX_MS),
    "ttl_ms": (1, MAX_MS),
}


@dataclass(frozen=True, slots=True)
class QueueAddress:
    """A queue of a store; goes to tasks, so it holds names only."""

    url: str = field(repr=False)
    queue: str

    @property
    def hw(self) -> Headwater:
        """This process's client of the store."""
        return client(self.url)

    def intake(self, producer: str) -> LogSink:
        """Give the stream beside which a producer stages."""
        return LogSink(StreamOrTopic(self.url, intake_name(self.queue, producer), False), 0)


def intake_name(queue: str, producer: str) -> str:
    """Name the intake of a queue and a producer; the length keeps two names apart."""
    name = f"intake:{len(queue)}:{queue}:{producer}"
    if len(name.encode()) + _STAMP_BYTES > MAX_NAME_BYTES:
        raise InvalidInput(
            f"the names of queue {queue!r} and producer {producer!r} are too long together; "
            "choose a shorter one"
        )
    return name


# ── In tasks ─────────────────────────────────────────────────────────────────────────────────


def stage(
    place: QueueAddress, producer: str, batches: Iterable[pa.RecordBatch], query: str | None = None
) -> StagedRows:
    """Stage the rows of a task beside the intake."""
    rows = (to_messages(batch) for batch in batches if batch.num_rows)
    return log_sink.stage_rows(place.intake(producer), rows, fresh_name(), query)


def to_messages(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Give rows as messages of the intake: how to push them is in the tag, alike ones together."""
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
    return pa.RecordBatch.from_arrays([tags, batch.column("value")], names=["tag", "value"])


def _check_bounds(values: pa.Array, name: str) -> None:
    least, most = _BOUNDS[name]
    found = pc.min_max(values).as_py()
    for value in (found["min"], found["max"]):
        if value is not None and not least <= value <= most:
            raise InvalidInput(f"{name} must be from {least} to {most}, not {value}; correct it")


# ── On the driver ────────────────────────────────────────────────────────────────────────────


class Push(NamedTuple):
    """Rows of the intake that are pushed alike, at once; ``last`` is the offset of the last."""

    tag: str
    values: list[bytes]
    last: int


def commit(
    place: QueueAddress,
    messages: Iterable[WriterCommitMessage | None],
    producer: str,
    sequence: int,
) -> None:
    """Bring what tasks have staged into the queue; a repeat goes on with the first commit."""
    staged = [m.staging for m in messages if isinstance(m, StagedRows) and m.places]
    if not staged:
        return
    intake = place.hw.stream(intake_name(place.queue, producer))
    found = intake.publish(*staged, producer=producer, sequence=sequence)
    # Nobody repeats what is older than the memory of producers.
    intake.retain(max_age_ms=PRODUCER_MS)
    # What a commit before this one has left comes first, and is cut as that would have.
    bring_over(place, intake, found.first)
    bring_over(place, intake, found.last + 1)
    intake.evict(found.last)


def bring_over(place: QueueAddress, intake: Stream, stop: int) -> None:
    """Push what lies in the intake before an offset, from where the queue has it on."""
    run, queue = place.hw.store.run, place.hw.queue(place.queue)
    # One that was deleted and began anew counts its offsets anew, so that it is another producer.
    producer = f"{intake.name}:{run(extent(intake.name)).created}"
    newest = run(newest_sequence(queue_key(place.queue), producer)) or 0
    for push in pushes(intake.scan(newest + 1, stop)):
        priority, delay_ms, ttl_ms = push.tag.split(":")
        # What is older than the answers remembered is there: an intake is pushed in order.
        with contextlib.suppress(StaleSequence):
            queue.push_many(
                push.values,
                priority=int(priority or 0),
                delay_ms=int(delay_ms or 0),
                ttl_ms=int(ttl_ms) if ttl_ms else None,
                producer=producer,
                sequence=push.last,
            )


def pushes(batches: Iterable[pa.RecordBatch]) -> Iterator[Push]:
    """Cut rows into pushes, in order; from one offset on they are always cut alike."""
    tag, values, size, last = "", list[bytes](), 0, 0
    for batch in batches:
        columns = (batch.column(name).to_pylist() for name in ("offset", "tag", "value"))
        for offset, its_tag, value in zip(*columns, strict=True):
            full = len(values) >= PUSH_ROWS or size + len(value) > PUSH_BYTES
            if values and (full or its_tag != tag):
                yield Push(tag, values, last)
                values, size = [], 0
            values.append(value)
            tag, size, last = its_tag, size + len(value), offset
    if values:
        yield Push(tag, values, last)


@dataclass
class QueueWriter(DataSourceArrowWriter):
    """A batch write; with a producer it may be repeated."""

    place: QueueAddress
    given: tuple[str, int] | None
    # Names the write for all its tasks, when nobody else does.
    own: str = field(default_factory=lambda: f"spark-{secrets.token_hex(12)}")

    @property
    def producer(self) -> str:
        """Whose write it is."""
        return self.given[0] if self.given else self.own

    @one_line()
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Stage the rows of a task."""
        return stage(self.place, self.producer, iterator)

    @one_line()
    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Push the rows of all tasks."""
        commit(self.place, messages, self.producer, self.given[1] if self.given else 0)
        if self.given is None:
            # Nobody can repeat this write, so that nothing of it must be remembered.
            self.place.hw.stream(intake_name(self.place.queue, self.producer)).delete()

    @one_line()
    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Forget what was staged."""
        log_sink.drop(self.place.intake(self.producer), messages)


@dataclass
class QueueStreamWriter(DataSourceStreamArrowWriter):
    """The writes of a streaming query: each epoch is in the queue once."""

    place: QueueAddress

    @one_line()
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Stage the rows of a task."""
        query = query_of_task()
        return stage(self.place, query, iterator, query)

    @one_line()
    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Push an epoch; a repeat of one that was pushed changes nothing."""
        for query in queries_of(messages):
            commit(self.place, messages, query, batchId)

    @one_line()
    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803, ARG002
        """Forget what was staged."""
        for query in queries_of(messages):
            log_sink.drop(self.place.intake(query), messages)
