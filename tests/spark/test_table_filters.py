"""A database filters a table as Spark would, and what cannot be read is refused in one line."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pytest
import sqlalchemy as sa
from pyspark.sql import datasource as ds
from pyspark.sql.datasource import Filter

from headwater.errors import HeadwaterError, InvalidInput, QueryRefused
from tests.support.spark.table_reads import Read, read_here

FILTERS: list[tuple[Filter, list[int]]] = [
    (ds.GreaterThan(("n",), 3), [4, 5]),
    (ds.LessThanOrEqual(("n",), 2), [0, 1, 2]),
    (ds.IsNull(("n",)), [6]),
    (ds.In(("n",), (1, 5, 77)), [1, 5]),
    (ds.Not(ds.EqualTo(("n",), 3)), [0, 1, 2, 4, 5]),
    (ds.EqualTo(("word",), "o'k \\ %"), [0, 5]),
    (ds.GreaterThan(("word",), "B"), [0, 1, 2, 5]),
    (ds.StringStartsWith(("word",), "aé"), [2]),
    (ds.EqualTo(("free",), False), [1, 3, 5]),
    (ds.LessThan(("ratio",), 0.25), [0, 1, 2]),
]


@pytest.fixture
def mixed(engine: sa.Engine) -> None:
    """A table ``t`` of seven rows; the last is all nulls. Texts are sorted as people do."""
    collation = "NOCASE"
    if engine.dialect.name == "postgresql":
        with engine.connect() as connection:
            found = "SELECT collname FROM pg_collation WHERE collprovider = 'i'"
            collation = connection.exec_driver_sql(found).scalars().first() or "C"
    table = sa.Table(
        "t",
        sa.MetaData(),
        sa.Column("n", sa.Integer),
        sa.Column("word", sa.Text(collation=collation)),
        sa.Column("free", sa.Boolean),
        sa.Column("ratio", sa.Double),
        sa.Column("day", sa.Date),
        sa.Column("at", sa.DateTime(timezone=True)),
        sa.Column("fare", sa.Numeric(8, 2)),
    )
    table.create(engine)
    rows = [
        {
            "n": n,
            "word": word,
            "free": n % 2 == 0,
            "ratio": n / 10,
            "day": dt.date(2024, 1, 1 + n),
            "at": dt.datetime(2024, 1, 1 + n, 1, tzinfo=dt.UTC),
            "fare": Decimal(n) / 2,
        }
        for n, word in enumerate(["o'k \\ %", "a", "aé", "A", "B", "o'k \\ %"])
    ]
    with engine.begin() as connection:
        connection.execute(table.insert(), [*rows, dict.fromkeys(rows[0])])


@pytest.mark.usefixtures("mixed")
def test_the_database_filters_as_spark_would(database_url: str) -> None:
    for one, kept in FILTERS:
        (rows,) = read_here(database_url, one, table="t")
        assert sorted(6 if row[0] is None else row[0] for row in rows) == kept, one


@pytest.mark.usefixtures("mixed")
def test_filters_on_times_and_decimals_are_decided_right(read_table: Read) -> None:
    """Pushed down by Postgres; SQLite holds texts, so that Spark decides."""
    condition = "day > date'2024-01-02' and at <= timestamp'2024-01-05 01:00:00' and fare > 1.00"
    assert sorted(row.n for row in read_table(table="t").where(condition).collect()) == [3, 4]


def test_what_cannot_be_is_refused_in_one_line(
    read_table: Read, database_url: str, run_sql: Callable[..., None]
) -> None:
    run_sql("CREATE TABLE t (id BIGINT, raw TEXT)")
    with pytest.raises(QueryRefused, match="nope"):
        read_table(table="nope")
    refused: list[tuple[dict[str, Any], type[Exception], str]] = [
        ({}, InvalidInput, "'table' and 'query'"),
        ({"table": "a..b"}, InvalidInput, "schema.name"),
        ({"query": "SELECT nope FROM t"}, QueryRefused, "nope"),
        ({"table": "t", "columns": "nope"}, InvalidInput, "it has id, raw"),
        ({"table": "t", "numpartition": 3}, InvalidInput, "did you mean 'numPartitions'"),
        ({"table": "t", "numPartitions": 3}, InvalidInput, "no primary key of one column"),
        ({"table": "t", "partitionColumn": "nope"}, InvalidInput, "it has id, raw"),
        ({"table": "t", "lowerBound": 1}, InvalidInput, "need the option 'partitionColumn'"),
    ]
    where = {"table": "t", "partitionColumn": "id"}
    refused += [
        (where | {"lowerBound": "x"}, InvalidInput, "'lowerBound' is 'x'"),
        (where | {"lowerBound": 9, "upperBound": 2}, InvalidInput, "exchange them"),
        (where | {"partitionColumn": "raw", "lowerBound": "a"}, InvalidInput, "leave them out"),
    ]
    for options, error, words in refused:
        with pytest.raises(error, match=words) as told:
            read_here(database_url, **options)
        assert "\n" not in str(told.value)


def test_passwords_are_in_no_message() -> None:
    secret = "hunter2secret"
    for url in (
        f"postgresql+psycopg://u:{secret}@127.0.0.1:1/x",
        f"postgresql://u@127.0.0.1:1/x?password={secret}",
        f"mysql://u:{secret}@h/x",
        f"postgresql://u:{secret}@h:port/x",
    ):
        with pytest.raises(HeadwaterError) as told:
            read_here(url, table="t")
        assert secret not in str(told.value)
