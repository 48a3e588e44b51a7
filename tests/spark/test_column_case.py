"""Sinks know columns as Spark does: whatever their case, unless names are case-sensitive."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource
from pyspark.sql.functions import exists, lit, map_from_entries
from pyspark.sql.types import DataType, StringType, StructField, StructType

import headwater
from headwater import Headwater, InvalidInput, Stream
from headwater.spark.archives.scrubbing import scrub_archives
from headwater.spark.archives.table import Archive
from headwater.spark.archives.writing import ArchivePiece, restore_piece
from headwater.spark.engine.columns import parse_ddl
from headwater.spark.engine.failures import translating_errors
from headwater.spark.engine.optimizer_rule import PUSHDOWN
from headwater.spark.icks import IckSource
from headwater.spark.log.source import HeadwaterSource
from headwater.spark.queues import QueueSource
from headwater.spark.sql_sink.source import SqlSink
from headwater.spark.timelines import TimelineSource
from headwater.timeline import Farm
from tests.support.entries import entries
from tests.support.servers import Server
from tests.support.spark.archiving import run_archiver
from tests.support.spark.queries import finish, following

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
def hw(embedded: Headwater) -> Headwater:
    return embedded


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
        again = spark.readStream.schema(rows.schema).json(str(tmp_path / "rows"))
        with translating_errors():
            finish(again, place.format, tmp_path / checkpoint, **place.options)

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


# The option ``schema``: JSON values become columns, and columns become values on the way out.
# What Spark's own from_json and to_json make of the same rows is the measure.


NAME = "decoded-values"
DDL = (
    "id bigint, rider struct<name: string, stops: array<date>>, `fare paid` decimal(10,2), "
    "tag double, at timestamp, ok boolean"
)
ROWS = 3000
MISFITS = (b"", b"null", b"no JSON", b'{"id":1.5}', b'{"id":1},{"id":2}', b'{"tag":"1"}', b'{"id":')


def _value(place: int) -> bytes:
    if place % 100 < len(MISFITS) and place > 200:
        return MISFITS[place % 100]
    if place % 10 == 3:
        return b'{"id":%d,"other":[1,{"id":2}]}' % place
    rider = f'{{"name":"ü\\"\\n{place}","stops":["2026-01-31",null]}}'
    return (
        f'{{"id":{place}, "rider":{rider},\n "fare paid":{place}.25,"tag":{place}.5,'
        '"at":"2026-01-31T12:00:00.5+02:00","ok":true}'
    ).encode()


@pytest.fixture(scope="module")
def url(request: pytest.FixtureRequest) -> str:
    url: str = request.getfixturevalue("stores").url("embedded")
    with headwater.connect(url) as hw:
        # As a node, and as plain entries.
        hw.stream(NAME).write_many([("t", _value(place)) for place in range(ROWS - 2)])
        hw.stream(NAME).write("t", _value(ROWS - 2))
        hw.stream(NAME).write("t", b"\xff")
    return url


def _decoded(session: SparkSession, url: str) -> DataFrame:
    options = {"url": url, "stream": NAME, "columns": "offset,value", "schema": DDL}
    return session.read.format("headwater").options(**options).load()


@pytest.fixture(params=["with our rule", "plain"])
def frame(request: pytest.FixtureRequest, spark: SparkSession, url: str) -> DataFrame:
    session = spark
    if request.param == "plain":
        session = spark.newSession()
        session.conf.set(PUSHDOWN, "true")
    return _decoded(session, url)


def test_values_are_the_columns_that_from_json_makes_of_them(frame: DataFrame) -> None:
    theirs = f"from_json(cast(value AS string), '{DDL}')"
    names = ["id", "rider", "`fare paid`", "tag", "at", "ok"]
    fits = frame.where("_corrupt_record IS NULL")
    same = [f"theirs.{name} <=> {name}" for name in names]
    # A column of a value that has the name of one of ours is compared with nothing of ours.
    low = fits.where("offset <= 500 AND tag >= 0 AND _corrupt_record IS NULL")
    counted = fits.selectExpr("*", f"{theirs} AS theirs").where(" AND ".join(same)).count()
    misfits = [place for place in range(ROWS - 1) if _value(place) in MISFITS]
    assert counted == fits.count() == ROWS - 1 - len(misfits)
    assert low.count() == sum(
        b'"tag":' in _value(place) for place in range(500) if place not in misfits
    )
    assert frame.count() == ROWS


def test_a_value_that_does_not_fit_is_kept_as_it_is(frame: DataFrame) -> None:
    found = frame.where("_corrupt_record IS NOT NULL").orderBy("offset").collect()
    wanted = [value for value in map(_value, range(ROWS - 1)) if value in MISFITS]
    assert [row._corrupt_record.encode() for row in found[:-1]] == wanted
    assert found[-1]._corrupt_record == "\N{REPLACEMENT CHARACTER}"
    assert {row.id for row in found} == {None}
    # Whatever of it is asked for: the column that fits is null with the one that does not.
    assert frame.where("offset > 200 AND id = 1").count() == 0


def test_a_table_and_a_query_decode_and_encode(
    spark: SparkSession, url: str, name: str, tmp_path: Path
) -> None:
    options = {"url": url, "stream": NAME, "columns": "offset,stream,partition", "schema": DDL}
    words = ", ".join(f"{key} '{value}'" for key, value in options.items())
    spark.sql(f"CREATE TABLE decoded USING headwater OPTIONS ({words})")
    try:
        assert spark.sql("SELECT rider.name FROM decoded WHERE id = 5").collect() == [('ü"\n5',)]
    finally:
        spark.sql("DROP TABLE decoded")
    into = {"url": url, "stream": name, "schema": DDL}
    finish(following(spark, **options), "headwater", tmp_path, **into)
    again = spark.read.format("headwater").options(**{**options, "stream": name}).load()
    was = spark.read.format("headwater").options(**options).load()
    assert again.drop("stream").exceptAll(was.drop("stream")).count() == 0
    assert again.count() == ROWS
    with headwater.connect(url) as hw:
        messages = hw.stream(name).read(1, 400)
    values = [message.value for message in messages if message]
    assert (values[3], values[301]) == (b'{"id":3}', MISFITS[1])


def test_columns_that_cannot_be_are_refused_with_the_cure(spark: SparkSession, url: str) -> None:
    def read(**options: str) -> None:
        spark.read.format("headwater").options(url=url, stream=NAME, **options).load()

    def write(sql: str, **options: str) -> None:
        rows = spark.sql(sql).write.format("headwater").options(url=url, stream="w", **options)
        rows.mode("append").save()

    with (
        pytest.raises(InvalidInput, match=r"'tag' is in .*'stream,partition,offset,time'"),
        translating_errors(),
    ):
        read(schema="id int, Tag string")
    with pytest.raises(InvalidInput, match=r"the type 'map'.*use from_json"), translating_errors():
        read(schema="id map<string, int>")
    with (
        pytest.raises(InvalidInput, match="a type was expected at its end in 'id'"),
        translating_errors(),
    ):
        read(schema="id")
    with pytest.raises(InvalidInput, match="goes with 'schema'"), translating_errors():
        read(columnNameOfCorruptRecord="bad")
    with pytest.raises(InvalidInput, match="no column 'id' of the option"), translating_errors():
        write("SELECT 1 AS x", schema="id int")
    with (
        pytest.raises(InvalidInput, match=r"'id' is bigint, and int.*\.cast\('int'\)"),
        translating_errors(),
    ):
        write("SELECT 1L AS id", schema="id int")
    with pytest.raises(InvalidInput, match="column 'value' is there"), translating_errors():
        write("SELECT 1 AS id, 'v' AS value", schema="id int")
    with pytest.raises(InvalidInput, match="column 'more' has no place"), translating_errors():
        write("SELECT 1 AS id, 2 AS more", schema="id int")


@pytest.mark.usefixtures("spark")
@pytest.mark.parametrize(
    "ddl",
    [
        DDL,
        "a INT NOT NULL COMMENT 'x, y', b:string",
        "`a ``b` decimal, c numeric(5), d struct<e: array<struct<f: timestamp_ntz>>>, g real",
    ],
)
def test_ddl_means_what_it_means_to_spark(ddl: str) -> None:
    theirs = DataType.fromDDL(ddl)
    assert parse_ddl(ddl).simpleString() == theirs.simpleString()


# ── Headers in Spark: a column when asked for, both ways, and kept by archives and restores ──────


Given = list[tuple[str, bytes, dict[str, bytes]]]


def given(count: int) -> Given:
    """Make rows of which every third has no headers."""
    return [
        (tag, value, {"n": b"%d" % i, "kind": b"test"} if i % 3 else {})
        for i, (tag, value) in enumerate(entries(count))
    ]


@pytest.fixture
def stream(hw: Headwater, name: str) -> Stream:
    """A stream of nodes with headers, nodes without, and a tail."""
    stream = hw.stream(name)
    stream.write_many(given(1500))
    stream.write_many(entries(1000))
    stream.write_many(given(5))
    return stream


@pytest.fixture
def expected() -> Given:
    return [*given(1500), *((tag, value, {}) for tag, value in entries(1000)), *given(5)]


def found_in(stream: Stream) -> list[Any]:
    return [(m.tag, m.value, m.headers) for m in stream.read(1, 9000) if m]


def maps(rows: list[Any]) -> Given:
    """Return rows of Spark in order of offset, with their headers as maps."""
    return [
        (row.tag, bytes(row.value), {one.key: bytes(one.value) for one in row.headers})
        for row in sorted(rows, key=lambda row: row.offset)
    ]


def test_headers_are_a_column_when_asked_for_and_can_be_written_back(
    spark: SparkSession, embedded_url: str, hw: Headwater, stream: Stream, expected: Given
) -> None:
    log = spark.read.format("headwater").option("url", embedded_url).option("stream", stream.name)
    assert "headers" not in log.load().columns
    assert log.load().count() == 2505
    rows = log.option("includeHeaders", "true").load()
    kind = rows.schema["headers"].dataType.simpleString()
    assert kind == "array<struct<key:string,value:binary>>"
    assert maps(rows.collect()) == expected
    found = rows.where(exists("headers", lambda one: one["value"] == lit(b"7"))).collect()
    assert [row.offset for row in found] == [8]
    copy = hw.stream(f"{stream.name}-copy")
    sink = {"url": embedded_url, "stream": copy.name}
    ordered = rows.coalesce(1).select("tag", "value", "headers")
    ordered.write.format("headwater").options(**sink).mode("append").save()
    as_map = ordered.limit(5).withColumn("headers", map_from_entries("headers"))
    as_map.write.format("headwater").options(**sink).mode("append").save()
    written = found_in(copy)
    assert sorted(written, key=str) == sorted([*expected, *expected[:5]], key=str)


@pytest.mark.skipif("HEADWATER_LONG" not in os.environ, reason="a query takes long to start")
def test_a_streaming_query_has_headers(
    spark: SparkSession, embedded_url: str, stream: Stream, expected: Given, tmp_path: Path
) -> None:
    options = {"url": embedded_url, "stream": stream.name, "includeHeaders": "true"}
    place = str(tmp_path / "rows")
    finish(following(spark, **options), "parquet", tmp_path / "checkpoint", path=place)
    assert maps(spark.read.parquet(place).collect()) == expected


def test_an_archive_keeps_headers_and_gives_them_back(
    embedded_url: str, hw: Headwater, stream: Stream, expected: Given, tmp_path: Path
) -> None:
    place = str(tmp_path / "archive")
    run_archiver(embedded_url, stream.name, place, evict=True)
    archive = Archive(place, stream.name)
    contents = archive.require()
    assert any(file.headed for file in contents.files)
    assert not scrub_archives(place).defects
    source = HeadwaterSource(
        {"url": embedded_url, "stream": stream.name, "archive": place, "includeHeaders": "true"}
    )
    reader = source.reader(source.schema())
    batches: list[Any] = [one for part in reader.partitions() for one in reader.read(part)]
    found = [row for batch in batches for row in batch.to_pylist()]
    assert [dict(one.values() for one in row["headers"]) for row in found] == [
        headers for _, _, headers in expected
    ]
    copy = hw.stream(f"{stream.name}-restored")
    piece = ArchivePiece(archive, [*contents.files], 1, contents.last, copy.name, "restore")
    restore_piece(hw, piece)
    assert found_in(copy) == expected


def test_an_archive_without_headers_is_what_it_was(
    embedded_url: str, hw: Headwater, name: str, tmp_path: Path
) -> None:
    hw.stream(name).write_many(entries(1200))
    place = str(tmp_path / "archive")
    run_archiver(embedded_url, name, place)
    assert not any(file.headed for file in Archive(place, name).require().files)


def test_a_column_of_headers_that_fits_nothing_is_refused(
    spark: SparkSession, embedded_url: str, name: str
) -> None:
    rows = spark.createDataFrame([(b"1", "x")], ["value", "headers"])
    with pytest.raises(InvalidInput, match="column 'headers' must be array or map"):
        HeadwaterSource({"url": embedded_url, "stream": name}).writer(rows.schema, overwrite=False)
