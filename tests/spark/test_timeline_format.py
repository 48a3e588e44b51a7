"""All timelines of a farm are rows, rows are operations, and a walk leaves no difference."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import LongType, StringType, StructField, StructType

import headwater
from headwater import InvalidInput
from headwater.spark.engine.failures import translated
from headwater.spark.jobs.backfill import backfill
from headwater.spark.jobs.walk import walk
from headwater.timeline import Farm
from headwater.timeline.records import State
from headwater.timeline.walker import MAX_RATE
from tests.support import commands
from tests.support.farms import Replica, replicas
from tests.support.servers import Server
from tests.support.spark.killing import kill_at_work
from tests.support.spark.queries import finish, following
from tests.support.spark.tables import small_table

TRIPLES = StructType(
    [
        StructField("key", StringType()),
        StructField("score", LongType()),
        StructField("member", StringType()),
    ]
)


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with Server() as server:
        yield server


@pytest.fixture
def four(server: Server) -> list[Replica]:
    return replicas(server, 4)


def farm_of(four: list[Replica]) -> str:
    return f"{four[0].url},{four[1].url};{four[2].url},{four[3].url}"


def save(rows: DataFrame, farm: str) -> None:
    rows.write.format("headwater_timeline").option("instances", farm).mode("append").save()


def load(spark: SparkSession, farm: str, **options: str) -> set[tuple[str, float, str, bool]]:
    rows = spark.read.format("headwater_timeline").options(instances=farm, **options).load()
    listed = [(r.key.decode(), r.score, r.member.decode(), r.deleted) for r in rows.collect()]
    assert len(listed) == len(set(listed)), "each element once"
    return set(listed)


def test_rows_are_operations_and_all_timelines_are_rows(
    spark: SparkSession, four: list[Replica]
) -> None:
    farm = farm_of(four)
    rows = spark.range(0, 600, 1, 3).selectExpr(
        "concat('k', id % 40) AS key", "id AS score", "concat('m', id % 200) AS member"
    )
    for _ in range(2):
        save(rows, farm)
    expected = {(f"k{i % 40}", float(i), f"m{i % 200}", False) for i in range(400, 600)}
    assert load(spark, farm) == expected
    save(spark.sql("SELECT 'k1' AS key, 'm1' AS member, 1e9D AS score, true AS deleted"), farm)
    seen = load(spark, farm, deleted="true")
    assert ("k1", 1e9, "m1", True) in seen
    assert load(spark, farm) == {row for row in seen if not row[3]}
    with Farm.open(farm) as opened:
        shown = opened.select([f"k{n}" for n in range(40)], limit=1000)
        flat = {(str(k), r.score, str(r.member), False) for k, rs in shown.items() for r in rs}
    assert flat == load(spark, farm)


def test_clusters_that_differ_are_read_as_one_and_walked_into_one_state(
    spark: SparkSession, four: list[Replica], monkeypatch: pytest.MonkeyPatch
) -> None:
    farm = farm_of(four)
    with Farm.open(farm) as opened:
        opened.insert([(f"k{n}", 1.0, "m") for n in range(60)])
        opened.settle()
    # A write and a delete that only one cluster has, and an instance that came back empty.
    four[1].client.flushdb()
    with Farm.open(f"{four[2].url},{four[3].url}") as half:
        half.insert([("k1", 5.0, "new"), ("alone", 1.0, "m")])
        half.delete([("k2", 5.0, "m")])
    truth = {(f"k{n}", 1.0, "m", False) for n in range(60) if n != 2}
    truth |= {("k1", 5.0, "new", False), ("alone", 1.0, "m", False)}
    assert load(spark, farm) == truth
    before = [replica.client.dbsize() for replica in four]
    looked = walk(spark, farm, dry_run=True)
    assert [replica.client.dbsize() for replica in four] == before
    assert (looked.timelines, looked.elements, looked.written) == (61, 62, 0)
    assert looked.differing > 3
    assert sum(looked.behind.values()) == looked.differing
    monkeypatch.setenv("HEADWATER_INSTANCES", farm)
    done = commands.run(None, "spark", "walk", "--json", "--rate", "100000")
    assert done.code == 0, done.err
    told = json.loads(done.out)
    assert (told["timelines"], told["written"]) == (61, looked.differing)
    assert told["behind"] == looked.behind
    again = walk(spark, farm)
    assert (again.differing, again.behind, again.settled) == (0, {}, True)
    assert load(spark, farm) == truth
    away = walk(spark, f"{farm};127.0.0.1:1", dry_run=True)
    assert not away.settled
    assert away.unscanned == ["3 redis://127.0.0.1:1"]


@pytest.mark.long
@pytest.mark.fault
@pytest.mark.timeout(300)
def test_a_killed_walk_is_gone_on_with(spark: SparkSession, four: list[Replica]) -> None:
    """The driver and the JVM are killed as soon as the first timelines are repaired."""
    whole, empty = four[:2]
    farm = f"{whole.url};{empty.url}"
    keys = 20_000
    with Farm.open(whole.url) as half:
        for first in range(0, keys, 1000):
            half.insert([(f"k{n}", 1.0, "m") for n in range(first, first + 1000)])
    words = ("spark", "walk", "--instances", farm, "--rate", "2000")
    kill_at_work(None, *words, when=empty.client.dbsize)
    repaired = empty.client.dbsize()
    assert 0 < repaired < keys
    rest = walk(spark, farm, rate=MAX_RATE)
    # What was under way in a task when its driver died may still have come to its end.
    assert 0 < rest.written <= keys - repaired
    assert (rest.timelines, rest.settled) == (keys, True)
    assert empty.client.dbsize() == whole.client.dbsize() == keys
    assert walk(spark, farm, dry_run=True, rate=MAX_RATE).differing == 0


def test_a_query_feeds_timelines_from_a_log(
    spark: SparkSession, four: list[Replica], embedded_url: str, name: str, tmp_path: Path
) -> None:
    farm = farm_of(four)
    with headwater.connect(embedded_url) as hw:
        hw.stream(name).write_many([(f"k{n % 5}", f"m{n}".encode()) for n in range(50)])
    rows = following(spark, embedded_url, name)
    triples = rows.selectExpr("tag AS key", "offset AS score", "value AS member")
    finish(triples, "headwater_timeline", tmp_path / "checkpoint", instances=farm)
    assert load(spark, farm) == {(f"k{n % 5}", n + 1.0, f"m{n}", False) for n in range(50)}


@pytest.mark.long
def test_a_table_is_backfilled_into_timelines(
    spark: SparkSession, four: list[Replica], embedded_url: str, name: str, tmp_path: Path
) -> None:
    farm = farm_of(four)
    words: dict[str, Any] = {"db": small_table(tmp_path), "table": "t", "url": embedded_url}
    words["timelines"] = farm
    done = backfill(spark, name, tag="word", value="raw", score="id", **words)
    assert done.rows == 30
    assert four[0].states(b"w7") | four[1].states(b"w7") == {b"\x07": State(7.0, False)}
    assert backfill(spark, name, tag="word", value="raw", score="id", **words).rows == 0
    with pytest.raises(InvalidInput, match="name the columns"):
        backfill(spark, f"{name}-2", tag="word", **words)
    one_key = {**words, "table": None, "query": "SELECT id, raw, 'k' AS word FROM t"}
    backfill(
        spark,
        f"{name}-3",
        **{"tag": "word", "value": "raw", "score": "id", "max_size": 2, "keep": 3, **one_key},
        order_by="id",
    )
    kept = four[0].states(b"k") | four[1].states(b"k")
    assert sorted(state.score for state in kept.values()) == [27.0, 28.0, 29.0]
    with pytest.raises(InvalidInput, match="max_size and keep are for timelines"):
        backfill(spark, f"{name}-4", **{**words, "timelines": None, "stream": name, "keep": 3})


def test_what_cannot_be_written_is_told_in_one_line(
    spark: SparkSession, four: list[Replica]
) -> None:
    rows = spark.createDataFrame([("k", None, "m")], TRIPLES)
    with pytest.raises(PySparkException) as told:
        save(rows, farm_of(four))
    assert "score that is null" in str(translated(told.value))
    with pytest.raises(PySparkException) as told:
        save(rows.na.fill(1), "127.0.0.1:1")
    assert type(translated(told.value)) is headwater.QuorumFailed
