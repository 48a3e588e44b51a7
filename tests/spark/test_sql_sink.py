"""What is written to a table is there once, whole, and as it was, or not at all."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
import sqlalchemy as sa
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as t

from headwater import Headwater, ReusedSequence, StaleSequence, WriteRefused
from headwater.spark.engine.failures import translated
from headwater.spark.sql_sink import database
from headwater.spark.sql_sink.source import Epoch
from headwater.sql.relations import Relation
from tests.support.spark.sql_sinks import LONG, STRING, Table, rides
from tests.support.stores import Stores

# ── What a commit does ───────────────────────────────────────────────────────────────────────


def test_appended_rows_are_there_from_all_tasks(table: Table) -> None:
    assert table.write(table.plan(), rides(a=1, b=2), rides(c=3))
    assert table.rows() == [("a", 1), ("b", 2), ("c", 3)]
    assert table.staged() == []


def test_an_upsert_keeps_the_last_row_of_a_key_in_the_order_of_tasks_and_rows(
    table: Table,
) -> None:
    plan = table.plan(mode="upsert")
    table.make("INSERT INTO totals VALUES ('a', 0, 'kept'), ('z', 26, 'kept')")
    twice = {"ride": ["a", "b", "a"], "distance": [1, 2, 3]}
    table.write(plan, twice, rides(b=5, c=6))
    assert table.rows() == [("a", 3), ("b", 5), ("c", 6), ("z", 26)]
    assert ("kept",) in table.rows("SELECT note FROM totals WHERE ride = 'a'")


def test_adding_adds_to_what_is_there_and_a_missing_number_counts_as_nothing(table: Table) -> None:
    plan = table.plan(mode="add")
    table.make("INSERT INTO totals VALUES ('a', 10, NULL), ('n', NULL, NULL)")
    several = {"ride": ["a", "b", "a"], "distance": pa.array([1, 2, None], pa.int64())}
    table.write(plan, several, rides(b=5, n=1, m=None))
    assert table.rows() == [("a", 11), ("b", 7), ("m", None), ("n", 1)]


def test_a_sum_that_does_not_fit_is_refused_and_changes_nothing(table: Table) -> None:
    plan = table.plan(mode="add")
    table.make(f"INSERT INTO totals VALUES ('a', {2**63 - 5}, NULL)")
    for task in (rides(a=5), {"ride": ["b", "b"], "distance": [2**63 - 1, 1]}):
        with pytest.raises(WriteRefused, match=r"integer overflow|out of range"):
            table.write(plan, rides(c=1), task)
    assert table.rows() == [("a", 2**63 - 5)]


def test_an_epoch_is_applied_once(table: Table) -> None:
    plan = table.plan(mode="add")
    first = Epoch("query", 3, "at offset 10")
    assert table.write(plan, rides(a=1), epoch=first)
    assert not table.write(plan, rides(a=1), epoch=first)
    assert table.write(plan, rides(a=1), epoch=Epoch("other", 3))
    assert table.write(plan, rides(a=1), epoch=Epoch("query", 4, "at offset 20"))
    assert not table.write(plan, rides(a=1), epoch=first)
    assert table.rows() == [("a", 3)]
    assert table.staged() == []
    target = Relation.of("totals", None)
    assert database.last_epoch(plan.database, target, "query") == Epoch("query", 4, "at offset 20")
    assert database.last_epoch(plan.database, target, "nobody") is None


def test_an_epoch_without_rows_is_noted_too(table: Table) -> None:
    plan = table.plan()
    assert table.write(plan, epoch=Epoch("query", 0, "state"))
    assert not table.write(plan, epoch=Epoch("query", 0))
    with pytest.raises(ReusedSequence, match="give new content a new sequence"):
        table.write(plan, rides(a=1), epoch=Epoch("query", 0))
    assert table.rows() == []


def test_the_last_128_epochs_are_remembered_and_older_ones_refused(table: Table) -> None:
    plan = table.plan(mode="add")
    for sequence in range(1, 141):
        table.write(plan, epoch=Epoch("query", sequence))
    assert not table.write(plan, epoch=Epoch("query", 13))
    with pytest.raises(StaleSequence) as caught:
        table.write(plan, epoch=Epoch("query", 12))
    assert (caught.value.sequence, caught.value.newest) == (12, 140)
    assert table.rows(f"SELECT count(*) FROM {database.EPOCHS}") == [(128,)]
    assert table.rows() == []


def test_a_commit_that_fails_leaves_nothing_behind_but_what_was_staged(table: Table) -> None:
    plan = table.plan()
    table.write(plan, rides(a=1))
    staged = [table.stage(plan, rides(b=1)), table.stage(plan, rides(a=2))]
    with pytest.raises(WriteRefused, match=r"(?i)unique"):
        database.commit(plan, Epoch("query", 1), staged)
    assert table.rows() == [("a", 1)]
    assert table.rows("SELECT count(*) FROM headwater_epochs") == [(0,)]
    assert sorted(table.staged()) == sorted(staged)
    database.drop(plan, staged)
    assert table.staged() == []


def test_drivers_at_once_apply_an_epoch_once_and_others_rows_are_refused(table: Table) -> None:
    plan = table.plan(mode="add")
    contents = ["1a", "1a", "2b", "2b"]
    staged = [[table.stage(plan, rides(a=int(one[0])))] for one in contents]
    outcomes: list[tuple[str, bool | None]] = []

    def commit(content: str, names: list[str]) -> None:
        done = None
        with contextlib.suppress(ReusedSequence):
            done = database.commit(plan, Epoch("query", 1, content=content), names)
        outcomes.append((content, done))

    drivers = [
        threading.Thread(target=commit, args=of) for of in zip(contents, staged, strict=True)
    ]
    for driver in drivers:
        driver.start()
    for driver in drivers:
        driver.join(60)
    (first,) = [content for content, done in outcomes if done]
    second = "2b" if first == "1a" else "1a"
    assert {*outcomes} == {(first, True), (first, False), (second, None)}
    assert table.rows() == [("a", int(first[0]))]


def test_what_was_staged_long_ago_is_forgotten(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = table.plan()
    fresh = table.stage(plan, rides(a=1))
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now - 2 * database.STAGED_S)
    table.stage(plan, rides(b=1))
    monkeypatch.undo()
    assert len(table.staged()) == 2
    table.plan()
    assert table.staged() == [fresh]


def test_names_are_taken_as_they_are(database_url: str, engine: sa.Engine) -> None:
    table = Table(database_url, engine)
    columns = '("ri.de" varchar(20) PRIMARY KEY, "dis:tance %" bigint)'
    table.make(f'CREATE TABLE "To ""tals%" {columns}'.replace("%", "%" if table.sqlite else "%%"))
    schema = t.StructType([t.StructField("ri.de", STRING), t.StructField("dis:tance %", LONG)])
    for sequence, mode in enumerate(("upsert", "add")):
        plan = table.plan(schema, table='"To ""tals%"', mode=mode)
        table.write(plan, {"ri.de": ["a"], "dis:tance %": [2]}, epoch=Epoch("p", sequence))
    query = 'SELECT * FROM "To ""tals%"'
    assert table.rows(query if table.sqlite else query.replace("%", "%%")) == [("a", 4)]


# ── From Spark ───────────────────────────────────────────────────────────────────────────────


def write(rows: DataFrame, table: Table, **options: object) -> None:
    given = {"url": table.url, "table": "totals"} | {k: str(v) for k, v in options.items()}
    rows.write.format("headwater_sql").mode("append").options(**given).save()


def test_a_batch_of_several_tasks_is_written_at_once(spark: SparkSession, table: Table) -> None:
    rows = spark.range(0, 30_000, 1, 4).selectExpr("concat('r', id) AS ride", "id AS distance")
    for _ in range(2):
        write(rows, table, mode="add", producer="nightly", sequence=1, state="done")
    found = table.rows("SELECT count(*), sum(distance) FROM totals")
    assert [tuple(map(int, row)) for row in found] == [(30_000, sum(range(30_000)))]
    assert table.staged() == []


def test_a_refusal_is_one_line_on_the_driver(spark: SparkSession, table: Table) -> None:
    with pytest.raises(PySparkException) as caught:
        write(spark.sql("SELECT 1 AS speed"), table)
    assert "no column 'speed'" in str(translated(caught.value))
    with pytest.raises(PySparkException) as caught:
        write(spark.sql("SELECT 'r' AS ride UNION ALL SELECT 'r' AS ride"), table)
    assert isinstance(translated(caught.value), WriteRefused)
    assert table.rows() == []


@pytest.fixture
def counts(
    spark: SparkSession, stores: Stores, name: str, tmp_path: Path, table: Table
) -> Callable[..., None]:
    """Run a query that adds up the messages of a stream by tag, over all that is there now."""

    def run(output: str, **options: object) -> None:
        rows = (
            spark.readStream.format("headwater")
            .options(url=stores.url("embedded"), stream=name)
            .option("maxOffsetsPerTrigger", 400)
            .load()
            .selectExpr("tag AS ride", "CAST(CAST(value AS string) AS bigint) AS distance")
        )
        if output == "complete":
            rows = rows.groupBy("ride").sum("distance").toDF("ride", "distance")
        given = {"url": table.url, "table": "totals"} | {k: str(v) for k, v in options.items()}
        query = (
            rows.writeStream.format("headwater_sql")
            .outputMode(output)
            .options(checkpointLocation=str(tmp_path / "checkpoint"), **given)
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(240)

    return run


@pytest.mark.parametrize(
    ("database_url", "output", "mode"),
    [("sqlite", "append", "add"), ("postgres", "complete", "upsert")],
    indirect=["database_url"],
)
def test_a_query_applies_each_epoch_once_also_when_spark_repeats_one(
    stores: Stores,
    name: str,
    counts: Callable[..., None],
    table: Table,
    tmp_path: Path,
    output: str,
    mode: str,
) -> None:
    with Headwater(stores.url("embedded")) as hw:
        stream = hw.stream(name)
        totals: dict[str, int] = {}
        for n in range(1000):
            totals[f"r{n % 7}"] = totals.get(f"r{n % 7}", 0) + n
        stream.write_many([(f"r{n % 7}", b"%d" % n) for n in range(1000)])
        counts(output, mode=mode)
        for left in (tmp_path / "checkpoint" / "commits").glob("*2*"):
            left.unlink()
        counts(output, mode=mode)
        assert dict(table.rows()) == totals
        assert table.staged() == []
        stream.delete()
