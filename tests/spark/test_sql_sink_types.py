"""Values stay what they are in a table, and what cannot be written is refused in time."""

from __future__ import annotations

import datetime as dt
import decimal
from typing import Any

import pyarrow as pa
import pytest
import sqlalchemy as sa
from pyspark.sql import types as t

from headwater import InvalidInput
from headwater.errors import DatabaseUnreachable, QueryRefused
from headwater.spark.sql_sink.source import plan_write
from tests.support.spark.sql_sinks import LONG, RIDES, STRING, Table

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
        plan_write({"url": table.url, "table": "totals", **options}, schema, False, streaming=False)
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
        plan_write({"table": "t", **options}, RIDES, False, streaming=False)
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
