"""A store is a catalog: its streams, topics, queues and channels are tables, read and written."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import headwater
from headwater import Headwater, UnknownStream
from headwater.spark import register
from headwater.spark.engine.failures import translating_errors
from headwater.timeline import Farm
from tests.support.entries import entries
from tests.support.servers import Server
from tests.support.spark.archiving import run_archiver


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


def test_a_query_reads_and_writes_tables(
    spark: SparkSession, hw: Headwater, tmp_path: Path
) -> None:
    query = (
        spark.readStream.option("startingOffsets", 1001)
        .table("hw.streams.rides")
        .select("tag", "value")
        .writeStream.option("checkpointLocation", str(tmp_path))
        .trigger(availableNow=True)
        .toTable("hw.streams.copied")
    )
    query.awaitTermination()
    assert hw.stream("copied").info().last == 500
    assert query.lastProgress["sink"]["description"] == "hw.streams.copied"  # type: ignore[index]


@pytest.mark.usefixtures("hw")
def test_a_table_has_options_of_its_own(spark: SparkSession) -> None:
    fresh = spark.newSession()
    register(fresh)
    for setting in ("spark.sql.catalog.hw", "spark.sql.catalog.hw.url"):
        fresh.conf.set(setting, spark.conf.get(setting) or "")
    fresh.conf.set("spark.sql.catalog.hw.streams.json.schema", "id bigint, name string")
    fresh.sql("INSERT INTO hw.streams.json SELECT 7L AS id, 'seven' AS name")
    assert fresh.sql("SELECT id, name FROM hw.streams.json").collect() == [(7, "seven")]
    fresh.conf.set("spark.sql.catalog.typo", "headwater.StoreCatalog")
    fresh.conf.set("spark.sql.catalog.typo.stream", "x")
    with pytest.raises(Exception, match="unknown setting stream; known are url"):
        fresh.sql("SHOW NAMESPACES IN typo")


@pytest.mark.usefixtures("hw")
def test_archives_and_timelines_are_tables_too(spark: SparkSession, tmp_path: Path) -> None:
    url = spark.conf.get("spark.sql.catalog.hw.url")
    assert url
    run_archiver(url, "rides", str(tmp_path))
    fresh = spark.newSession()
    register(fresh)
    with Server() as farm:
        with Farm.open(farm.url) as timelines:
            timelines.insert([("k", 1.0, "m")])
        fresh.conf.set("spark.sql.catalog.all", "headwater.StoreCatalog")
        for name, value in {
            "url": url,
            "archive": tmp_path,
            "instances": farm.url,
        }.items():
            fresh.conf.set(f"spark.sql.catalog.all.{name}", str(value))
        found = {
            kind: [row.tableName for row in fresh.sql(f"SHOW TABLES IN all.{kind}").collect()]
            for kind in ("archives", "timelines")
        }
        assert found == {"archives": ["rides"], "timelines": ["elements"]}
        assert fresh.table("all.archives.rides").count() == 1500
        assert fresh.table("all.timelines.elements").count() == 1


def test_a_stream_is_written_by_its_name(spark: SparkSession, hw: Headwater) -> None:
    spark.sql("INSERT INTO hw.streams.made SELECT 'k' AS tag, 'v' AS value")
    spark.sql("SELECT 'k' AS tag, 'w' AS value").writeTo("hw.streams.made").append()
    found = [(m.tag, m.value) for m in hw.stream("made").read(1, 9) if m]
    assert found == [("k", b"v"), ("k", b"w")]
