"""Who knows Kafka finds the way: columns have other names here, and rows go back as they came."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from pyspark.sql.types import (
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructType,
    TimestampType,
)

import headwater
from headwater import InvalidInput, Stream
from headwater.spark.log.source import HeadwaterSource


@pytest.mark.parametrize(
    ("column", "kind", "words"),
    [
        ("key", StringType(), r"it is the tag here: \.withColumnRenamed\('key', 'tag'\)"),
        ("topic", StringType(), "by the option 'stream' or 'topic'"),
        ("timestamp", TimestampType(), r"withColumnRenamed\('timestamp', 'time'\)"),
        ("partition", IntegerType(), "column 'partition' is for a topic"),
        ("offset", LongType(), "column 'offset' has no place in the log"),
    ],
)
def test_a_column_by_another_name_is_told_its_name_here(
    embedded_url: str, column: str, kind: DataType, words: str
) -> None:
    source = HeadwaterSource({"url": embedded_url, "stream": "habits"})
    schema = StructType().add(column, kind).add("value", StringType())
    with pytest.raises(InvalidInput, match=words):
        source.writer(schema, overwrite=False)


@pytest.mark.parametrize("into", ["stream", "topic"])
def test_rows_of_ours_are_written_back_as_they_are(
    embedded_url: str, make_embedded_stream: Callable[[int], Stream], name: str, into: str
) -> None:
    stream = make_embedded_stream(1200)
    stream.evict(100)
    source = HeadwaterSource({"url": embedded_url, "stream": stream.name})
    schema = source.schema()
    reader = source.reader(schema)
    batches = [batch for part in reader.partitions() for batch in reader.read(part)]
    sink = HeadwaterSource({"url": embedded_url, into: f"{name}-copy", "partitions": "2"})
    if into == "stream":
        del sink.options["partitions"]
    writer = sink.writer(schema, overwrite=False)
    writer.commit([writer.write(iter(batches))])  # type: ignore[arg-type]
    with headwater.connect(embedded_url) as hw:
        # All rows have partition 0, which the copy keeps.
        copy = hw.stream(f"{name}-copy" if into == "stream" else f"{name}-copy/0")
        was, now = stream.read(101, 2000), copy.read(1, 2000)
    assert [message and message.offset for message in now] == list(range(1, 1101))
    assert [(m.tag, m.value, m.time_ms) for m in was if m] == [
        (m.tag, m.value, m.time_ms) for m in now if m
    ]
