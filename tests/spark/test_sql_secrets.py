"""Plans, tasks and jobs name a database without its secrets, wherever in its URL they stand."""

from __future__ import annotations

from collections.abc import Callable

import psycopg
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from headwater.errors import DatabaseUnreachable
from headwater.spark.engine.failures import translated
from headwater.spark.sql_sink.source import SqlSink
from headwater.spark.tables.source import TableSource
from tests.support.postgres import Postgres

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
