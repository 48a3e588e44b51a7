"""The log as a sink: tasks stage, the driver's commit publishes, once for each query and epoch.

Tasks pack their rows as nodes and stage them beside the stream that they are for; nobody sees them.
When all tasks are done, the commit publishes what they staged, in the order of the tasks. A task
that is repeated, or runs twice at once, stages under another name, and only one of them is named in
the commit. A commit that is repeated, because the driver or the store died, goes on with the first
one: the store knows it by the query and the epoch, or by the options ``producer`` and ``sequence``.

The columns are ``value`` (binary or string), ``tag`` (string; empty when there is no such column)
and, into a topic, ``partition`` (by the tag when it is null or there is no such column).
"""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import BinaryType, DataType, IntegerType, LongType, StringType, StructType

from headwater.errors import HeadwaterError, InvalidInput
from headwater.log.limits import MAX_BATCH_BYTES, NODE_MESSAGES
from headwater.spark.engine.failures import one_line
from headwater.spark.engine.options import SourceOptions
from headwater.spark.engine.write_identity import (
    SPARK_OPTIONS,
    FromTask,
    producer_of,
    queries_of,
    query_of_task,
    refuse_producer,
)
from headwater.spark.log.messages import place_rows
from headwater.spark.log.target import StreamOrTopic, target_of

WRITE_OPTIONS = ("url", "stream", "topic", "partitions", "producer", "sequence")
# What a task gathers for a stream before it stages it in one call.
GATHERED_ROWS = 16 * NODE_MESSAGES
GATHERED_BYTES = MAX_BATCH_BYTES // 8
_TYPES: dict[str, tuple[type[DataType], ...]] = {
    "value": (BinaryType, StringType),
    "tag": (StringType,),
    "partition": (IntegerType, LongType),
}


@dataclass(frozen=True, slots=True)
class LogSink:
    """Where rows go; goes to tasks, so it holds names only. ``partitions`` is 0 for a stream."""

    target: StreamOrTopic
    partitions: int

    def stream_of(self, place: int) -> str:
        """Name the stream of a partition."""
        return f"{self.target.name}/{place}" if self.partitions else self.target.name


@dataclass(frozen=True)
class StagedRows(FromTask):
    """What a task has staged: under which name, and for which partitions."""

    staging: str
    places: tuple[int, ...]
    rows: int


# ── On the driver: what is refused before anything runs ──────────────────────────────────────


def sink_of(options: SourceOptions, schema: StructType, overwrite: bool) -> LogSink:
    """Check what a query wants to write, and where. Raises InvalidInput, PartitionMismatch."""
    if overwrite:
        raise InvalidInput(
            "a log is only added to: write with .mode('append'), or .outputMode('append') in a "
            "streaming query; to begin anew, delete the stream first"
        )
    target = target_of(options)
    _check_columns(schema, target.is_topic)
    if not target.is_topic:
        if "partitions" in options:
            raise InvalidInput("option 'partitions' is for a topic; leave it out for a stream")
        return LogSink(target, 0)
    topic = target.hw.topic(target.name, options.number("partitions"))
    return LogSink(target, topic.partitions())


def _check_columns(schema: StructType, is_topic: bool) -> None:
    kinds = dict(_TYPES) if is_topic else {n: t for n, t in _TYPES.items() if n != "partition"}
    for column in schema.fields:
        wanted = kinds.pop(column.name, None)
        if wanted is None:
            raise InvalidInput(_unknown_column(column.name, schema, is_topic))
        if not isinstance(column.dataType, wanted):
            cure = (
                ".withColumn('value', to_json(struct('*'))), for example"
                if column.name == "value"
                else f".withColumn({column.name!r}, col({column.name!r}).cast(...))"
            )
            words = " or ".join(kind.typeName() for kind in wanted)
            found = column.dataType.simpleString()
            raise InvalidInput(f"column {column.name!r} must be {words}, not {found}; use {cure}")
    if "value" in kinds:
        raise InvalidInput(
            f"there is no column 'value' among {schema.names}; make one, for example by "
            ".select(to_json(struct('*')).alias('value'))"
        )


def _unknown_column(name: str, schema: StructType, is_topic: bool) -> str:
    if schema.names.count(name) > 1:
        return f"column {name!r} is there twice; name each once"
    if name == "partition":
        return "column 'partition' is for a topic; write to one by the option 'topic', or drop it"
    wanted = [n for n in _TYPES if is_topic or n != "partition"]
    return (
        f"column {name!r} has no place in the log, which takes {', '.join(wanted)}; choose with "
        ".select('tag', 'value'), or put it into the value by to_json(struct('*'))"
    )


def batch_writer(given: SourceOptions, schema: StructType, overwrite: bool) -> LogWriter:
    """Plan a batch write."""
    return LogWriter(sink_of(given, schema, overwrite), producer_of(given))


def stream_writer(given: SourceOptions, schema: StructType, overwrite: bool) -> LogStreamWriter:
    """Plan a streaming query's writes."""
    refuse_producer(given)
    return LogStreamWriter(sink_of(given, schema, overwrite))


def write_options(given: Mapping[str, str]) -> SourceOptions:
    """Read the options of a write."""
    return SourceOptions(given, (*WRITE_OPTIONS, *SPARK_OPTIONS))


# ── In tasks ─────────────────────────────────────────────────────────────────────────────────


@dataclass
class _Gathered:
    """Rows for one stream that are not staged yet, and where the next ones go."""

    place: int = 0
    batches: list[pa.RecordBatch] = field(default_factory=list)
    rows: int = 0
    bytes: int = 0

    def add(self, batch: pa.RecordBatch) -> None:
        self.batches.append(batch)
        self.rows += batch.num_rows
        self.bytes += batch.nbytes

    def take(self, everything: bool) -> pa.RecordBatch:
        """Give what fills nodes; a node's worth stays, so that the last one is not too small."""
        whole = pa.concat_batches(self.batches) if len(self.batches) > 1 else self.batches[0]
        self.batches, self.rows, self.bytes = [], 0, 0
        if everything:
            return whole
        count = max(whole.num_rows - NODE_MESSAGES, 0) // NODE_MESSAGES * NODE_MESSAGES
        if count < whole.num_rows and count:
            self.add(whole.slice(count))
            return whole.slice(0, count)
        return whole


def stage_rows(
    sink: LogSink, batches: Iterable[pa.RecordBatch], staging: str, query: str | None = None
) -> StagedRows:
    """Stage all rows of a task; what it has staged is dropped when it fails."""
    gathered: dict[int, _Gathered] = {}
    rows = 0
    try:
        for batch in batches:
            rows += batch.num_rows
            for place, part in place_rows(batch, sink.partitions):
                waiting = gathered.setdefault(place, _Gathered())
                for piece in _pieces(part):
                    waiting.add(piece)
                    if waiting.rows >= GATHERED_ROWS or waiting.bytes >= GATHERED_BYTES:
                        _stage(sink, place, waiting, staging, everything=False)
        for place, waiting in gathered.items():
            if waiting.rows:
                _stage(sink, place, waiting, staging, everything=True)
    except BaseException:
        with contextlib.suppress(HeadwaterError):
            drop(sink, [StagedRows(query, staging, tuple(gathered), rows)])
        raise
    return StagedRows(query, staging, tuple(sorted(gathered)), rows)


def _stage(
    sink: LogSink, place: int, waiting: _Gathered, staging: str, *, everything: bool
) -> None:
    stream = sink.target.hw.stream(sink.stream_of(place))
    waiting.place = stream.stage(waiting.take(everything), staging, place=waiting.place)


def _pieces(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Cut a batch of very large rows so that each part can be sent."""
    if batch.nbytes <= GATHERED_BYTES or batch.num_rows == 1:
        if batch.num_rows:
            yield batch
        return
    middle = batch.num_rows // 2
    yield from _pieces(batch.slice(0, middle))
    yield from _pieces(batch.slice(middle))


# ── On the driver: all or nothing ────────────────────────────────────────────────────────────


def publish(
    sink: LogSink, messages: Iterable[WriterCommitMessage | None], producer: str, sequence: int
) -> None:
    """Publish what tasks have staged, in their order, in each partition."""
    stagings: dict[int, list[str]] = {}
    for message in messages:
        assert isinstance(message, StagedRows)
        for place in message.places:
            stagings.setdefault(place, []).append(message.staging)
    for place, names in sorted(stagings.items()):
        stream = sink.target.hw.stream(sink.stream_of(place))
        stream.publish(*names, producer=producer, sequence=sequence)


def drop(sink: LogSink, messages: Iterable[WriterCommitMessage | None]) -> None:
    """Forget what tasks have staged, unless it is being published already."""
    for message in messages:
        if isinstance(message, StagedRows):
            for place in message.places:
                sink.target.hw.stream(sink.stream_of(place)).unstage(message.staging)


class LogWriter(DataSourceArrowWriter):
    """A batch write: all rows are in the log when it succeeds, and none when a task fails."""

    def __init__(self, sink: LogSink, producer: tuple[str, int] | None) -> None:
        self._sink = sink
        self._producer, self._sequence = producer or (f"spark-{secrets.token_hex(12)}", 0)

    @one_line()
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Stage the rows of a task."""
        return stage_rows(self._sink, iterator, fresh_name())

    @one_line()
    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Publish the rows of all tasks."""
        publish(self._sink, messages, self._producer, self._sequence)

    @one_line()
    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Forget what was staged."""
        drop(self._sink, messages)


class LogStreamWriter(DataSourceStreamArrowWriter):
    """The writes of a streaming query: each epoch is in the log once."""

    def __init__(self, sink: LogSink) -> None:
        self._sink = sink

    @one_line()
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Stage the rows of a task."""
        return stage_rows(self._sink, iterator, fresh_name(), query_of_task())

    @one_line()
    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Publish an epoch; a repeat of one that was published changes nothing."""
        for query in queries_of(messages):
            publish(self._sink, messages, query, batchId)

    @one_line()
    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803, ARG002
        """Forget what was staged."""
        drop(self._sink, messages)


def fresh_name() -> str:
    """Name what one attempt of one task stages; no other attempt has that name, ever."""
    context = TaskContext.get()
    task = context.partitionId() if context else 0
    return f"spark-{task}-{secrets.token_hex(12)}"
