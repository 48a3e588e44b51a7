"""``format("headwater")``: streams and topics as a source and a sink of Spark."""

from __future__ import annotations

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import StructType

from headwater.errors import InvalidInput
from headwater.inputs import check_name
from headwater.spark.engine.failures import one_line
from headwater.spark.engine.options import SourceOptions
from headwater.spark.log import columns, sink
from headwater.spark.log.batch_reader import reader_class
from headwater.spark.log.positions import position_option
from headwater.spark.log.range_reader import RangeReader
from headwater.spark.log.stream_reader import StreamReader
from headwater.spark.log.target import target_of

_BATCH_ONLY = ("endingOffsets", "endingTimestamp")
_STREAM_ONLY = ("maxOffsetsPerTrigger",)
READ_OPTIONS = (
    "url",
    "stream",
    "topic",
    "archive",
    "columns",
    "startingOffsets",
    "startingTimestamp",
    "minPartitions",
    "failOnDataLoss",
    "groupId",
    *_BATCH_ONLY,
    *_STREAM_ONLY,
)


class HeadwaterSource(DataSource):
    """A stream or a topic, chosen by the options ``stream`` or ``topic`` of the store ``url``."""

    @classmethod
    def name(cls) -> str:
        """Return the name for ``format``."""
        return "headwater"

    @one_line()
    def schema(self) -> StructType:
        """Return the columns that the option ``columns`` asks for."""
        options = self._options()
        target_of(options)
        return columns.spark_schema(columns.check_columns(options.words("columns")))

    @one_line()
    def reader(self, schema: StructType) -> DataSourceReader:
        """Plan a batch read."""
        options = self._options()
        _refuse(options, _STREAM_ONLY, "a batch read")
        return reader_class()(
            self._reading(options, schema),
            position_option(options, "starting"),
            position_option(options, "ending"),
            options.number("minPartitions") or 1,
            _group(options),
        )

    @one_line()
    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802  Spark's name
        """Plan a streaming read."""
        options = self._options()
        _refuse(options, _BATCH_ONLY, "a streaming query")
        return StreamReader(
            self._reading(options, schema),
            position_option(options, "starting"),
            options.number("minPartitions") or 1,
            options.number("maxOffsetsPerTrigger"),
            _group(options),
        )

    @one_line()
    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Plan a batch write."""
        options = sink.write_options(self.options)
        return sink.batch_writer(options, schema, overwrite)

    @one_line()
    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802  Spark's name
        """Plan the writes of a streaming query."""
        options = sink.write_options(self.options)
        return sink.stream_writer(options, schema, overwrite)

    def _options(self) -> SourceOptions:
        return SourceOptions(self.options, READ_OPTIONS)

    def _reading(self, options: SourceOptions, schema: StructType) -> RangeReader:
        return RangeReader(
            target_of(options), columns.arrow_schema(schema), options.flag("failOnDataLoss", True)
        )


def _refuse(options: SourceOptions, names: tuple[str, ...], where: str) -> None:
    for name in names:
        if name in options:
            raise InvalidInput(f"option {name!r} means nothing in {where}; leave it out")


def _group(options: SourceOptions) -> str | None:
    group = options.text("groupId")
    return None if group is None else check_name(group, "reader")
