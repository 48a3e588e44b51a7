"""``format("headwater")``: streams and topics as a source and a sink of Spark."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader
from pyspark.sql.types import StructType

from headwater.errors import InvalidInput
from headwater.kernel.inputs import check_name
from headwater.spark.engine.columns import takes_filters
from headwater.spark.engine.failures import one_line
from headwater.spark.engine.formats import ReadFormat, WriteFormat
from headwater.spark.engine.options import SourceOptions
from headwater.spark.engine.writes import SparkWrite
from headwater.spark.log import columns
from headwater.spark.log.columns import VALUE_OPTIONS, ValueColumns, value_columns
from headwater.spark.log.range_reader import RangeReader
from headwater.spark.log.target import TriggerLimits, position_option, target_of

if TYPE_CHECKING:
    from headwater.spark.log.stream_reader import StreamReader

_BATCH_ONLY = ("endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp")
_STREAM_ONLY = ("maxOffsetsPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay")
# That of Spark's Kafka source.
_TRIGGER_DELAY_MS = 15 * 60 * 1000
READ_OPTIONS = (
    "url",
    "stream",
    "topic",
    "archive",
    "columns",
    "includeHeaders",
    *VALUE_OPTIONS,
    "startingOffsets",
    "startingTimestamp",
    "startingOffsetsByTimestamp",
    "minPartitions",
    "failOnDataLoss",
    "groupId",
    *_BATCH_ONLY,
    *_STREAM_ONLY,
)
WRITE_OPTIONS = ("url", "stream", "topic", "partitions", "producer", "sequence", *VALUE_OPTIONS)


class HeadwaterSource(ReadFormat, WriteFormat):
    """A stream or a topic, chosen by the options ``stream`` or ``topic`` of the store ``url``.

    Each way to use it is imported by its method: Spark starts a Python for each streaming query.
    """

    CALLED = "headwater"
    WHAT = "a log"
    PATHS = ("stream", "topic")
    READ_OPTIONS = READ_OPTIONS
    WRITE_OPTIONS = WRITE_OPTIONS

    def columns(self, options: SourceOptions) -> StructType:
        """Return the columns that the options ``columns`` and ``schema`` ask for."""
        target_of(options)
        decoded = value_columns(options)
        named = options.words("columns") or (columns.WITHOUT_VALUE if decoded else columns.ALL)
        headers = options.flag("includeHeaders", False)
        ours = columns.spark_schema(columns.check_columns(named, headers=headers))
        return ours if decoded is None else _joined(ours, decoded)

    def plan_read(self, options: SourceOptions, schema: StructType) -> DataSourceReader:
        """Plan a batch read."""
        from headwater.spark.log.batch_reader import BatchReader, FilteringReader

        _refuse(options, _STREAM_ONLY, "a batch read")
        kind = FilteringReader if takes_filters(schema) else BatchReader
        reading = self._reading(options, schema)
        return kind(
            reading,
            position_option(options, "starting", reading.target.name),
            position_option(options, "ending", reading.target.name),
            options.number("minPartitions") or 1,
            _group(options),
        )

    def plan_write(self, options: SourceOptions, schema: StructType) -> SparkWrite:
        """Plan a write."""
        from headwater.spark.log import sink

        return sink.plan_write(options, schema)

    @one_line()
    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802  Spark's name
        """Plan a streaming read; one that is refused raises why when it begins."""
        try:
            from headwater.spark.log.stream_reader import StreamReader
        except ModuleNotFoundError:
            from headwater.spark.engine.session import require_streaming

            require_streaming()
            raise
        try:
            return self._stream_reader(schema, StreamReader)
        except InvalidInput as error:
            from headwater.spark.log.stream_reader import RefusedReader

            return RefusedReader(error)

    def _stream_reader(self, schema: StructType, kind: type[StreamReader]) -> StreamReader:
        options = self.known(READ_OPTIONS)
        _refuse(options, _BATCH_ONLY, "a streaming query")
        reading = self._reading(options, schema)
        return kind(
            reading,
            position_option(options, "starting", reading.target.name),
            options.number("minPartitions") or 1,
            _trigger_limits(options),
            _group(options),
            # Our Java adds it.
            options.text("checkpointLocation") or "",
        )

    def _reading(self, options: SourceOptions, schema: StructType) -> RangeReader:
        decoded = value_columns(options)
        return RangeReader(
            target_of(options),
            columns.arrow_schema(schema, decoded),
            options.flag("failOnDataLoss", True),
            decoded=decoded,
        )


def _joined(ours: StructType, decoded: ValueColumns) -> StructType:
    """Return our columns with those of the values behind them. Raises InvalidInput."""
    schema = StructType([*ours.fields, *decoded.schema.fields])
    lower = [name.lower() for name in schema.names]
    for name in ours.names:
        if lower.count(name) > 1:
            others = ",".join(one for one in ours.names if lower.count(one) == 1)
            raise InvalidInput(
                f"column {name!r} is in the option 'schema' and one of the source's own; choose "
                f"those with .option('columns', {others!r})"
            )
    return schema


def _refuse(options: SourceOptions, names: tuple[str, ...], where: str) -> None:
    for name in names:
        if name in options:
            raise InvalidInput(f"option {name!r} means nothing in {where}; leave it out")


def _trigger_limits(options: SourceOptions) -> TriggerLimits:
    most, least = options.number("maxOffsetsPerTrigger"), options.number("minOffsetsPerTrigger")
    if least is None and "maxTriggerDelay" in options:
        raise InvalidInput("option 'maxTriggerDelay' goes with 'minOffsetsPerTrigger'; give both")
    if least is not None and most is not None and least > most:
        raise InvalidInput(
            f"option 'minOffsetsPerTrigger' is {least}, more than 'maxOffsetsPerTrigger', {most}"
        )
    delay_ms = options.duration_ms("maxTriggerDelay")
    return TriggerLimits(most, least, _TRIGGER_DELAY_MS if delay_ms is None else delay_ms)


def _group(options: SourceOptions) -> str | None:
    group = options.text("groupId")
    return None if group is None else check_name(group, "reader")
