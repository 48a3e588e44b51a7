"""What is written to a table is there once, whole, and as it was, or not at all."""

from __future__ import annotations

import contextlib
import datetime as dt
import decimal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pytest
import sqlalchemy as sa
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as t

from headwater import Headwater, InvalidInput, ReusedSequence, StaleSequence, WriteRefused
from headwater.errors import DatabaseUnreachable, QueryRefused
from headwater.spark.engine.failures import translated
from headwater.spark.sql_sink import database
from headwater.spark.sql_sink.source import Epoch, SqlSink
from headwater.spark.tables.source import TableSource
from tests.support.postgres import Postgres
from tests.support.spark.queries import finish, following
from tests.support.spark.sql_sinks import LONG, RIDES, STRING, Table, rides
from tests.support.stores import Stores

# ── What a commit does ───────────────────────────────────────────────────────────────────────


def test_appended_rows_are_there_from_all_tasks(table: Table) -> None:
    assert table.write(table.plan(), rides(a=1, b=2), rides(c=3))
    assert table.rows() == [("a", 1), ("b", 2), ("c", 3)]
    assert table.staged() == []


def test_an_upsert_keeps_the_last_row_of_a_key_in_the_order_of_tasks_and_rows(table: Table) -> None:
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
    kept = f"SELECT sequence, state FROM {database.EPOCHS} WHERE producer = 'query' ORDER BY 1"
    assert table.rows(kept) == [(3, "at offset 10"), (4, "at offset 20")]


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
        rows = following(spark, stores.url("embedded"), name, maxOffsetsPerTrigger=400)
        distance = "CAST(CAST(value AS string) AS bigint) AS distance"
        rows = rows.selectExpr("tag AS ride", distance)
        if output == "complete":
            rows = rows.groupBy("ride").sum("distance").toDF("ride", "distance")
        given = {"url": table.url, "table": "totals"} | options
        finish(rows, "headwater_sql", tmp_path / "checkpoint", output, **given)

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


# ── Values stay what they are in a table, and what cannot be written is refused in time ──────────

# ── Types ────────────────────────────────────────────────────────────────────────────────────

NOON = dt.datetime(2030, 1, 1, 12, 0, 0, 250_000, tzinfo=dt.UTC)
KINDS: list[tuple[t.DataType, pa.Array, str, str, list[Any], list[Any]]] = [
    (t.BooleanType(), pa.array([True, None]), "boolean", "boolean", [1, None], [True, None]),
    (t.ByteType(), pa.array([1], pa.int8()), "integer", "smallint", [1], [1]),
    (t.LongType(), pa.array([-(2**63)]), "bigint", "bigint", [-(2**63)], [-(2**63)]),
    (t.DoubleType(), pa.array([0.1]), "real", "double precision", [0.1], [0.1]),
    (t.StringType(), pa.array(["", "ü"]), "text", "text", ["", "ü"], ["", "ü"]),
    (t.StringType(), pa.array(['{"a": 1}']), "text", "jsonb", ['{"a": 1}'], [{"a": 1}]),
    (t.BinaryType(), pa.array([b"", b"\0\xff"]), "blob", "bytea", [b"", b"\0\xff"], []),
    (t.DateType(), pa.array([NOON.date()]), "date", "date", ["2030-01-01"], [NOON.date()]),
    (
        t.TimestampType(),
        pa.array([NOON], pa.timestamp("us", "Asia/Tokyo")),
        "datetime",
        "timestamptz",
        ["2030-01-01 12:00:00.250000"],
        [NOON],
    ),
    (
        t.TimestampType(),
        pa.array([NOON], pa.timestamp("us", "Asia/Tokyo")),
        "text",
        "timestamp",
        ["2030-01-01 12:00:00.250000"],
        [NOON.replace(tzinfo=None)],
    ),
]


@pytest.mark.parametrize(("type_", "values", "in_sqlite", "in_postgres", "lite", "post"), KINDS)
def test_values_stay_what_they_are(
    database_url: str,
    engine: sa.Engine,
    type_: t.DataType,
    values: pa.Array,
    in_sqlite: str,
    in_postgres: str,
    lite: list[Any],
    post: list[Any],
) -> None:
    table = Table(database_url, engine)
    table.make(f"CREATE TABLE totals (v {in_sqlite if table.sqlite else in_postgres})")
    plan = table.plan(t.StructType([t.StructField("v", type_)]))
    table.write(plan, {"v": values})
    expected = lite if table.sqlite else post or lite
    found = [value for (value,) in table.rows("SELECT v FROM totals")]
    assert found == expected


def test_decimals_are_exact_where_the_database_has_them(
    database_url: str, engine: sa.Engine
) -> None:
    table = Table(database_url, engine)
    table.make("CREATE TABLE totals (v numeric(10, 2))")
    exact = t.StructType([t.StructField("v", t.DecimalType(10, 2))])
    if table.sqlite:
        with pytest.raises(InvalidInput, match="cast it"):
            table.plan(exact)
        return
    plan = table.plan(exact)
    table.write(plan, {"v": pa.array([decimal.Decimal("1.25")], pa.decimal128(10, 2))})
    assert table.rows("SELECT v FROM totals") == [(decimal.Decimal("1.25"),)]
    with pytest.raises(InvalidInput, match="unchanged"):
        table.plan(t.StructType([t.StructField("v", t.DecimalType(10, 3))]))


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
@pytest.mark.parametrize("kind", ["STRING", "JSON", "UUID", "DATE", "NUMERIC", "BOOLEAN"])
def test_a_string_does_not_go_where_it_could_become_a_number(
    database_url: str, engine: sa.Engine, kind: str
) -> None:
    table = Table(database_url, engine)
    table.make(f"CREATE TABLE totals (v {kind})")
    with pytest.raises(InvalidInput, match="declare it TEXT in the table"):
        table.plan(t.StructType([t.StructField("v", STRING)]))


@pytest.mark.parametrize("kind", ["double precision", "real"])
def test_a_long_does_not_go_where_it_could_be_rounded(
    database_url: str, engine: sa.Engine, kind: str
) -> None:
    table = Table(database_url, engine)
    table.make(f"CREATE TABLE totals (v {kind})")
    with pytest.raises(InvalidInput, match="bigint, which does not go into"):
        table.plan(t.StructType([t.StructField("v", LONG)]))
    if kind == "double precision":
        # All whole numbers of 32 bits are doubles.
        plan = table.plan(t.StructType([t.StructField("v", t.IntegerType())]))
        table.write(plan, {"v": pa.array([2**31 - 1], pa.int32())})
        assert table.rows("SELECT v FROM totals") == [(2**31 - 1,)]


# ── What is refused before anything runs ─────────────────────────────────────────────────────

WRONG: list[tuple[dict[str, t.DataType], dict[str, str], str]] = [
    ({"ride": STRING}, {"table": "nothing"}, "nothing"),
    ({"ride": STRING, "speed": LONG}, {}, "no column 'speed', but ride, distance, note"),
    ({"ride": LONG}, {}, "column 'ride' is bigint, which does not go into"),
    ({"distance": STRING}, {}, "column 'distance' is string, which does not go into"),
    ({"distance": t.ArrayType(LONG)}, {}, "array<bigint>"),
    ({"ride": STRING}, {"mode": "replace"}, "must be one of append, upsert, add"),
    ({"ride": STRING}, {"keys": "ride"}, "'keys' is for the modes upsert and add"),
    ({"ride": STRING, "note": STRING}, {"mode": "upsert", "keys": "note"}, "unique index over"),
    ({"distance": LONG}, {"mode": "upsert"}, "the key 'ride' is not among"),
    ({"ride": STRING}, {"mode": "add"}, "there is nothing to add"),
    ({"ride": STRING, "note": STRING}, {"mode": "add"}, "mode 'add' adds numbers"),
    ({"ride": STRING}, {"producer": "p"}, "go together"),
    ({"ride": STRING}, {"state": "x"}, "'state' is kept with an epoch"),
    ({"ride": STRING}, {"tabel": "x"}, "did you mean 'table'?"),
]


@pytest.mark.parametrize(("columns", "options", "words"), WRONG)
def test_what_cannot_be_written_is_refused(
    table: Table, columns: dict[str, t.DataType], options: dict[str, str], words: str
) -> None:
    schema = t.StructType([t.StructField(name, kind) for name, kind in columns.items()])
    with pytest.raises((InvalidInput, QueryRefused)) as caught:
        SqlSink({"url": table.url, "table": "totals", **options}).writer(schema, False)
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"url": "mysql://secret@host/x"}, "use sqlite:///file or postgresql://"),
        ({"url": "sqlite://"}, "in memory"),
        ({"url": "sqlite:////nowhere/at/all.db"}, "no such file"),
        ({"url": "postgresql://u:secret@127.0.0.1:1/x"}, "cannot reach the database"),
        ({}, "option 'url' is missing"),
    ],
)
def test_a_database_that_is_not_there_is_named_without_secrets(
    options: dict[str, str], words: str
) -> None:
    with pytest.raises((InvalidInput, DatabaseUnreachable)) as caught:
        SqlSink({"table": "t", **options}).writer(RIDES, False)
    assert words in str(caught.value)
    assert "secret" not in str(caught.value)


def test_a_table_is_not_overwritten_but_may_be_upserted_as_a_whole(table: Table) -> None:
    with pytest.raises(InvalidInput, match="a table is not overwritten"):
        table.plan(overwrite=True)
    with pytest.raises(InvalidInput, match="complete"):
        table.plan(overwrite=True, streaming=True)
    assert table.plan(overwrite=True, streaming=True, mode="upsert").keys == ("ride",)
    with pytest.raises(InvalidInput, match="means nothing in a streaming query"):
        table.plan(streaming=True, producer="p", sequence=1)


# ── Plans, tasks and jobs name a database without its secrets, wherever in its URL they stand ────


SECRET = "hush-hush"
AWAY = f"postgresql://me@127.0.0.1:1/db?password={SECRET}&sslpassword={SECRET}"


@pytest.fixture
def url(postgres: Postgres) -> str:
    """A database whose server takes any password, with a table of three rows."""
    found = postgres.database()
    name = found.partition("@/")[2].partition("?")[0]
    with psycopg.connect(postgres.conninfo(name)) as connection:
        connection.execute("CREATE TABLE rides AS SELECT g AS id FROM generate_series(1, 3) AS g")
    return f"{found}&password={SECRET}"


def test_a_plan_shows_no_secret(
    spark: SparkSession, url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    rides = spark.read.format("headwater_table").options(url=url, table="rides").load()
    assert rides.where("id > 1").count() == 2
    rides.explain(extended=True)
    shown = capsys.readouterr().out
    assert "rides" in shown or "headwater_table" in shown
    assert SECRET not in shown


def test_a_task_that_fails_shows_no_secret(spark: SparkSession, url: str) -> None:
    query = "SELECT 1 / (id - id) AS nothing FROM rides"
    rows = spark.read.format("headwater_table").options(url=url, query=query).load()
    with pytest.raises(PySparkException) as caught:
        rows.collect()
    assert "division by zero" in str(translated(caught.value))
    assert SECRET not in str(caught.value)


def test_a_write_that_fails_shows_no_secret(spark: SparkSession, url: str) -> None:
    rows = spark.range(3)
    for options in ({"url": url, "table": "nowhere"}, {"url": AWAY, "table": "rides"}):
        with pytest.raises(PySparkException) as caught:
            rows.write.format("headwater_sql").mode("append").options(**options).save()
        assert SECRET not in str(caught.value)


@pytest.mark.parametrize(
    "ask",
    [
        lambda _: TableSource({"url": AWAY, "table": "t"}).schema(),
        lambda spark: SqlSink({"url": AWAY, "table": "t"}).writer(spark.range(1).schema, False),
    ],
    ids=["table", "sink"],
)
def test_a_database_that_is_away_is_named_without_secrets(
    spark: SparkSession, ask: Callable[[SparkSession], object]
) -> None:
    with pytest.raises(DatabaseUnreachable, match="at postgresql://me@") as caught:
        ask(spark)
    assert SECRET not in str(caught.value)
