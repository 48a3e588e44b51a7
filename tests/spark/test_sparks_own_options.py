"""What Spark says to every source and sink is taken by ours: names of queries, paths, tables."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

import pytest
from pyspark.sql import DataFrame, SparkSession

import headwater
from headwater import InvalidInput
from headwater.spark.engine.failures import translating_errors
from headwater.timeline import Farm
from tests.support.servers import Server


class Place(NamedTuple):
    """Where rows lie: the format that writes them, the one that reads them, and one row."""

    sink: str
    source: str
    options: dict[str, str]
    row: str
    where: str


KINDS = ("stream", "queue", "ick", "timeline", "table")


@pytest.fixture(scope="module")
def places(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, Place]]:
    """One place of each kind, with one row in it."""
    url: str = request.getfixturevalue("stores").url("embedded")
    file = tmp_path_factory.mktemp("table") / "t.db"
    database = {"url": f"sqlite:///{file}", "table": "t"}
    with Server() as server, headwater.connect(url) as hw, closing(sqlite3.connect(file)) as conn:
        hw.stream("words").write("k", b"v")
        hw.queue("words").push(b"v")
        hw.ick("words").add({"m": 1.0})
        instances = server.url
        with Farm.open(instances) as farm:
            farm.insert([("k", 1.0, "m")])
        conn.execute("CREATE TABLE t (id INTEGER, name TEXT)")
        conn.execute("INSERT INTO t VALUES (1, 'one')")
        conn.commit()
        yield {
            "stream": Place(
                *("headwater", "headwater", {"url": url, "stream": "words"}),
                *("'k' AS tag, 'v' AS value", "offset = 1"),
            ),
            "queue": Place(
                *("headwater_queue", "headwater_queue", {"url": url, "queue": "words"}),
                *("'v' AS value", "attempt = 0"),
            ),
            "ick": Place(
                *("headwater_ick", "headwater_ick", {"url": url, "ick": "words"}),
                *("'m' AS member, 1D AS score", "score = 1"),
            ),
            "timeline": Place(
                *("headwater_timeline", "headwater_timeline", {"instances": instances}),
                *("'k' AS key, 'm' AS member, 1D AS score", "score = 1"),
            ),
            "table": Place(
                *("headwater_sql", "headwater_table", database),
                *("2L AS id, 'two' AS name", "id = 1"),
            ),
        }


@pytest.mark.parametrize("kind", KINDS)
def test_a_table_of_the_catalog_is_read_with_its_options(
    spark: SparkSession, places: dict[str, Place], kind: str
) -> None:
    place = places[kind]
    options = ", ".join(f"{name} '{value}'" for name, value in place.options.items())
    spark.sql(f"CREATE TABLE words USING {place.source} OPTIONS ({options}) COMMENT 'of tests'")
    try:
        assert spark.table("words").where(place.where).count() >= 1
        assert spark.sql("SELECT count(*) FROM words").first()[0] >= 1  # type: ignore[index]
    finally:
        spark.sql("DROP TABLE words")


@pytest.fixture(scope="module")
def lines(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> DataFrame:
    """A stream of one row."""
    folder: Path = tmp_path_factory.mktemp("lines")
    (folder / "one.txt").write_text("one\n")
    return spark.readStream.text(str(folder))


@pytest.mark.parametrize("kind", KINDS)
def test_a_query_with_a_name_writes_to_each_sink(
    lines: DataFrame, places: dict[str, Place], kind: str, tmp_path: Path
) -> None:
    place = places[kind]
    query = (
        lines.selectExpr(*place.row.split(", "))
        .writeStream.format(place.sink)
        .options(checkpointLocation=str(tmp_path / "checkpoint"), **place.options)
        .queryName(f"words_{kind}")
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    assert query.exception() is None
    assert [progress["numInputRows"] for progress in query.recentProgress] == [1]


def test_a_path_is_the_name_of_what_is_read_and_written(
    spark: SparkSession, places: dict[str, Place]
) -> None:
    for kind, name in (("stream", "words"), ("queue", "words"), ("ick", "words"), ("table", "t")):
        place = places[kind]
        url = place.options["url"]
        assert spark.read.format(place.source).option("url", url).load(name).columns
    rows = spark.sql("SELECT 'k' AS tag, 'v' AS value")
    stream = places["stream"]
    rows.write.format("headwater").option("url", stream.options["url"]).mode("append").save("saved")
    with headwater.connect(stream.options["url"]) as hw:
        assert hw.stream("saved").info().last == 1


def test_a_save_mode_that_cannot_be_meant_names_the_one_that_can(
    spark: SparkSession, places: dict[str, Place]
) -> None:
    for place in places.values():
        rows = spark.sql(f"SELECT {place.row}").write.format(place.sink).options(**place.options)
        with pytest.raises(InvalidInput, match=r"\.mode\('append'\)"), translating_errors():
            rows.mode("overwrite").save()


def test_a_stream_or_topic_without_a_message_has_no_rows(
    spark: SparkSession, embedded_url: str, name: str
) -> None:
    with headwater.connect(embedded_url) as hw:
        hw.topic(name, 2).partitions()
        hw.stream(f"{name}-read").group("g").read(1)
    reader = spark.read.format("headwater").option("url", embedded_url)
    assert reader.option("topic", name).load().count() == 0
    reader = spark.read.format("headwater").option("url", embedded_url)
    assert reader.option("stream", f"{name}-read").load().where("offset > 3").count() == 0
