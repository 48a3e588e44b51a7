"""Sinks know columns as Spark does: whatever their case, unless names are case-sensitive."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StringType, StructField, StructType

import headwater
from headwater import Headwater, InvalidInput
from headwater.spark.engine.failures import translating_errors
from headwater.spark.icks import IckSource
from headwater.spark.log.source import HeadwaterSource
from headwater.spark.queues import QueueSource
from headwater.spark.sql_sink.source import SqlSink
from headwater.spark.timelines import TimelineSource
from headwater.timeline import Farm
from tests.support.servers import Server

EXACT = "spark.sql.caseSensitive"


class Place(NamedTuple):
    """Where rows go: by which format, a row with names in other cases, and how to find it."""

    format: str
    options: dict[str, str]
    row: str
    found: Callable[[], Any]
    expected: Any

    @property
    def first(self) -> str:
        """The name of the first column of the row."""
        return self.row.split(" AS ")[1].split(",")[0]


SOURCES: dict[str, Callable[[dict[str, str]], DataSource]] = {
    source.name(): source
    for source in (HeadwaterSource, QueueSource, IckSource, TimelineSource, SqlSink)
}
KINDS = ("stream", "topic", "values", "queue", "channel", "timeline", "table")


@pytest.fixture
def hw(embedded_url: str) -> Iterator[Headwater]:
    with headwater.connect(embedded_url) as hw:
        yield hw


@pytest.fixture(params=KINDS)
def place(
    request: pytest.FixtureRequest, hw: Headwater, embedded_url: str, name: str, tmp_path: Path
) -> Iterator[Place]:
    url, kind = embedded_url, request.param
    messages = "'k' AS TAG, 'v' AS Value, timestamp_seconds(7) AS tIME"

    def first_of(stream: str) -> Any:
        return [(m.tag, m.value, m.time_ms) for m in hw.stream(stream).read(1, 9) if m]

    if kind == "stream":
        options = {"url": url, "stream": name}
        yield Place("headwater", options, messages, lambda: first_of(name), [("k", b"v", 7000)])
    elif kind == "topic":
        yield Place(
            *("headwater", {"url": url, "topic": name, "partitions": "2"}),
            f"{messages}, 1 AS PARTITION",
            lambda: first_of(f"{name}/1"),
            [("k", b"v", 7000)],
        )
    elif kind == "values":
        options = {"url": url, "stream": name, "schema": "Id int, at string"}
        yield Place(
            *("headwater", options, "1 AS ID, 'x' AS At, 'k' AS Tag"),
            lambda: [(m.tag, m.value) for m in hw.stream(name).read(1, 9) if m],
            [("k", b'{"Id":1,"at":"x"}')],
        )
    elif kind == "queue":
        yield Place(
            *("headwater_queue", {"url": url, "queue": name}, "'v' AS VALUE, 3 AS Priority"),
            lambda: [m.value for m in hw.queue(name).pop(9)],
            [b"v"],
        )
    elif kind == "channel":
        yield Place(
            *("headwater_ick", {"url": url, "channel": name}, "'m' AS Member, 2 AS SCORE"),
            lambda: [(r.member, r.score) for r in hw.ick_channel(name).reserve(9).reserved],
            [("m", 2.0)],
        )
    elif kind == "timeline":
        with Server() as server, Farm.open(server.url) as farm:
            yield Place(
                *("headwater_timeline", {"instances": server.url}),
                "'k' AS Key, 2 AS SCORE, 'm' AS Member, false AS Deleted",
                lambda: [(e.member, e.score) for e in farm.select(["k"])["k"]],
                [("m", 2.0)],
            )
    else:
        file = tmp_path / "t.db"
        with closing(sqlite3.connect(file)) as conn:
            conn.execute('CREATE TABLE t ("Id" INTEGER PRIMARY KEY, name TEXT)')
            yield Place(
                *("headwater_sql", {"url": f"sqlite:///{file}", "table": "t"}),
                "1L AS ID, 'one' AS Name",
                lambda: conn.execute('SELECT "Id", name FROM t').fetchall(),
                [(1, "one")],
            )


def save(rows: DataFrame, place: Place, **options: str) -> None:
    writer = rows.write.format(place.format).options(**place.options, **options).mode("append")
    with translating_errors():
        writer.save()


def test_a_sink_knows_a_column_whatever_its_case(spark: SparkSession, place: Place) -> None:
    save(spark.sql(f"SELECT {place.row}"), place)
    assert place.found() == place.expected


@pytest.mark.parametrize("place", ["stream"], indirect=True)
def test_a_session_without_our_java_ignores_the_case_too(spark: SparkSession, place: Place) -> None:
    plain = spark.newSession()
    save(plain.sql(f"SELECT {place.row}"), place)
    assert place.found() == place.expected
    # It cannot know that names are case-sensitive, and may say it.
    with pytest.raises(InvalidInput, match="column 'TAG'"):
        save(plain.sql(f"SELECT {place.row}"), place, **{EXACT: "true"})


@pytest.mark.parametrize("place", ["stream"], indirect=True)
def test_a_streaming_query_may_use_any_case(
    spark: SparkSession, place: Place, tmp_path: Path
) -> None:
    rows = spark.sql(f"SELECT {place.row}")
    rows.write.json(str(tmp_path / "rows"))

    def run(checkpoint: str) -> None:
        query = (
            spark.readStream.schema(rows.schema)
            .json(str(tmp_path / "rows"))
            .writeStream.format(place.format)
            .options(**place.options, checkpointLocation=str(tmp_path / checkpoint))
            .trigger(availableNow=True)
            .start()
        )
        with translating_errors():
            query.awaitTermination()

    run("any case")
    assert place.found() == place.expected
    with exact_names(spark), pytest.raises(InvalidInput, match="column 'TAG'"):
        run("exact")


@pytest.mark.parametrize("place", ["stream", "queue"], indirect=True)
def test_names_are_told_apart_by_case_where_the_session_does_so(
    spark: SparkSession, place: Place
) -> None:
    rows = spark.sql(f"SELECT {place.row}")
    with exact_names(spark), pytest.raises(InvalidInput, match=f"column '{rows.columns[0]}'"):
        save(rows, place)


@contextmanager
def exact_names(spark: SparkSession) -> Iterator[None]:
    spark.conf.set(EXACT, "true")
    try:
        yield
    finally:
        spark.conf.unset(EXACT)


def plan_write(place: Place, schema: StructType, **options: str) -> None:
    """Plan a write as Spark's process does it."""
    SOURCES[place.format]({**place.options, **options}).writer(schema, False)


def test_two_columns_that_differ_by_case_only_are_an_error_that_names_them(place: Place) -> None:
    name = place.first
    schema = StructType(
        [StructField(name, StringType()), StructField(name.swapcase(), StringType())]
    )
    match = f"columns '{name}' and '{name.swapcase()}' differ by case only"
    with pytest.raises(InvalidInput, match=match):
        plan_write(place, schema)


def test_every_sink_can_be_told_that_names_are_case_sensitive(place: Place) -> None:
    schema = StructType([StructField(place.first, StringType())])
    with pytest.raises(InvalidInput, match=f"column '{place.first}'|of the option 'schema'"):
        plan_write(place, schema, **{EXACT: "true"})


def test_nodes_are_packed_whatever_the_case(
    spark: SparkSession, hw: Headwater, embedded_url: str, name: str
) -> None:
    options = {"url": embedded_url, "stream": name}
    rows = spark.range(2000).selectExpr("'k' AS Tag", "cast(id AS string) AS VALUE")
    rows.write.format("headwater").options(**options).mode("append").save()
    # Of our own source, with the places that are left out.
    again = spark.read.format("headwater").options(**options).load()
    again = again.toDF(*(column.upper() for column in again.columns))
    again.write.format("headwater").options(**options).mode("append").save()
    values = [m.value for m in hw.stream(name).read(1, 9999) if m]
    assert values == [str(i).encode() for i in range(2000)] * 2


def test_keys_of_an_upsert_may_be_in_any_case(spark: SparkSession, tmp_path: Path) -> None:
    file = tmp_path / "t.db"
    with closing(sqlite3.connect(file)) as conn:
        conn.execute("CREATE TABLE t (id INTEGER PRIMARY KEY, name TEXT)")
        options = {"url": f"sqlite:///{file}", "table": "t", "mode": "upsert", "keys": "ID"}
        for word in ("one", "two"):
            row = spark.sql(f"SELECT 1L AS Id, '{word}' AS NAME")
            row.write.format("headwater_sql").options(**options).mode("append").save()
        assert conn.execute("SELECT * FROM t").fetchall() == [(1, "two")]
