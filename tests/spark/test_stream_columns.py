"""Micro-batches of the log come as columns and unopened nodes, too: the rows of a batch read."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import reduce
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, DataFrameReader, SparkSession

from headwater import Stream
from tests.support.spark.plans import without_our_rule

Source = Callable[..., DataFrameReader]
Query = Callable[[DataFrame], DataFrame]


class Micro:
    """A query that ran in micro-batches: its rows, how many each read, and the last plan."""

    def __init__(self, frame: DataFrame, folder: Path, mode: str = "append") -> None:
        name = f"micro_{folder.name}".replace("-", "_")
        writer = frame.writeStream.format("memory").queryName(name).outputMode(mode)
        writer = writer.option("checkpointLocation", str(folder / "checkpoint"))
        query: Any = writer.trigger(availableNow=True).start()
        query.awaitTermination()
        self.rows = rows_of(frame.sparkSession.table(name))
        self.read = [one["numInputRows"] for one in query.recentProgress]
        self.plan = str(query._jsq.explainInternal(False))


def rows_of(frame: DataFrame) -> Counter[tuple[Any, ...]]:
    return Counter(tuple(row) for row in frame.collect())


@pytest.fixture
def streaming(spark: SparkSession, store_url: str) -> Callable[[Stream], DataFrame]:
    """Begin a streaming read in micro-batches that cut nodes."""

    def streaming(stream: Stream) -> DataFrame:
        reader = spark.readStream.format("headwater").option("maxOffsetsPerTrigger", 2500)
        return reader.options(url=store_url, stream=stream.name, minPartitions="2").load()

    return streaming


def all_columns(frame: DataFrame) -> DataFrame:
    return frame


def some_rows(frame: DataFrame) -> DataFrame:
    return frame.where("offset % 3 = 0").selectExpr("tag", "length(value) AS size")


def two_columns_of_one_type(frame: DataFrame) -> DataFrame:
    """Two scans that differ in nothing but the name of the column that is left."""
    tags = frame.selectExpr("'tag' AS kind", "tag AS name").repartition(2)
    return tags.union(frame.selectExpr("'stream' AS kind", "stream AS name").repartition(2))


def every_column_of_its_own(frame: DataFrame) -> DataFrame:
    """Scans that differ, each behind an exchange: Spark plans them at the same time."""
    parts = [frame.selectExpr(f"string({name}) AS one").repartition(2) for name in frame.columns]
    return reduce(DataFrame.union, parts)


@pytest.mark.parametrize(
    ("query", "columns"),
    [
        (all_columns, "stream, partition, offset, tag, value, time"),
        (some_rows, "offset, tag, value"),
        (two_columns_of_one_type, "tag"),
        (every_column_of_its_own, "time"),
    ],
    ids=["all columns", "some", "two of one type", "many scans"],
)
def test_micro_batches_have_the_rows_of_a_batch_read(
    spark: SparkSession,
    source: Source,
    streaming: Callable[[Stream], DataFrame],
    many_kinds: Stream,
    tmp_path: Path,
    query: Query,
    columns: str,
) -> None:
    with without_our_rule(spark):
        wanted = rows_of(query(source(stream=many_kinds.name).load()))
    found = Micro(query(streaming(many_kinds)), tmp_path)
    assert found.rows == wanted
    plan = "".join(part for part in found.plan if not part.isdigit()).replace("#L", "#")
    assert f"ColumnStream[{columns}]" in plan.replace("#", "")


def test_progress_counts_what_micro_batches_read(
    streaming: Callable[[Stream], DataFrame], many_kinds: Stream, tmp_path: Path
) -> None:
    """Also where no column is used, and messages are counted by their offsets or headers."""
    found = Micro(streaming(many_kinds).groupBy().count(), tmp_path, "complete")
    messages = many_kinds.info().length
    assert found.rows == {(messages,): 1}
    assert sum(found.read) == messages


def test_a_session_without_our_rule_streams_rows(
    spark: SparkSession,
    source: Source,
    streaming: Callable[[Stream], DataFrame],
    many_kinds: Stream,
    tmp_path: Path,
) -> None:
    with without_our_rule(spark):
        found = Micro(some_rows(streaming(many_kinds)), tmp_path)
    assert "ColumnStream" not in found.plan
    assert found.rows == rows_of(some_rows(source(stream=many_kinds.name).load()))
