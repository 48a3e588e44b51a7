"""A store is a catalog: its streams, topics, queues and channels are tables, read and written."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession

import headwater
from headwater import Headwater, InvalidInput
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


@pytest.mark.usefixtures("hw")
def test_what_is_not_there_is_no_table(spark: SparkSession) -> None:
    there = ("streams.rides", "streams.`trips/1`", "topics.trips", "queues.jobs", "channels.dirty")
    not_there = [f"{kind}.nope" for kind in ("streams", "topics", "queues", "channels", "no_kind")]
    for name in there:
        assert spark.catalog.tableExists(f"hw.{name}"), name
    for name in (*not_there, "streams.`no name`", "archives.rides", "timelines.elements"):
        assert not spark.catalog.tableExists(f"hw.{name}"), name
        with pytest.raises(AnalysisException, match="TABLE_OR_VIEW_NOT_FOUND"):
            spark.sql(f"SELECT * FROM hw.{name}")
    with pytest.raises(AnalysisException, match="TABLE_OR_VIEW_NOT_FOUND"):
        spark.sql("INSERT INTO hw.channels.nope SELECT 'm' AS member, 1D AS score")


def test_a_table_that_was_created_is_known_before_its_first_row(
    spark: SparkSession, hw: Headwater
) -> None:
    spark.sql("CREATE TABLE hw.streams.soon (tag STRING, value BINARY)")
    assert spark.table("hw.streams.soon").columns[-1] == "time"
    assert not hw.stream("soon").info().exists
    spark.sql("DROP TABLE hw.streams.soon")
    assert not spark.catalog.tableExists("hw.streams.soon")
    rows = spark.sql("SELECT 'k' AS tag, 'v' AS value")
    rows.write.mode("append").saveAsTable("hw.streams.soon")
    rows.write.mode("append").saveAsTable("hw.streams.soon")
    assert spark.table("hw.streams.soon").count() == 2


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
        for name, value in {"url": url, "archive": tmp_path, "instances": farm.url}.items():
            fresh.conf.set(f"spark.sql.catalog.all.{name}", str(value))
        found = {
            kind: [row.tableName for row in fresh.sql(f"SHOW TABLES IN all.{kind}").collect()]
            for kind in ("archives", "timelines")
        }
        assert found == {"archives": ["rides"], "timelines": ["elements"]}
        assert fresh.table("all.archives.rides").count() == 1500
        assert fresh.catalog.tableExists("all.archives.rides")
        assert not fresh.catalog.tableExists("all.archives.nope")
        assert not fresh.catalog.tableExists("all.timelines.nope")
        assert fresh.table("all.timelines.elements").count() == 1


def test_a_stream_is_written_by_its_name(spark: SparkSession, hw: Headwater) -> None:
    spark.sql("INSERT INTO hw.streams.made SELECT 'k' AS tag, 'v' AS value")
    spark.sql("SELECT 'k' AS tag, 'w' AS value").writeTo("hw.streams.made").append()
    found = [(m.tag, m.value) for m in hw.stream("made").read(1, 9) if m]
    assert found == [("k", b"v"), ("k", b"w")]


def test_a_stream_is_created_from_a_query(spark: SparkSession, hw: Headwater) -> None:
    few = "SELECT tag, value FROM hw.streams.rides WHERE offset <= 3"
    spark.sql(f"CREATE TABLE hw.streams.few AS {few}")
    assert [(m.tag, m.value) for m in hw.stream("few").read(1, 9) if m] == entries(3)
    with pytest.raises(AnalysisException, match="already exists"):
        spark.sql(f"CREATE TABLE hw.streams.few AS {few}")
    spark.sql(f"CREATE TABLE IF NOT EXISTS hw.streams.few AS {few}")
    assert hw.stream("few").info().last == 3
    spark.table("hw.streams.rides").select("tag", "value").write.saveAsTable("hw.topics.new")
    assert spark.table("hw.topics.new").count() == 1500


def test_what_sql_does_not_change_is_refused_by_name(spark: SparkSession, hw: Headwater) -> None:
    spark.sql("DROP TABLE IF EXISTS hw.streams.nowhere")
    for change in (
        "DROP TABLE hw.streams.rides",
        "ALTER TABLE hw.streams.rides RENAME TO streams.other",
        "CREATE TABLE hw.channels.new AS SELECT 'm' AS member",
        "CREATE TABLE hw.streams.new PARTITIONED BY (tag) AS SELECT 't' AS tag, 'v' AS value",
    ):
        with pytest.raises(Exception, match="a store is not changed by SQL"):
            spark.sql(change)
    for moment in ("VERSION AS OF 1", "TIMESTAMP AS OF '2026-01-01'"):
        with pytest.raises(Exception, match="no versions of a table; read a part of it by WHERE"):
            spark.sql(f"SELECT * FROM hw.streams.rides {moment}")
    named = "name the columns: INSERT INTO"
    with pytest.raises(InvalidInput, match=named), translating_errors():
        spark.sql("INSERT INTO hw.streams.made VALUES ('k', 'v')")
    # What is wrong with its rows, not with a table that was not made.
    with pytest.raises(InvalidInput, match="column 'id' has no place"), translating_errors():
        spark.sql("CREATE TABLE hw.streams.wrong AS SELECT 1 AS id, 'v' AS value")
    assert not hw.stream("wrong").info().exists
