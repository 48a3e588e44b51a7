"""A batch read gives what the log holds, once, in the columns and the range asked for."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Callable

import pytest
from pyspark.sql import DataFrame, DataFrameReader, Row, SparkSession
from pyspark.sql import functions as F  # noqa: N812  as everybody who uses Spark calls it

import headwater
from headwater import Stream, Topic
from tests.support.entries import entries
from tests.support.spark.times import write_at

Source = Callable[..., DataFrameReader]


def offsets(frame: DataFrame) -> list[int]:
    return sorted(row.offset for row in frame.select("offset").collect())


def facts(row: Row) -> tuple[int, str, bytes]:
    return row.offset, row.tag, bytes(row.value)


def test_a_stream_is_read_whole(source: Source, make_stream: Callable[..., Stream]) -> None:
    stream = make_stream(2500)
    frame = source(stream=stream.name).load().withColumn("time", F.unix_millis("time"))
    rows = frame.orderBy("offset").collect()
    assert [facts(row) for row in rows] == [
        (offset, tag, value) for offset, (tag, value) in enumerate(entries(2500), 1)
    ]
    assert {(row.stream, row.partition) for row in rows} == {(stream.name, 0)}
    message = stream.read(1234, 1)[0]
    assert message is not None
    assert rows[1233].time == message.time_ms


def test_a_topic_is_read_whole_with_its_partitions(
    source: Source, make_topic: Callable[..., Topic]
) -> None:
    topic = make_topic(2000, partitions=3)
    rows = source(topic=topic.name, minPartitions=7).load().collect()
    assert sorted((row.tag, bytes(row.value)) for row in rows) == sorted(entries(2000, tags=50))
    assert {(row.stream, row.partition) for row in rows} == {
        (f"{topic.name}/{place}", place) for place in range(3)
    }
    assert all(topic.partition_of(row.tag) == row.partition for row in rows)


def test_columns_are_those_asked_for_in_that_order(
    source: Source, make_stream: Callable[..., Stream]
) -> None:
    stream = make_stream(20)
    assert source(stream=stream.name).load().columns == [
        "stream", "partition", "offset", "tag", "value", "time",
    ]  # fmt: skip
    frame = source(stream=stream.name, columns="value, offset").load()
    assert frame.columns == ["value", "offset"]
    assert sorted((row.offset, bytes(row.value)) for row in frame.collect())[6] == (7, b"value-7")
    chosen = source(stream=stream.name).schema("tag string, partition int").load()
    assert {tuple(row) for row in chosen.collect()} == {(f"tag-{i}", 0) for i in range(7)}


@pytest.mark.parametrize(
    ("starting", "ending", "first", "last"),
    [
        ("earliest", "latest", 1, 3000),
        ("1000", "2001", 1000, 2000),
        ("latest", "latest", 3001, 3000),
        ("3001", "3001", 3001, 3000),
        ('{"0": 2999}', '{"0": "latest"}', 2999, 3000),
        ("EARLIEST", '{"0": 2}', 1, 1),
    ],
)
def test_offsets_bound_the_read(
    spark: SparkSession,
    embedded_url: str,
    three_thousand: str,
    starting: str,
    ending: str,
    first: int,
    last: int,
) -> None:
    frame = (
        spark.read.format("headwater")
        .option("url", embedded_url)
        .option("stream", three_thousand)
        .option("startingOffsets", starting)
        .option("endingOffsets", ending)
        .option("minPartitions", 4)
        .load()
    )
    assert offsets(frame) == list(range(first, last + 1))


def test_times_bound_the_read(source: Source, hw: headwater.Headwater, name: str) -> None:
    times = [1_700_000_000_000 + 10 * i for i in range(2000)]
    write_at(hw.stream(name), times)
    at = dt.datetime.fromtimestamp(times[500] / 1000, dt.UTC)
    early = source(stream=name, endingTimestamp=times[500]).load()
    assert offsets(early) == list(range(1, 501))
    late = source(stream=name, startingOffsets=(at - dt.timedelta(milliseconds=5)).isoformat())
    assert offsets(late.load()) == list(range(501, 2001))
    both = source(
        stream=name,
        startingOffsets=json.dumps({"0": at.isoformat()}),
        endingOffsets=json.dumps({"0": 600}),
    )
    assert offsets(both.load()) == list(range(501, 600))
    assert offsets(source(stream=name, startingTimestamp=times[-1] + 1).load()) == []


def test_tasks_end_where_nodes_end(source: Source, make_stream: Callable[..., Stream]) -> None:
    stream = make_stream(10_000, size=1000)
    frame = source(stream=stream.name, minPartitions=4).load()
    bounds = frame.groupBy(F.spark_partition_id()).agg(F.min("offset"), F.max("offset")).collect()
    found = sorted((row[1], row[2]) for row in bounds)
    assert len(found) == 4
    assert [low % 1000 for low, _ in found] == [1] * 4
    assert [high for _, high in found[:-1]] == [low - 1 for low, _ in found[1:]]


@pytest.fixture(scope="module")
def three_thousand(request: pytest.FixtureRequest) -> str:
    stores = request.getfixturevalue("stores")
    with headwater.connect(stores.url("embedded")) as hw:
        hw.stream("three-thousand").write_many(entries(3000))
    return "three-thousand"
