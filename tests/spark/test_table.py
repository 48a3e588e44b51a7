"""Tables of SQLite and Postgres come into Spark exactly, cut into ranges.

Most tests read in this process, by the reader that Spark would ship to its tasks; those that are
about Spark's part take the session.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path

import psycopg
import pytest
import sqlalchemy as sa
from pyspark.sql import SparkSession
from pyspark.sql import functions as f

from headwater.errors import ValueMisfit
from tests.support.postgres import Postgres
from tests.support.spark.table_reads import Read, read_here

NOON = dt.datetime(2024, 2, 29, 12, 0, 0, 123456, tzinfo=dt.UTC)


def test_every_type_keeps_its_value(read_table: Read, engine: sa.Engine) -> None:
    table = sa.Table(
        "kinds",
        sa.MetaData(),
        sa.Column("id", sa.BigInteger, primary_key=True),
        sa.Column("name", sa.Text),
        sa.Column("fare", sa.Numeric(12, 2)),
        sa.Column("free", sa.Boolean),
        sa.Column("ratio", sa.Double),
        sa.Column("raw", sa.LargeBinary),
        sa.Column("day", sa.Date),
        sa.Column("at", sa.DateTime(timezone=True)),
        sa.Column("doc", sa.JSON),
    )
    table.create(engine)
    row = {
        "id": 2**62,
        "name": "Ærø ' \" %",
        "fare": Decimal("1234567890.12"),
        "free": True,
        "ratio": 0.1,
        "raw": b"\x00\xff",
        "day": NOON.date(),
        "at": NOON,
        "doc": {"a": [1, None]},
    }
    with engine.begin() as connection:
        connection.execute(table.insert(), [row, dict.fromkeys(row) | {"id": 1}])
    frame = read_table(table="kinds")
    assert [kind for _, kind in frame.dtypes] == [
        "bigint",
        "string",
        "decimal(12,2)",
        "boolean",
        "double",
        "binary",
        "date",
        "timestamp",
        "string",
    ]
    empty, full = frame.orderBy("id").withColumn("at", f.unix_micros("at")).collect()
    micros = int(NOON.timestamp()) * 10**6 + 123456
    wanted = row | {"at": micros, "doc": '{"a": [1, null]}'}
    # JSON of null is a document for SQLAlchemy.
    assert full.asDict() == wanted
    assert [fact for fact in list(empty)[1:] if fact not in (None, "null")] == []


@pytest.mark.parametrize("column", ["n", "word", "fare", "at"])
def test_every_row_comes_once_whatever_the_ranges(
    database_url: str, engine: sa.Engine, column: str
) -> None:
    table = sa.Table(
        "t",
        sa.MetaData(),
        sa.Column("n", sa.BigInteger),
        sa.Column("word", sa.String(9)),
        sa.Column("fare", sa.Numeric(12, 2)),
        sa.Column("at", sa.DateTime(timezone=True)),
    )
    table.create(engine)
    rows = [
        {
            "n": None if i % 7 == 0 else i * i - 500,
            "word": None if i % 5 == 0 else f"w{i % 11}é",
            "fare": Decimal(i) / 4,
            "at": NOON + dt.timedelta(hours=i),
        }
        for i in range(100)
    ]
    with engine.begin() as connection:
        connection.execute(table.insert(), rows)
    for count in (1, 3, 20):
        parts = read_here(database_url, table="t", partitionColumn=column, numPartitions=count)
        assert len(parts) <= count
        assert len(parts) > 1 or count == 1
        assert sorted(row[2] for part in parts for row in part) == [row["fare"] for row in rows]


def test_bounds_say_where_to_cut_not_what_to_leave_out(
    database_url: str, run_sql: Callable[..., None]
) -> None:
    run_sql(
        "CREATE TABLE t (id BIGINT)", "INSERT INTO t VALUES (-5), (0), (10), (20), (999), (NULL)"
    )
    where = {"partitionColumn": "id", "lowerBound": 0, "upperBound": 20, "numPartitions": 3}
    parts = read_here(database_url, table="t", **where)
    assert [sorted((n for (n,) in part), key=str) for part in parts] == [
        [-5, 0, None],
        [10],
        [20, 999],
    ]


def test_empty_tables_have_their_columns(read_table: Read, run_sql: Callable[..., None]) -> None:
    run_sql("CREATE TABLE t (id BIGINT PRIMARY KEY, name TEXT)")
    frame = read_table(table="t", numPartitions=4)
    assert frame.dtypes == [("id", "bigint"), ("name", "string")]
    assert frame.collect() == []
    assert frame.where("id > 5 and name = 'x'").collect() == []


def test_names_are_taken_as_they_are(read_table: Read, run_sql: Callable[..., None]) -> None:
    run_sql('CREATE TABLE "Odd "".t; DROP" ("sel""ect" BIGINT, "B" TEXT)')
    run_sql("""INSERT INTO "Odd "".t; DROP" VALUES (1, 'x'), (2, 'y')""")
    frame = read_table(table='"Odd "".t; DROP"', partitionColumn='sel"ect', numPartitions=2)
    assert sorted(map(tuple, frame.collect())) == [(1, "x"), (2, "y")]
    assert [row.B for row in frame.where(f.col('sel"ect') == 2).collect()] == ["y"]


def test_a_query_and_fewer_columns(read_table: Read, run_sql: Callable[..., None]) -> None:
    run_sql("CREATE TABLE t (id BIGINT, name TEXT)", "INSERT INTO t VALUES (1, 'a'), (2, 'b')")
    frame = read_table(query="SELECT id * 2 AS twice, name FROM t ORDER BY id DESC;")
    assert sorted(map(tuple, frame.collect())) == [(2, "a"), (4, "b")]
    assert sorted(map(tuple, read_table(table="t", columns="name").collect())) == [("a",), ("b",)]
    assert read_table("name string, id int", table="t").dtypes == [
        ("name", "string"),
        ("id", "int"),
    ]


@pytest.mark.parametrize(
    ("declared", "value", "shown"),
    [
        ("INTEGER", "'many'", "'many'"),
        ("REAL", "x'00'", "X'00'"),
        ("BOOLEAN", "7", "7 is neither 0 nor 1"),
        ("DECIMAL(4, 1)", "'12.34'", "data loss"),
        ("DATETIME", "'soon'", "soon"),
        ("DATE", "20240101", "20240101"),
        ("TEXT", "x'ff'", "X'FF'"),
    ],
)
def test_a_value_that_does_not_fit_is_shown(
    tmp_path: Path, declared: str, value: str, shown: str
) -> None:
    """SQLite keeps anything anywhere; a guess would be silent."""
    url = f"sqlite:///{tmp_path / 'loose.db'}"
    engine = sa.create_engine(url)
    with engine.begin() as connection:
        connection.exec_driver_sql(f"CREATE TABLE t (c {declared})")
        connection.exec_driver_sql("INSERT INTO t VALUES (NULL)")
        connection.exec_driver_sql(f"INSERT INTO t VALUES ({value})")
    engine.dispose()
    with pytest.raises(ValueMisfit, match=shown):
        read_here(url, table="t")


def test_values_after_many_nulls_keep_their_type(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'nulls.db'}"
    engine = sa.create_engine(url)
    with engine.begin() as connection:
        connection.exec_driver_sql("CREATE TABLE t (name TEXT, at DATETIME, bare)")
        nothing = [(None, None, None)] * 3000
        connection.exec_driver_sql("INSERT INTO t VALUES (?, ?, ?)", nothing)
        zoned = ("x", "2024-01-01T02:00:00+02:00", 1)
        connection.exec_driver_sql("INSERT INTO t VALUES (?, ?, ?)", [zoned])
    engine.dispose()
    (rows,) = read_here(url, table="t", fetchSize=100)
    assert rows[3000] == ("x", dt.datetime(2024, 1, 1, tzinfo=dt.UTC), 1)
    assert len(rows) == 3001


def test_tasks_read_the_snapshot_they_are_given(spark: SparkSession, postgres: Postgres) -> None:
    url = postgres.database()
    with psycopg.connect(url.replace("+psycopg", ""), autocommit=True) as writer:
        writer.execute("CREATE TABLE t (id BIGINT PRIMARY KEY)")
        writer.execute("INSERT INTO t SELECT generate_series(1, 100)")
        with psycopg.connect(url.replace("+psycopg", "")) as holder:
            holder.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            (snapshot,) = holder.execute("SELECT pg_export_snapshot()").fetchone() or ("",)
            writer.execute("DELETE FROM t WHERE id % 2 = 0")
            reader = spark.read.format("headwater_table").options(url=url, table="t")
            held = reader.options(snapshot=snapshot, numPartitions=3).load()
            assert held.count() == 100
        assert spark.read.format("headwater_table").options(url=url, table="t").load().count() == 50


def test_what_spark_does_not_know_comes_as_text_and_infinity_is_refused(
    postgres: Postgres,
) -> None:
    url = postgres.database()
    with psycopg.connect(url.replace("+psycopg", ""), autocommit=True) as writer:
        writer.execute("CREATE TYPE mood AS ENUM ('glad')")
        writer.execute(
            "CREATE TABLE t (m mood, u uuid, a int[], i interval, c char(3), n numeric, s smallint)"
        )
        writer.execute(
            "INSERT INTO t VALUES ('glad', '00000000-0000-0000-0000-000000000001', '{1,2}', "
            "'1 day', 'x', 0.5, 7)"
        )
        ((row,),) = read_here(url, table="t")
        text = "00000000-0000-0000-0000-000000000001"
        assert row == ("glad", text, "{1,2}", "1 day", "x", Decimal("0.5"), 7)
        for value in ("'infinity'::timestamptz", "'infinity'::date", "'NaN'::numeric"):
            with pytest.raises(ValueMisfit):
                read_here(url, query=f"SELECT {value} AS v")


def test_skewed_texts_are_cut_into_equal_counts(
    database_url: str, run_sql: Callable[..., None]
) -> None:
    run_sql("CREATE TABLE t (word TEXT)")
    run_sql("INSERT INTO t VALUES " + ", ".join(f"('a{i:03}')" for i in range(100)))
    parts = read_here(database_url, table="t", partitionColumn="word", numPartitions=4)
    assert [len(part) for part in parts] == [25, 25, 25, 25]
