"""A dirty list is looked at without being touched, and nothing is missed, whoever dies."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

import headwater
from examples import spark_search_index
from headwater import Headwater, InvalidInput, NotAnIck, UnknownIck
from headwater.spark.engine.failures import translated
from headwater.spark.icks import by_time
from headwater.spark.jobs.backfill import backfill
from tests.support import commands
from tests.support.spark.dying_sinks import FORMATS, Death, sink_that_dies
from tests.support.spark.queries import finish, following
from tests.support.spark.tables import small_table


def save(rows: DataFrame, url: str, **options: object) -> None:
    writer = rows.write.format("headwater_ick").mode("append").option("url", url)
    writer.options(**{name: str(value) for name, value in options.items()}).save()


def look(spark: SparkSession, url: str, **options: str) -> DataFrame:
    return spark.read.format("headwater_ick").options(url=url, **options).load()


def test_members_are_added_and_seen_where_they_lie(
    spark: SparkSession, store_url: str, hw: Headwater, name: str
) -> None:
    rows = spark.range(0, 3000, 1, 3).selectExpr(
        "concat('m', id % 1000) AS member", "CAST(id AS double) AS score"
    )
    save(rows, store_url, channel=name, shards=3)
    channel = hw.ick_channel(name, consumer="me")
    batch = channel.reserve(10)
    found = look(spark, store_url, channel=name)
    assert found.rdd.getNumPartitions() == 3
    listed = {(row.member.decode(), row.score, row.place, row.shard) for row in found.collect()}
    assert {(member, score) for member, score, *_ in listed} == {
        (f"m{i}", float(i)) for i in range(1000)
    }, "each once, under its lowest score"
    assert listed == {(str(one.member), one.score, one.place, one.shard) for one in channel.scan()}
    assert {one[0] for one in listed if one[2] == "reserved"} == set(batch.members)
    assert channel.commit(batch) == 10, "looking takes nothing"

    save(rows.where("id < 5"), store_url, ick=name)
    ick = hw.ick(name)
    assert ick.reserve(2) == [("m0", 0.0), ("m1", 1.0)]
    found = look(spark, store_url, ick=name)
    seen = {(row.member.decode(), row.place, row.shard) for row in found.collect()}
    assert seen == {(f"m{i}", "cset" if i < 2 else "pset", None) for i in range(5)}
    assert ick.delete()


def test_members_that_are_no_text_and_times_come_as_they_are(
    spark: SparkSession, embedded_url: str, embedded: Headwater, name: str
) -> None:
    rows = spark.sql(
        "SELECT X'FF00' AS member, 1L AS score, CAST(NULL AS timestamp) AS not_before UNION ALL "
        "SELECT X'61', -2L, TIMESTAMP '2100-01-01 00:00:00'"
    )
    save(rows, embedded_url, channel=name)
    channel = embedded.ick_channel(name)
    places = {one.member: (one.score, one.place) for one in channel.scan()}
    assert places == {b"\xff\x00": (1.0, "ready"), "a": (-2.0, "later")}
    seen = {bytes(row.member) for row in look(spark, embedded_url, channel=name).collect()}
    assert seen == {b"\xff\x00", b"a"}
    channel.delete()


def test_of_several_rows_of_a_member_the_lowest_counts_and_times_are_not_cut_short() -> None:
    when = dt.datetime(2100, 1, 1, microsecond=1001, tzinfo=dt.UTC)
    batch = pa.record_batch(
        {
            "member": ["a", "b", "a", "a"],
            "score": [2.0, 5.0, 1.0, 3.0],
            "not_before": pa.array([None, when, None, None], pa.timestamp("us", "UTC")),
        }
    )
    ms = int(when.timestamp()) * 1000 + 2
    assert by_time(batch) == {None: {b"a": 1.0}, ms: {b"b": 5.0}}


@pytest.mark.long
@pytest.mark.fault
def test_a_query_whose_worker_dies_makes_everything_dirty(
    spark: SparkSession, embedded_url: str, embedded: Headwater, name: str, tmp_path: Path
) -> None:
    spark.dataSource.register(sink_that_dies("ick", Death("written", str(tmp_path / "died"))))
    embedded.stream(name).write_many([(f"m{n}", b"") for n in range(300)])
    for count in (300, 500):
        run_query(spark, embedded_url, name, tmp_path)
        listed = {one.member: one.score for one in embedded.ick_channel(name).scan()}
        assert listed == {f"m{n}": n + 1.0 for n in range(count)}
        embedded.stream(name).write_many([(f"m{n}", b"") for n in range(250, 500)])
    assert (tmp_path / "died").exists()


def run_query(spark: SparkSession, url: str, name: str, place: Path) -> None:
    number = f.regexp_extract("tag", "m(.*)", 1).cast("double") + 1
    rows = following(spark, url, name).select(f.col("tag").alias("member"), number.alias("score"))
    finish(rows, FORMATS["ick"], place / "checkpoint", url=url, channel=name)


def test_what_is_wrong_is_told_in_one_line_on_the_driver(
    spark: SparkSession, embedded_url: str, embedded: Headwater, name: str
) -> None:
    for kind in ("ick", "channel"):
        with pytest.raises(PySparkException) as caught:
            look(spark, embedded_url, **{kind: name}).collect()
        assert isinstance(translated(caught.value), UnknownIck)
    embedded.store.command("SET", name, "something else")
    nobody = spark.createDataFrame([("a", 1.0)], "member string, score double")
    with pytest.raises(PySparkException) as caught:
        save(nobody, embedded_url, ick=name)
    assert isinstance(translated(caught.value), NotAnIck)
    embedded.store.command("DEL", name)
    for column, row in (("score", ("a", None)), ("member", (None, 1.0))):
        with pytest.raises(PySparkException) as caught:
            save(spark.createDataFrame([row], nobody.schema), embedded_url, ick=name)
        assert f"have a {column} that is null" in str(translated(caught.value))


# ── Backfill ─────────────────────────────────────────────────────────────────────────────────


def test_a_backfill_makes_every_row_dirty(
    spark: SparkSession, embedded_url: str, embedded: Headwater, name: str, tmp_path: Path
) -> None:
    settings: dict[str, Any] = {"db": small_table(tmp_path, 20), "table": "t", "url": embedded_url}
    done = backfill(spark, name, channel=name, tag="word", score="id", chunk_rows=10, **settings)
    assert done.headline().startswith(f"wrote 20 rows of table t to channel '{name}'")
    listed = {one.member: one.score for one in embedded.ick_channel(name).scan()}
    assert listed == {f"w{i}": float(i) for i in range(20)}
    for wrong in ({"tag": None}, {"tag": "word", "value": "id"}):
        with pytest.raises(InvalidInput, match="a dirty list has members"):
            backfill(spark, f"{name}-2", ick=name, **settings, **wrong)
    with pytest.raises(InvalidInput, match="a score is for members"):
        backfill(spark, f"{name}-2", stream=name, score="id", **settings)
    embedded.ick_channel(name).delete()


@pytest.mark.long
@pytest.mark.usefixtures("spark")
def test_the_command_fills_an_ick(
    embedded_url: str, embedded: Headwater, name: str, tmp_path: Path
) -> None:
    words = ["spark", "backfill", name, "--db", small_table(tmp_path, 5), "--table", "t"]
    words += ["--ick", name, "--tag", "word"]
    assert f"wrote 5 rows of table t to ick '{name}'" in commands.run(embedded_url, *words).out
    assert embedded.ick(name).reserve(10) == [(f"w{i}", 0.0) for i in range(5)]
    embedded.ick(name).delete()


# ── The example ──────────────────────────────────────────────────────────────────────────────


def test_a_search_index_follows_its_table(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with headwater.connect(f"embedded://{tmp_path / 'store'}") as hw:
        spark_search_index.run(spark, hw, tmp_path)
        stats = hw.ick_channel("documents").stats()
    assert stats is not None
    assert (stats.ready, stats.reserved) == (0, 0)
    assert capsys.readouterr().out.splitlines() == [
        "204 changes, 200 documents indexed",
        "2 changes, 2 documents indexed",
        "boat: 2 documents",
        "rocket: 197 documents",
        "fast: 1 documents",
    ]
