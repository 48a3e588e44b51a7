"""The rows of a small micro-batch go to the JVM with its plan, and are those of a batch read."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.datasource import InputPartition

import headwater
from headwater import DataLost, Headwater
from headwater.spark.log.range_reader import OffsetRange
from headwater.spark.log.source import HeadwaterSource
from headwater.spark.log.stream_reader import HELD_BYTES, HELD_OFFSETS, HeldRows, StreamReader
from headwater.spark.queries.notes import all_notes
from tests.support.entries import entries
from tests.support.servers import until

# What the JVM looks for in a task; messages may have the same bytes.
MARKS = b"\xffheadwater:held\xff \xffheadwater:counted\xff"


@pytest.fixture
def hw(embedded_url: str) -> Iterator[Headwater]:
    with headwater.connect(embedded_url) as hw:
        yield hw


def reader_of(url: str, name: str) -> StreamReader:
    source = HeadwaterSource({"url": url, "stream": name})
    reader = source.streamReader(source.schema())
    assert isinstance(reader, StreamReader)
    return reader


def plan(reader: StreamReader, first: int = 1, query: str | None = "q") -> list[InputPartition]:
    """Plan a micro-batch up to the end, as our Java asks for it."""
    start = reader.initialOffset()
    end = reader.latestOffset(start, reader.getDefaultReadLimit())
    start["0"]["next"] = first
    if query is not None:
        end["asking"] = {"query": query, "batch": "7", "about": None}
    return reader.partitions(start, end)


def rows_in(part: InputPartition) -> list[dict[str, Any]]:
    assert isinstance(part, HeldRows)
    rows: list[dict[str, Any]] = pa.ipc.open_stream(part.facts[16:]).read_all().to_pylist()
    return rows


def test_few_messages_are_read_by_the_process_that_plans(
    hw: Headwater, embedded_url: str, name: str
) -> None:
    hw.stream(name).write_many(entries(HELD_OFFSETS + 1))
    reader, query = reader_of(embedded_url, name), f"q-{secrets.token_hex(8)}"
    [many] = plan(reader, query=query)
    assert isinstance(many, OffsetRange)
    [few] = plan(reader, first=2, query=query)
    found = [(row["offset"], row["tag"], row["value"]) for row in rows_in(few)]
    assert found == [(i, *entry) for i, entry in enumerate(entries(HELD_OFFSETS, 2), 2)]
    # No task notes the query then.
    reader.stop()
    noted = {one.part: one.facts for one in hw.store.run(all_notes()).notes if one.query == query}
    assert (noted["read"].epoch, noted["read"].next) == (7, {name: 2})
    assert noted["beat"].ended
    # A session without our Java does not ask for rows.
    [plain] = plan(reader_of(embedded_url, name), first=2, query=None)
    assert isinstance(plain, OffsetRange)


def test_large_messages_are_left_to_tasks(hw: Headwater, embedded_url: str, name: str) -> None:
    stream = hw.stream(name)
    stream.write("large", b"x" * HELD_BYTES)
    reader = reader_of(embedded_url, name)
    assert isinstance(plan(reader)[0], OffsetRange)
    stream.write("small", b"x")
    # Not tried again: each would be read twice.
    assert isinstance(plan(reader, first=2)[0], OffsetRange)


def test_what_was_evicted_before_it_was_read_is_a_loss(
    hw: Headwater, embedded_url: str, name: str
) -> None:
    hw.stream(name).write_many(entries(20))
    reader = reader_of(embedded_url, name)
    start = reader.initialOffset()
    end = reader.latestOffset(start, reader.getDefaultReadLimit())
    end["asking"] = {"query": "q", "batch": "0", "about": None}
    hw.stream(name).evict(5)
    with pytest.raises(DataLost) as caught:
        reader.partitions(start, end)
    assert (caught.value.first, caught.value.last) == (1, 5)


def test_every_kind_of_column_comes_with_the_plan(
    spark: SparkSession, hw: Headwater, embedded_url: str, name: str, tmp_path: Path
) -> None:
    stream = hw.stream(name)
    stream.write_many([("tág", b'{"id": 1}'), ("", b'{"id": "no"}'), ("m", MARKS)])
    stream.write("h", b'{"id": 2}', headers={"a": b"1", "b": MARKS})
    options = {"url": embedded_url, "stream": name, "includeHeaders": "true"}
    ways = {
        "all": (options, ["*"]),
        "values": ({**options, "schema": "id bigint"}, ["id", "_corrupt_record", "headers"]),
        "some": (options, ["value", "partition"]),
        "none": (options, ["1 AS one"]),
    }
    for way, (given, columns) in ways.items():
        found: list[Row] = []

        def take(rows: DataFrame, _: int, found: list[Row] = found) -> None:
            found.extend(rows.collect())

        query = (
            spark.readStream.format("headwater")
            .options(**given)
            .load()
            .selectExpr(*columns)
            .writeStream.foreachBatch(take)
            .option("checkpointLocation", str(tmp_path / way))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        read = spark.read.format("headwater").options(**given).load().selectExpr(*columns)
        assert found == read.collect(), way
        progress = query.lastProgress
        assert progress is not None
        assert progress["numInputRows"] == 4
        assert int(progress["sources"][0]["metrics"]["bytesRead"]) > 0


def test_a_query_is_noted_although_no_task_does(
    spark: SparkSession, hw: Headwater, embedded_url: str, name: str, tmp_path: Path
) -> None:
    hw.stream(name).write_many(entries(3))
    query = (
        spark.readStream.format("headwater")
        .options(url=embedded_url, stream=name)
        .load()
        .writeStream.format("noop")
        .queryName("small ones")
        .option("checkpointLocation", str(tmp_path))
        .start()
    )
    try:
        query.processAllAvailable()

        def noted() -> bool:
            notes = hw.store.run(all_notes()).notes
            return [
                (one.facts.name, one.facts.end) for one in notes if one.query == str(query.id)
            ] == [("small ones", {name: 4})]

        until(noted)
    finally:
        query.stop()
