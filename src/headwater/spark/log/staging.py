"""Rows staged beside a stream by tasks, and published by the driver's commit, all or nothing.

Tasks pack their rows as nodes and stage them beside the stream that they are for; nobody sees them.
When all tasks are done, the commit publishes what they staged, in the order of the tasks. A task
that is repeated, or runs twice at once, stages under another name, and only one of them is named in
the commit. A commit that is repeated, because the driver or the store died, goes on with the first
one: the store recognises it by producer and sequence. Other rows under them are refused.

The sink of the log and that of queues write in this way.
"""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import WriterCommitMessage

from headwater.errors import HeadwaterError
from headwater.log import node
from headwater.log.handles import StreamHandle
from headwater.log.keys import MAX_BATCH_BYTES, NODE_MESSAGES, stream_key
from headwater.log.reading import newest_sequence
from headwater.log.writing import STAGED_MS, stage
from headwater.spark.engine.contents import Content, content_of
from headwater.spark.engine.write_identity import FromTask, content_of_tasks
from headwater.spark.log.messages import messages_by_partition
from headwater.spark.log.target import StreamOrTopic
from headwater.store.many import together

# What a task collects for a stream before it stages it in one call.
STAGE_ROWS = 16 * NODE_MESSAGES
STAGE_BYTES = MAX_BATCH_BYTES // 8


@dataclass(frozen=True, slots=True)
class LogSink:
    """Where rows go; goes to tasks, so it holds names only. ``partitions`` is 0 for a stream."""

    target: StreamOrTopic
    partitions: int

    def stream_of(self, place: int) -> str:
        """Return the name of the stream of a partition."""
        return f"{self.target.name}/{place}" if self.partitions else self.target.name


@dataclass(frozen=True)
class StagedRows(FromTask):
    """What a task has staged: under which name, and for which partitions."""

    staging: str
    places: tuple[int, ...]


# ── In tasks ─────────────────────────────────────────────────────────────────────────────────


@dataclass
class _Collected:
    """Rows for one stream that are not staged yet, where the next ones go, what was staged."""

    place: int = 0
    content: Content = field(default_factory=Content)
    batches: list[pa.RecordBatch] = field(default_factory=list)
    rows: int = 0
    bytes: int = 0

    def add(self, batch: pa.RecordBatch) -> None:
        self.batches.append(batch)
        self.rows += batch.num_rows
        self.bytes += batch.nbytes

    def take(self, everything: bool) -> pa.RecordBatch:
        """Take rows for full nodes; the rows of one node stay, so that the last is not small."""
        whole = pa.concat_batches(self.batches) if len(self.batches) > 1 else self.batches[0]
        self.batches, self.rows, self.bytes = [], 0, 0
        if everything:
            return whole
        count = max(whole.num_rows - NODE_MESSAGES, 0) // NODE_MESSAGES * NODE_MESSAGES
        if count < whole.num_rows and count:
            self.add(whole.slice(count))
            return whole.slice(0, count)
        return whole


def new_staging(query: str | None = None) -> str:
    """Return a name for what one attempt of one task stages; no other attempt ever has it.

    It begins with the producer of a streaming query, so that what a query has staged is known.
    """
    context = TaskContext.get()
    task = context.partitionId() if context else 0
    return f"{query or 'spark'}-{task}-{secrets.token_hex(12)}"


def stage_rows(
    sink: LogSink,
    batches: Iterable[pa.RecordBatch],
    staging: str,
    query: str | None = None,
    *,
    repeatable: bool = True,
) -> StagedRows:
    """Stage all rows of a task; what it has staged is dropped when it fails.

    What a write that nobody can repeat holds need not be known.
    """
    collected: dict[int, _Collected] = {}
    try:
        for batch in batches:
            for place, messages in messages_by_partition(batch, sink.partitions):
                waiting = collected.setdefault(place, _Collected())
                for piece in _pieces(messages):
                    waiting.add(piece)
                    if waiting.rows >= STAGE_ROWS or waiting.bytes >= STAGE_BYTES:
                        _stage(sink, place, waiting, staging, repeatable, everything=False)
        for place, waiting in collected.items():
            if waiting.rows:
                _stage(sink, place, waiting, staging, repeatable, everything=True)
    except BaseException:
        with contextlib.suppress(HeadwaterError):
            unstage_rows(sink, [StagedRows(query, Content(), staging, tuple(collected))])
        raise
    content = Content.of_all(one.content for one in collected.values())
    return StagedRows(query, content, staging, tuple(sorted(collected)))


def _stage(
    sink: LogSink,
    place: int,
    waiting: _Collected,
    staging: str,
    repeatable: bool,
    *,
    everything: bool,
) -> None:
    handle = StreamHandle(sink.stream_of(place), set())
    rows = node.from_arrow(waiting.take(everything))
    if repeatable:
        waiting.content = waiting.content.joined(content_of(rows))
    waiting.place = sink.target.hw.store.run(stage(handle, rows, staging, waiting.place, STAGED_MS))


def _pieces(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Cut a batch of very large rows so that each piece can be sent."""
    if batch.nbytes <= STAGE_BYTES or batch.num_rows == 1:
        if batch.num_rows:
            yield batch
        return
    middle = batch.num_rows // 2
    yield from _pieces(batch.slice(0, middle))
    yield from _pieces(batch.slice(middle))


# ── On the driver: all or nothing ────────────────────────────────────────────────────────────


def publish_rows(
    sink: LogSink,
    messages: Iterable[WriterCommitMessage | None],
    producer: str,
    sequence: int,
    plan: str = "",
) -> None:
    """Publish what tasks have staged, in their order, in each partition.

    Raises ReusedSequence when the sequence was published with other content, and not by the same
    ``plan``, and StaleSequence; then nothing was published.
    """
    messages = [*messages]
    content = content_of_tasks(messages).digest(plan)
    stagings: dict[int, list[str]] = {}
    for message in messages:
        assert isinstance(message, StagedRows)
        for place in message.places:
            stagings.setdefault(place, []).append(message.staging)
    for place in _those_that_may_refuse_first(sink, sorted(stagings), producer, sequence):
        stream = sink.target.hw.stream(sink.stream_of(place))
        stream.publish(*stagings[place], producer=producer, sequence=sequence, content=content)


def _those_that_may_refuse_first(
    sink: LogSink, places: list[int], producer: str, sequence: int
) -> list[int]:
    """Return partitions in their order, behind those that have come to the sequence before.

    So what is refused by one of them is in none of the others.
    """
    if len(places) < 2:
        return places
    keys = [stream_key(sink.stream_of(place)) for place in places]
    newest = sink.target.hw.store.run(together(newest_sequence(key, producer) for key in keys))
    known = {place for place, one in zip(places, newest, strict=True) if (one or 0) >= sequence}
    return sorted(places, key=lambda place: place not in known)


def unstage_rows(sink: LogSink, messages: Iterable[WriterCommitMessage | None]) -> None:
    """Drop what tasks have staged, unless it is being published already."""
    for message in messages:
        if isinstance(message, StagedRows):
            for place in message.places:
                sink.target.hw.stream(sink.stream_of(place)).unstage(message.staging)
