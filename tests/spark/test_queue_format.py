"""A queue is looked at without being touched, and each row is pushed once, whoever dies."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.types import DoubleType, IntegerType, StringType, StructField, StructType

import headwater
from headwater import Headwater, InvalidInput, UnknownQueue
from headwater.spark.engine.failures import translated
from headwater.spark.jobs.backfill import backfill
from headwater.spark.queues import QueueSource
from tests.support.spark.queues import intakes, look, numbers, popped, save
from tests.support.spark.tables import small_table

VALUE = StructType([StructField("value", StringType())])


@pytest.fixture
def embedded(embedded_url: str) -> Iterator[Headwater]:
    with headwater.connect(embedded_url) as hw:
        yield hw


# ── Writing and looking ──────────────────────────────────────────────────────────────────────


def test_rows_are_pushed_in_order_and_seen_as_they_lie(
    spark: SparkSession, store_url: str, hw: Headwater, name: str
) -> None:
    save(numbers(spark, 12_000), store_url, name)
    assert intakes(hw, name) == [], "nothing is left of a write that nobody can repeat"
    found = look(spark, store_url, name, minPartitions=4)
    assert found.rdd.getNumPartitions() >= 4
    rows = found.collect()
    assert sorted(int(row.value) for row in rows) == list(range(12_000))
    assert len({row.id for row in rows}) == 12_000
    assert {(row.state, row.priority, row.attempt, row.due) for row in rows} == {
        ("ready", 0, 0, None)
    }
    assert popped(hw.queue(name)) == list(range(12_000)), "nothing was taken by looking"


def test_priority_delay_and_life_go_by_the_row(
    spark: SparkSession, embedded_url: str, embedded: Headwater, name: str
) -> None:
    rows = spark.sql(
        "SELECT CAST(id AS string) AS value, CAST(IF(id % 3 = 0, NULL, id % 3) AS int) AS priority,"
        " IF(id < 30, NULL, 600000L) AS delay_ms, IF(id % 2 = 0, NULL, 900000L) AS ttl_ms"
        " FROM range(0, 60, 1, 2)"
    )
    save(rows, embedded_url, name)
    items = {int(item.value): item for item in embedded.queue(name).scan()}
    assert sorted(items) == list(range(60))
    for number, item in items.items():
        assert item.priority == number % 3
        assert item.state == ("ready" if number < 30 else "delayed")
        assert (item.expires_ms is not None) == (number % 2 == 1)
    wanted = sorted((n for n in range(30)), key=lambda n: (-(n % 3), n % 2 == 0, n))
    assert sorted(popped(embedded.queue(name))) == sorted(wanted)


def test_headers_are_written_and_are_a_column_when_asked_for(
    spark: SparkSession, embedded_url: str, embedded: Headwater, name: str
) -> None:
    rows = spark.sql(
        "SELECT CAST(id AS string) AS value, CAST(id % 2 AS int) AS priority,"
        " IF(id % 3 = 0, NULL, array(named_struct('key', 'n', 'value', CAST(CAST(id AS string)"
        " AS binary)))) AS headers"
        " FROM range(0, 30, 1, 2)"
    )
    save(rows, embedded_url, name)
    wanted = {n: {"n": b"%d" % n} if n % 3 else {} for n in range(30)}
    assert {int(i.value): dict(i.headers) for i in embedded.queue(name).scan()} == wanted
    assert "headers" not in look(spark, embedded_url, name).columns
    found = look(spark, embedded_url, name, includeHeaders=True)
    kind = found.schema["headers"].dataType.simpleString()
    assert kind == "array<struct<key:string,value:binary>>"
    assert {
        int(row.value): {one.key: bytes(one.value) for one in row.headers}
        for row in found.collect()
    } == wanted


def test_every_state_can_be_looked_at(
    spark: SparkSession, embedded_url: str, embedded: Headwater, name: str
) -> None:
    queue = embedded.queue(name)
    queue.configure(max_attempts=1)
    queue.push("dead", priority=9)
    queue.nack(*queue.pop(ack_ms=60_000))
    queue.push("held", priority=9)
    queue.pop(ack_ms=60_000)
    queue.push_many([b"ready-1", b"\xff"], priority=2, ttl_ms=60_000)
    queue.push("late", delay_ms=60_000)
    rows = {bytes(row.value): row for row in look(spark, embedded_url, name).collect()}
    states = {value: row.state for value, row in rows.items()}
    assert states == {
        b"dead": "dead",
        b"held": "unacked",
        b"ready-1": "ready",
        b"\xff": "ready",
        b"late": "delayed",
    }
    item = next(queue.scan("unacked"))
    row = rows[b"held"]
    assert (row.id, row.priority, row.attempt) == (item.id, 9, 1)
    assert row.due.timestamp() * 1000 == item.due_ms
    assert row.pushed.timestamp() * 1000 == pytest.approx(item.pushed_ms)
    assert rows[b"ready-1"].expires > rows[b"ready-1"].pushed
    some = look(spark, embedded_url, name, state="unacked, Dead").collect()
    assert {bytes(row.value) for row in some} == {b"held", b"dead"}
    stats = queue.stats()
    assert (stats.ready, stats.unacked, stats.dead, stats.delayed) == (2, 1, 1, 1)


def test_a_repeated_write_changes_nothing_and_one_with_other_rows_is_refused(
    spark: SparkSession, embedded_url: str, embedded: Headwater, name: str
) -> None:
    for tasks in (3, 2):
        save(numbers(spark, 50, tasks), embedded_url, name, producer="nightly", sequence=7)
    with pytest.raises(PySparkException, match="give new content a new sequence"):
        save(numbers(spark, 70), embedded_url, name, producer="nightly", sequence=7)
    save(numbers(spark, 3), embedded_url, name, producer="nightly", sequence=8)
    assert popped(embedded.queue(name)) == [*range(50), 0, 1, 2]
    (intake,) = intakes(embedded, name)
    assert embedded.stream(intake).info().length == 0
    embedded.stream(intake).delete()


# ── What is refused ──────────────────────────────────────────────────────────────────────────


def columns(**kinds: Any) -> StructType:
    return StructType([StructField(name, kind()) for name, kind in kinds.items()])


@pytest.mark.parametrize(
    ("options", "schema", "words"),
    [
        ({}, VALUE, "option 'queue' is missing"),
        ({"queue": "a b"}, VALUE, "must not contain ' '"),
        ({"queue": "q", "stat": "ready"}, VALUE, "unknown option 'stat'"),
        ({"queue": "q", "producer": "p"}, VALUE, "go together"),
        ({"queue": "q" * 190}, VALUE, "too long together"),
        ({"queue": "q"}, columns(id=StringType), "no place in a queue, which takes value"),
        ({"queue": "q"}, columns(value=DoubleType), "'value' must be binary or string, not double"),
        ({"queue": "q"}, columns(priority=IntegerType), "no column 'value'"),
    ],
)
def test_a_write_that_cannot_be_is_refused(
    options: dict[str, str], schema: StructType, words: str
) -> None:
    with pytest.raises(InvalidInput, match=words):
        QueueSource(options).writer(schema, False)


def test_a_streaming_query_has_its_own_producer_and_nothing_is_overwritten() -> None:
    with pytest.raises(InvalidInput, match="means nothing in a streaming query"):
        QueueSource({"queue": "q", "producer": "p"}).streamWriter(VALUE, False)
    with pytest.raises(InvalidInput, match="only added to"):
        QueueSource({"queue": "q"}).writer(VALUE, True)


def test_what_is_wrong_is_told_in_one_line_on_the_driver(
    spark: SparkSession, embedded_url: str, embedded: Headwater, name: str
) -> None:
    with pytest.raises(PySparkException) as caught:
        look(spark, embedded_url, name).collect()
    assert isinstance(translated(caught.value), UnknownQueue)
    with pytest.raises(PySparkException) as caught:
        look(spark, embedded_url, name, state="readdy").collect()
    assert "must name some of ready, delayed" in str(translated(caught.value))
    rows = spark.range(1).selectExpr("'a' AS value", "CAST(101 AS int) AS priority")
    with pytest.raises(PySparkException) as caught:
        save(rows, embedded_url, name)
    assert "priority must be from -100 to 100, not 101" in str(translated(caught.value))
    assert not embedded.queue(name).stats().exists


# ── Backfill ─────────────────────────────────────────────────────────────────────────────────


def test_a_backfill_fills_a_queue_once(
    spark: SparkSession, embedded_url: str, embedded: Headwater, name: str, tmp_path: Path
) -> None:
    db = small_table(tmp_path, 20)
    settings: dict[str, Any] = {"db": db, "table": "t", "queue": name, "url": embedded_url}
    done = backfill(spark, name, value="id", chunk_rows=10, **settings)
    assert done.headline().startswith(f"wrote 20 rows of table t to queue '{name}'")
    assert backfill(spark, name, value="id", chunk_rows=10, **settings).rows == 0
    assert popped(embedded.queue(name)) == list(range(20))
    with pytest.raises(InvalidInput, match="a queue has no tags"):
        backfill(spark, f"{name}-2", tag="id", **settings)
    for intake in intakes(embedded, name):
        embedded.stream(intake).delete()
