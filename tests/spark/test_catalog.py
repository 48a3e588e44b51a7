"""A store is a catalog: its streams, topics, queues and channels are tables, read and written."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

import headwater
from headwater import Headwater, UnknownStream
from headwater.spark.engine.failures import translating_errors
from tests.support.entries import entries
from tests.support.servers import Server


@pytest.fixture(scope="module")
def hw(spark: SparkSession) -> Iterator[Headwater]:
    """A store of its own, which is the catalog ``hw`` of the session."""
    with Server() as server, headwater.connect(server.url) as hw:
        spark.conf.set("spark.sql.catalog.hw", "headwater.StoreCatalog")
        spark.conf.set("spark.sql.catalog.hw.url", server.url)
        hw.stream("rides").write_many(entries(1500))
        hw.topic("trips", 2).write_many(entries(100))
        hw.queue("jobs").push(b"one")
        hw.ick_channel("dirty").add({"m": 1.0})
        yield hw


@pytest.mark.usefixtures("hw")
def test_what_lies_in_a_store_is_listed(spark: SparkSession) -> None:
    kinds = {row.namespace for row in spark.sql("SHOW NAMESPACES IN hw").collect()}
    assert kinds == {"streams", "topics", "queues", "channels"}
    listed = {
        kind: {row.tableName for row in spark.sql(f"SHOW TABLES IN hw.{kind}").collect()}
        for kind in kinds
    }
    assert listed["topics"] == {"trips"}
    assert listed["queues"] == {"jobs"}
    assert listed["channels"] == {"dirty"}
    assert "rides" in listed["streams"]


@pytest.mark.usefixtures("hw")
def test_each_kind_is_read_by_its_name(spark: SparkSession) -> None:
    found = {
        name: spark.table(f"hw.{name}").count()
        for name in ("streams.rides", "topics.trips", "queues.jobs", "channels.dirty")
    }
    assert list(found.values()) == [1500, 100, 1, 1]
    few = spark.sql(
        "SELECT tag, count(*) AS n FROM hw.streams.rides WHERE offset <= 14 GROUP BY tag"
    )
    assert {row.tag: row.n for row in few.collect()} == {f"tag-{i}": 2 for i in range(7)}
    narrow = spark.read.option("startingOffsets", 1001).table("hw.streams.rides")
    assert narrow.count() == 500
    with pytest.raises(UnknownStream), translating_errors():
        spark.table("hw.streams.nowhere").count()


def test_a_stream_is_written_by_its_name(spark: SparkSession, hw: Headwater) -> None:
    spark.sql("INSERT INTO hw.streams.made SELECT 'k' AS tag, 'v' AS value")
    spark.sql("SELECT 'k' AS tag, 'w' AS value").writeTo("hw.streams.made").append()
    found = [(m.tag, m.value) for m in hw.stream("made").read(1, 9) if m]
    assert found == [("k", b"v"), ("k", b"w")]
