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
import pyarrow.compute as pc
from pyspark import TaskContext
from pyspark.sql.datasource import WriterCommitMessage
from pyspark.sql.types import StructType

from headwater.errors import HeadwaterError, InvalidInput
from headwater.log import node, topics
from headwater.log.handles import StreamHandle
from headwater.log.keys import MAX_BATCH_BYTES, NODE_MESSAGES, stream_key
from headwater.log.reading import newest_sequence
from headwater.log.writing import STAGED_MS, stage, stage_nodes
from headwater.spark.engine.columns import is_own_scan
from headwater.spark.engine.writes import Content, FromTask, content_of, content_of_tasks
from headwater.spark.log.columns import NODE
from headwater.spark.log.target import StreamOrTopic
from headwater.store.many import together

# ── Messages ──────────────────────────────────────────────────────────────────────────────────────
# Rows of a DataFrame as messages of the log: their tags and values, and the partition of each.


def messages_by_partition(
    batch: pa.RecordBatch, partitions: int
) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Yield the messages of each partition, in the order of their rows; 0 partitions: a stream."""
    messages = _messages(batch)
    if not partitions:
        yield 0, messages
        return
    places = _partitions(batch, messages.column("tag"), partitions)
    yield from topics.spread(messages, places).items()


def _messages(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return tag, value, time and headers as a stream takes them, without a loop over rows."""
    value = batch.column("value")
    if value.null_count:
        raise InvalidInput(
            "a row has a value that is null; the log takes none: drop such rows by "
            ".where('value IS NOT NULL'), or give an empty value"
        )
    if "tag" in batch.schema.names:
        tag = batch.column("tag")
        if tag.null_count:
            raise InvalidInput(
                "a row has a tag that is null; use .withColumn('tag', coalesce('tag', lit('')))"
            )
    else:
        tag = pa.repeat(pa.scalar("", pa.string()), batch.num_rows)
    columns = {"tag": tag.cast(pa.string()), "value": value.cast(pa.binary())}
    columns |= {
        name: batch.column(name) for name in ("time", "headers") if name in batch.schema.names
    }
    return pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))


def _partitions(batch: pa.RecordBatch, tags: pa.Array, partitions: int) -> pa.Array:
    """Return the partition of each row: that of the column, else that of its tag."""
    if "partition" not in batch.schema.names:
        return topics.places_of(tags, partitions)
    given = batch.column("partition")
    least, most = pc.min_max(given).as_py().values()
    if least is not None and (least < 0 or most >= partitions):
        raise InvalidInput(
            f"a row has partition {least if least < 0 else most}, and the topic has {partitions}, "
            "counted from 0; correct the column, or drop it to place rows by their tags"
        )
    given = given.cast(pa.int32())
    return pc.coalesce(given, topics.places_of(tags, partitions)) if given.null_count else given


# ── Staging ───────────────────────────────────────────────────────────────────────────────────────


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


# ── Packed rows ───────────────────────────────────────────────────────────────────────────────────
# Rows of a write that come as nodes: tasks packed them in the JVM (``jvm/NodePacker.java``).
#
# Sessions that have our Java send nodes in place of rows, where the columns allow it
# (``jvm/NodeColumns.java``). A write of that kind is planned with one more column, which carries
# the mark of our scans. What its tasks get is a node in each row, with the first and the newest of
# its times and the sum of the checksums of its messages (see ``spark/engine/writes.py``); or a row
# as it came, when the log does not take it. Such a row is checked as every other one, so that its
# error is the same in all sessions.


_FIRST, _NEWEST, _SUM = "__first", "__newest", "__sum"
_OF_NODES = (NODE.name, _FIRST, _NEWEST, _SUM)


def comes_packed(schema: StructType) -> bool:
    """Return whether the tasks of a write will get nodes."""
    return is_own_scan(schema) and schema.names[-1] == NODE.name


def as_given(schema: StructType) -> StructType:
    """Return the columns of a write as its query has them."""
    return StructType(schema.fields[:-1]) if comes_packed(schema) else schema


def stage_packed(
    sink: LogSink, batches: Iterable[pa.RecordBatch], staging: str, query: str | None = None
) -> StagedRows:
    """Stage the nodes of a task; what it has staged is dropped when it fails."""
    stream = StreamHandle(sink.stream_of(0), set())
    place, content = 0, Content()
    try:
        for batch in batches:
            nodes = list(_nodes(sink, batch, staging))
            place = sink.target.hw.store.run(stage_nodes(stream, nodes, staging, place))
            rows, sums = sum(one.rows for one in nodes), batch.column(_SUM).to_pylist()
            content = content.joined(Content(rows, sum(sums)))
    except BaseException:
        with contextlib.suppress(HeadwaterError):
            unstage_rows(sink, [StagedRows(query, content, staging, (0,))])
        raise
    return StagedRows(query, content, staging, (0,) if content.rows else ())


def _nodes(sink: LogSink, batch: pa.RecordBatch, staging: str) -> Iterator[node.PackedNode]:
    blobs, firsts, newests, _ = (batch.column(name).to_pylist() for name in _OF_NODES)
    for row, (blob, first, newest) in enumerate(zip(blobs, firsts, newests, strict=True)):
        if blob is None:
            _refuse(sink, batch.slice(row, 1), staging)
        _, rows, size = node.check(blob)
        yield node.PackedNode(rows, first, newest, size, blob)


def _refuse(sink: LogSink, row: pa.RecordBatch, staging: str) -> None:
    """Raise what is wrong with a row that the JVM did not pack, as a write of it would."""
    stage_rows(sink, [row.drop_columns(list(_OF_NODES))], staging)
    raise AssertionError("the JVM refused a row that the log takes")
