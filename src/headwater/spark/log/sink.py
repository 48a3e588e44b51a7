"""The log as a sink: tasks stage, the driver's commit publishes, once for each query and epoch.

How rows are staged and published is in ``staging``. A write is identified by its query and epoch,
or by the options ``producer`` and ``sequence``.

The columns are ``value`` (binary or string), ``tag`` (string; empty when there is no such column),
``time`` (timestamp; now when there is no such column) and, into a topic, ``partition`` (by the tag
when it is null or there is no such column). Rows of our own source may be written as they are:
their ``stream`` and ``offset`` are left out, and into a stream their ``partition``, too.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import msgspec
import pyarrow as pa
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructType,
    TimestampType,
)

from headwater.errors import InvalidInput
from headwater.spark.engine.columns import (
    AcceptedColumns,
    is_case_sensitive,
    refuse_overwrite,
    renamed,
    spelled_columns,
)
from headwater.spark.engine.failures import one_line
from headwater.spark.engine.options import SourceOptions
from headwater.spark.engine.writes import (
    plan_of,
    producer_of,
    queries_of,
    query_of_task,
    refuse_producer,
    writing_epoch,
)
from headwater.spark.log.columns import (
    ALL,
    HEADERS,
    VALUE_OPTIONS,
    ValueColumns,
    encode_values,
    encoded_schema,
    value_columns,
)
from headwater.spark.log.noting import note_first_epoch, note_query
from headwater.spark.log.staging import (
    LogSink,
    StagedRows,
    as_given,
    comes_packed,
    new_staging,
    publish_rows,
    stage_packed,
    stage_rows,
    unstage_rows,
)
from headwater.spark.log.target import target_of
from headwater.spark.queries.notes import NotedQuery

WRITE_OPTIONS = ("url", "stream", "topic", "partitions", "producer", "sequence", *VALUE_OPTIONS)
_TYPES: dict[str, tuple[type[DataType], ...]] = {
    "value": (BinaryType, StringType),
    "tag": (StringType,),
    "time": (TimestampType,),
    "headers": (ArrayType, MapType),
}
_HINT = ", or make the value of a whole row by to_json(struct('*'))"
_KAFKAS = {
    "key": "it is the tag here: .withColumnRenamed('key', 'tag')",
    "topic": "name the stream or topic by the option 'stream' or 'topic', and drop the column",
    "timestamp": "it is the time here: .withColumnRenamed('timestamp', 'time')",
}
ACCEPTED = AcceptedColumns("the log", _TYPES, ["value"], _HINT, _KAFKAS)
ACCEPTED_BY_TOPIC = AcceptedColumns(
    "the log", {**_TYPES, "partition": (IntegerType, LongType)}, ["value"], _HINT, _KAFKAS
)
# By these our own rows are known, which come with all their columns.
_OF_SOURCE = ("stream", "offset")


def write_options(given: Mapping[str, str]) -> SourceOptions:
    """Read the options of a write."""
    return SourceOptions(given, WRITE_OPTIONS, "stream", ["topic"])


def sink_of(options: SourceOptions, schema: StructType, overwrite: bool) -> LogSink:
    """Check what a query wants to write, and where. Raises InvalidInput, PartitionMismatch."""
    refuse_overwrite(overwrite, "a log")
    target = target_of(options)
    schema = _without_places(schema, target.is_topic)
    if target.is_topic:
        ACCEPTED_BY_TOPIC.check(schema)
        topic = target.hw.topic(target.name, options.number("partitions"))
        return LogSink(target, topic.partitions())
    if "partition" in schema.names:
        raise InvalidInput(
            "column 'partition' is for a topic; write to one by the option 'topic', or drop it"
        )
    ACCEPTED.check(schema)
    if "partitions" in options:
        raise InvalidInput("option 'partitions' is for a topic; leave it out for a stream")
    return LogSink(target, 0)


def _without_places(schema: StructType, is_topic: bool) -> StructType:
    """Leave out the columns of our own source that say where a message was."""
    if not all(name in schema.names for name in _OF_SOURCE):
        return schema
    left_out = _OF_SOURCE if is_topic else (*_OF_SOURCE, "partition")
    return StructType([field for field in schema.fields if field.name not in left_out])


def batch_writer(given: SourceOptions, schema: StructType, overwrite: bool) -> LogWriter:
    """Plan a batch write."""
    rows, schema = _rows_of(given, schema)
    return LogWriter(sink_of(given, schema, overwrite), producer_of(given), rows)


def stream_writer(given: SourceOptions, schema: StructType, overwrite: bool) -> LogStreamWriter:
    """Plan the writes of a streaming query."""
    refuse_producer(given)
    rows, schema = _rows_of(given, schema)
    sink = sink_of(given, schema, overwrite)
    about = NotedQuery(
        given.text("queryName") or "",
        checkpoint=given.text("checkpointLocation") or "",
        partitions=sink.partitions,
    )
    return LogStreamWriter(sink, rows, about)


@dataclass(frozen=True, slots=True)
class _Rows:
    """How the rows of a task come: packed as nodes, or with values to be made of columns.

    ``names`` are those of the sink for the columns, in their order; None: as they are.
    """

    packed: bool = False
    made_of: ValueColumns | None = None
    names: tuple[str, ...] | None = None

    def stage(
        self,
        sink: LogSink,
        batches: Iterator[pa.RecordBatch],
        query: str | None = None,
        *,
        repeatable: bool = True,
    ) -> StagedRows:
        if self.packed:
            return stage_packed(sink, batches, new_staging(query), query)
        batches = renamed(batches, self.names)
        if self.made_of is not None:
            batches = encode_values(batches, self.made_of)
        return stage_rows(sink, batches, new_staging(query), query, repeatable=repeatable)


_AS_THEY_ARE = _Rows()


def _rows_of(given: SourceOptions, schema: StructType) -> tuple[_Rows, StructType]:
    """Return how rows come, and the columns of the write with the value."""
    made_of = value_columns(given)
    packed, schema = comes_packed(schema), as_given(schema)
    exact = is_case_sensitive(given)
    schema = spelled_columns(schema, _known(made_of), exact=exact)
    rows = _Rows(packed, made_of, tuple(schema.names))
    return rows, schema if made_of is None else encoded_schema(schema, made_of)


def _known(made_of: ValueColumns | None) -> list[str]:
    """Return the columns that a write may have; those that values are made of come first."""
    named = [] if made_of is None else [*made_of.names]
    taken = {name.lower() for name in named}
    return named + [name for name in (*ALL, HEADERS) if name not in taken]


class LogWriter(DataSourceArrowWriter):
    """A batch write: all rows are in the log when it succeeds, and none when a task fails."""

    def __init__(
        self, sink: LogSink, producer: tuple[str, int] | None, rows: _Rows = _AS_THEY_ARE
    ) -> None:
        self._sink = sink
        self._rows = rows
        self._repeatable = producer is not None
        self._producer, self._sequence = producer or (f"spark-{secrets.token_hex(12)}", 0)

    @one_line()
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Stage the rows of a task."""
        return self._rows.stage(self._sink, iterator, repeatable=self._repeatable)

    @one_line()
    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Publish the rows of all tasks."""
        publish_rows(self._sink, messages, self._producer, self._sequence)

    @one_line()
    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Drop what was staged."""
        unstage_rows(self._sink, messages)


class LogStreamWriter(DataSourceStreamArrowWriter):
    """The writes of a streaming query: each epoch is in the log once.

    ``about`` is what is known of the query, to be noted in the store.
    """

    def __init__(
        self, sink: LogSink, rows: _Rows = _AS_THEY_ARE, about: NotedQuery | None = None
    ) -> None:
        self._sink = sink
        self._rows = rows
        self._about = about or NotedQuery()

    @one_line()
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Stage the rows of a task."""
        query = query_of_task()
        note_first_epoch(self._sink.target, query, self._about)
        return self._rows.stage(self._sink, iterator, query)

    @one_line()
    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Publish an epoch; a repeat changes nothing. Raises CheckpointWentBack for other rows."""
        plan = plan_of(self._about.checkpoint, batchId)
        for query in queries_of(messages):
            with writing_epoch(query, batchId, self._sink.target.name):
                publish_rows(self._sink, messages, query, batchId, plan)
            about = msgspec.structs.replace(self._about, epoch=batchId)
            note_query(self._sink.target, query.removeprefix("spark-"), "write", about)

    @one_line()
    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803, ARG002
        """Drop what was staged."""
        unstage_rows(self._sink, messages)
