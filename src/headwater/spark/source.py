"""``format("headwater")``: streams and topics as a source and a sink of Spark."""

from __future__ import annotations

from pyspark.sql.datasource import DataSource, DataSourceReader
from pyspark.sql.types import StructType

from headwater.errors import InvalidInput, UnknownStream
from headwater.spark import columns
from headwater.spark.connections import absolute_url, client
from headwater.spark.options import Options
from headwater.spark.reading.batch import BatchReader

READ_OPTIONS = (
    "url",
    "stream",
    "topic",
    "columns",
)


class HeadwaterSource(DataSource):
    """A stream or a topic, chosen by the options ``stream`` or ``topic`` of the store ``url``."""

    @classmethod
    def name(cls) -> str:
        """Give the name for ``format``."""
        return "headwater"

    def schema(self) -> StructType:
        """Give the columns that the option ``columns`` asks for."""
        options = Options(self.options, READ_OPTIONS)
        return columns.spark_schema(columns.check_columns(options.words("columns")))

    def reader(self, schema: StructType) -> DataSourceReader:
        """Plan a batch read."""
        options = Options(self.options, READ_OPTIONS)
        url = absolute_url(options.text("url"))
        stream, topic = options.text("stream"), options.text("topic")
        if (stream is None) == (topic is None):
            raise InvalidInput("name what to read by one of the options 'stream' and 'topic'")
        hw = client(url)
        if stream is not None:
            streams = {0: stream}
            if not hw.stream(stream).info().exists:
                raise UnknownStream(stream)
        else:
            assert topic is not None
            streams = {i: f"{topic}/{i}" for i in range(hw.topic(topic).partitions())}
        return BatchReader(url, streams, columns.check_columns(schema.names))
