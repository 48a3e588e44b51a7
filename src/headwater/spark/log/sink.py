"""The log as a sink: tasks stage, the driver's commit publishes, once for each query and epoch.

How rows are staged and published is in ``staging``. A write is identified by its query and epoch,
or by the options ``producer`` and ``sequence``.

The columns are ``value`` (binary or string), ``tag`` (string; empty when there is no such column),
``time`` (timestamp; now when there is no such column) and, into a topic, ``partition`` (by the tag
when it is null or there is no such column). Rows of our own source may be written as they are:
their ``stream`` and ``offset`` are left out, and into a stream their ``partition``, too.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import pyarrow as pa
from pyspark.sql.datasource import WriterCommitMessage
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
    renamed,
    spelled_columns,
)
from headwater.spark.engine.options import SourceOptions
from headwater.spark.log.columns import (
    ALL,
    HEADERS,
    ValueColumns,
    encode_values,
    encoded_schema,
    value_columns,
)
from headwater.spark.log.noting import NotedWrite
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
from headwater.spark.log.target import StreamOrTopic, target_of
from headwater.spark.queries.notes import NotedQuery

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


def sink_of(options: SourceOptions, schema: StructType) -> LogSink:
    """Check what a query wants to write, and where. Raises InvalidInput, PartitionMismatch."""
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


def plan_write(options: SourceOptions, schema: StructType) -> LogWrite:
    """Check what a query wants to write, and where. Raises InvalidInput, PartitionMismatch."""
    made_of = value_columns(options)
    packed, schema = comes_packed(schema), as_given(schema)
    exact = is_case_sensitive(options)
    schema = spelled_columns(schema, _known(made_of), exact=exact)
    names = tuple(schema.names)
    schema = schema if made_of is None else encoded_schema(schema, made_of)
    sink = sink_of(options, schema)
    about = NotedQuery(
        options.text("queryName") or "",
        checkpoint=options.text("checkpointLocation") or "",
        partitions=sink.partitions,
    )
    return LogWrite(sink, about, packed, made_of, names)


def _known(made_of: ValueColumns | None) -> list[str]:
    """Return the columns that a write may have; those that values are made of come first."""
    named = [] if made_of is None else [*made_of.names]
    taken = {name.lower() for name in named}
    return named + [name for name in (*ALL, HEADERS) if name not in taken]


@dataclass(frozen=True, slots=True)
class LogWrite(NotedWrite):
    """A write to a stream or topic.

    Rows come ``packed`` as nodes, or with values to be ``made_of`` columns. ``names`` are those of
    the sink for the columns, in their order; None: as they are.
    """

    sink: LogSink
    about: NotedQuery = field(default_factory=NotedQuery)
    packed: bool = False
    made_of: ValueColumns | None = None
    names: tuple[str, ...] | None = None

    @property
    def name(self) -> str:
        """See SparkWrite."""
        return self.sink.target.name

    def noted(self, query: str) -> StreamOrTopic:  # noqa: ARG002  the same for all
        """See NotedWrite."""
        return self.sink.target

    def stage(
        self,
        batches: Iterator[pa.RecordBatch],
        query: str | None,
        producer: str,  # noqa: ARG002  what is staged has a name of its own
        repeatable: bool,
    ) -> StagedRows:
        """See SparkWrite."""
        if self.packed:
            return stage_packed(self.sink, batches, new_staging(query), query)
        batches = renamed(batches, self.names)
        if self.made_of is not None:
            batches = encode_values(batches, self.made_of)
        return stage_rows(self.sink, batches, new_staging(query), query, repeatable=repeatable)

    def commit(
        self,
        messages: Sequence[WriterCommitMessage | None],
        producer: str,
        sequence: int,
        repeatable: bool,  # noqa: ARG002  a producer of its own does no harm
        plan: str = "",
    ) -> None:
        """See SparkWrite."""
        publish_rows(self.sink, messages, producer, sequence, plan)

    def abort(self, messages: Sequence[WriterCommitMessage | None], producer: str) -> None:  # noqa: ARG002
        """See SparkWrite."""
        unstage_rows(self.sink, messages)
