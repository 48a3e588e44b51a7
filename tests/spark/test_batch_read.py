"""A batch read gives what the log holds, once, in the columns and the range asked for."""

from __future__ import annotations

import datetime as dt
import json
import logging
import re
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, DataFrameReader, Row, SparkSession
from pyspark.sql import functions as F  # noqa: N812  as everybody who uses Spark calls it
from pyspark.sql.types import DataType, IntegerType, LongType, StringType, StructType, TimestampType

import headwater
from headwater import InvalidInput, Stream, Topic
from headwater.errors import HeadwaterError, WriteRefused
from headwater.spark import register
from headwater.spark.engine import optimizer_rule
from headwater.spark.engine.failures import translated, translating_errors
from headwater.spark.engine.optimizer_rule import PUSHDOWN, java_sources
from headwater.spark.log.source import HeadwaterSource
from headwater.timeline import Farm
from tests.support.entries import entries
from tests.support.servers import Server
from tests.support.spark.plans import plan_of
from tests.support.spark.queries import finish
from tests.support.spark.tables import small_table
from tests.support.spark.times import write_at

Source = Callable[..., DataFrameReader]


def offsets(frame: DataFrame) -> list[int]:
    return sorted(row.offset for row in frame.select("offset").collect())


def facts(row: Row) -> tuple[int, str, bytes]:
    return row.offset, row.tag, bytes(row.value)


def test_a_stream_is_read_whole(source: Source, make_stream: Callable[..., Stream]) -> None:
    stream = make_stream(2500)
    frame = source(stream=stream.name).load().withColumn("time", F.unix_millis("time"))
    rows = frame.orderBy("offset").collect()
    assert [facts(row) for row in rows] == [
        (offset, tag, value) for offset, (tag, value) in enumerate(entries(2500), 1)
    ]
    assert {(row.stream, row.partition) for row in rows} == {(stream.name, 0)}
    message = stream.read(1234, 1)[0]
    assert message is not None
    assert rows[1233].time == message.time_ms


def test_a_topic_is_read_whole_with_its_partitions(
    source: Source, make_topic: Callable[..., Topic]
) -> None:
    topic = make_topic(2000, partitions=3)
    rows = source(topic=topic.name, minPartitions=7).load().collect()
    assert sorted((row.tag, bytes(row.value)) for row in rows) == sorted(entries(2000, tags=50))
    assert {(row.stream, row.partition) for row in rows} == {
        (f"{topic.name}/{place}", place) for place in range(3)
    }
    assert all(topic.partition_of(row.tag) == row.partition for row in rows)


def test_columns_are_those_asked_for_in_that_order(
    source: Source, make_stream: Callable[..., Stream]
) -> None:
    stream = make_stream(20)
    assert source(stream=stream.name).load().columns == [
        "stream", "partition", "offset", "tag", "value", "time",
    ]  # fmt: skip
    frame = source(stream=stream.name, columns="value, offset").load()
    assert frame.columns == ["value", "offset"]
    assert sorted((row.offset, bytes(row.value)) for row in frame.collect())[6] == (7, b"value-7")
    chosen = source(stream=stream.name).schema("tag string, partition int").load()
    assert {tuple(row) for row in chosen.collect()} == {(f"tag-{i}", 0) for i in range(7)}


@pytest.mark.parametrize(
    ("starting", "ending", "first", "last"),
    [
        ("earliest", "latest", 1, 3000),
        ("1000", "2001", 1000, 2000),
        ("latest", "latest", 3001, 3000),
        ("3001", "3001", 3001, 3000),
        ('{"0": 2999}', '{"0": "latest"}', 2999, 3000),
        ("EARLIEST", '{"0": 2}', 1, 1),
    ],
)
def test_offsets_bound_the_read(
    spark: SparkSession,
    embedded_url: str,
    three_thousand: str,
    starting: str,
    ending: str,
    first: int,
    last: int,
) -> None:
    frame = (
        spark.read.format("headwater")
        .option("url", embedded_url)
        .option("stream", three_thousand)
        .option("startingOffsets", starting)
        .option("endingOffsets", ending)
        .option("minPartitions", 4)
        .load()
    )
    assert offsets(frame) == list(range(first, last + 1))


def test_times_bound_the_read(source: Source, hw: headwater.Headwater, name: str) -> None:
    times = [1_700_000_000_000 + 10 * i for i in range(2000)]
    write_at(hw.stream(name), times)
    at = dt.datetime.fromtimestamp(times[500] / 1000, dt.UTC)
    early = source(stream=name, endingTimestamp=times[500]).load()
    assert offsets(early) == list(range(1, 501))
    late = source(stream=name, startingOffsets=(at - dt.timedelta(milliseconds=5)).isoformat())
    assert offsets(late.load()) == list(range(501, 2001))
    both = source(
        stream=name,
        startingOffsets=json.dumps({"0": at.isoformat()}),
        endingOffsets=json.dumps({"0": 600}),
    )
    assert offsets(both.load()) == list(range(501, 600))
    assert offsets(source(stream=name, startingTimestamp=times[-1] + 1).load()) == []


def test_tasks_end_where_nodes_end(source: Source, make_stream: Callable[..., Stream]) -> None:
    stream = make_stream(10_000, size=1000)
    frame = source(stream=stream.name, minPartitions=4).load()
    bounds = frame.groupBy(F.spark_partition_id()).agg(F.min("offset"), F.max("offset")).collect()
    found = sorted((row[1], row[2]) for row in bounds)
    assert len(found) == 4
    assert [low % 1000 for low, _ in found] == [1] * 4
    assert [high for _, high in found[:-1]] == [low - 1 for low, _ in found[1:]]


@pytest.fixture(scope="module")
def three_thousand(request: pytest.FixtureRequest) -> str:
    stores = request.getfixturevalue("stores")
    with headwater.connect(stores.url("embedded")) as hw:
        hw.stream("three-thousand").write_many(entries(3000))
    return "three-thousand"


# Who knows Kafka finds the way: columns have other names here, and rows go back as they came.


@pytest.mark.parametrize(
    ("column", "kind", "words"),
    [
        ("key", StringType(), r"it is the tag here: \.withColumnRenamed\('key', 'tag'\)"),
        ("topic", StringType(), "by the option 'stream' or 'topic'"),
        ("timestamp", TimestampType(), r"withColumnRenamed\('timestamp', 'time'\)"),
        ("partition", IntegerType(), "column 'partition' is for a topic"),
        ("offset", LongType(), "column 'offset' has no place in the log"),
    ],
)
def test_a_column_by_another_name_is_told_its_name_here(
    embedded_url: str, column: str, kind: DataType, words: str
) -> None:
    source = HeadwaterSource({"url": embedded_url, "stream": "habits"})
    schema = StructType().add(column, kind).add("value", StringType())
    with pytest.raises(InvalidInput, match=words):
        source.writer(schema, overwrite=False)


@pytest.mark.parametrize("into", ["stream", "topic"])
def test_rows_of_ours_are_written_back_as_they_are(
    embedded_url: str, make_embedded_stream: Callable[[int], Stream], name: str, into: str
) -> None:
    stream = make_embedded_stream(1200)
    stream.evict(100)
    source = HeadwaterSource({"url": embedded_url, "stream": stream.name})
    schema = source.schema()
    reader = source.reader(schema)
    batches = [batch for part in reader.partitions() for batch in reader.read(part)]
    sink = HeadwaterSource({"url": embedded_url, into: f"{name}-copy", "partitions": "2"})
    if into == "stream":
        del sink.options["partitions"]
    writer = sink.writer(schema, overwrite=False)
    writer.commit([writer.write(iter(batches))])  # type: ignore[arg-type]
    with headwater.connect(embedded_url) as hw:
        # All rows have partition 0, which the copy keeps.
        copy = hw.stream(f"{name}-copy" if into == "stream" else f"{name}-copy/0")
        was, now = stream.read(101, 2000), copy.read(1, 2000)
    assert [message and message.offset for message in now] == list(range(1, 1101))
    assert [(m.tag, m.value, m.time_ms) for m in was if m] == [
        (m.tag, m.value, m.time_ms) for m in now if m
    ]


# An error of ours is one line in any session, also in one that shows the stack of everything.


HIDE = "spark.sql.execution.pyspark.udf.hideTraceback.enabled"


@pytest.fixture
def plain(spark: SparkSession) -> Iterator[SparkSession]:
    """The session with Spark's own setting: errors of Python come with their stack."""
    spark.conf.set(HIDE, "false")
    yield spark
    spark.conf.set(HIDE, "true")


@pytest.fixture
def save(plain: SparkSession, embedded_url: str, name: str, tmp_path: Path) -> Callable[..., None]:
    """Write rows to the log, a queue, or the table ``t`` of ids 0 to 29."""
    places = {
        "headwater": {"url": embedded_url, "stream": name},
        "headwater_queue": {"url": embedded_url, "queue": name},
        "headwater_sql": {"url": small_table(tmp_path), "table": "t"},
    }

    def save(kind: str, rows: str, **options: str) -> None:
        frame = plain.sql(rows).coalesce(1)
        frame.write.format(kind).mode("append").options(**places[kind], **options).save()

    return save


@pytest.mark.parametrize(
    ("kind", "rows", "error", "words"),
    [
        ("headwater", "SELECT 1 AS speed", InvalidInput, "column 'speed' has no place"),
        ("headwater", "SELECT string(NULL) AS value", InvalidInput, "a value that is null"),
        ("headwater_queue", "SELECT 'v' AS value, -1L AS ttl_ms", InvalidInput, "ttl_ms must be"),
        ("headwater_sql", "SELECT 1 AS speed", InvalidInput, "no column 'speed'"),
        ("headwater_sql", "SELECT id FROM range(2)", WriteRefused, "UNIQUE"),
    ],
    ids=["log plan", "log task", "queue task", "sql plan", "sql commit"],
)
def test_a_write_that_fails_is_told_in_one_line(
    save: Callable[..., None], kind: str, rows: str, error: type[HeadwaterError], words: str
) -> None:
    with pytest.raises(PySparkException) as caught:
        save(kind, rows)
    assert isinstance(translated(caught.value), error)
    assert words in str(caught.value)
    assert "Traceback" not in str(caught.value)


@pytest.mark.parametrize("kind", ["headwater", "headwater_sql"])
def test_a_query_that_is_refused_is_told_in_one_line(
    plain: SparkSession, kind: str, tmp_path: Path
) -> None:
    rows = plain.readStream.format("rate").load().select("value")
    writer = rows.writeStream.format(kind).option("checkpointLocation", str(tmp_path))
    with pytest.raises(PySparkException, match="did you mean 'url'") as caught:
        writer.option("urll", "x").start().awaitTermination(240)
    assert "Traceback" not in str(caught.value)


# ── What Spark says to every source and sink is taken by ours: names of queries, paths, tables ───


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
    rows, options = lines.selectExpr(*place.row.split(", ")), {"queryName": f"words_{kind}"}
    query = finish(rows, place.sink, tmp_path / "checkpoint", **options, **place.options)
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


# ── A Spark that lacks what our Java needs turns all of it off, with one line; rows stay right ───
# Each part is made to be missing by its name: our Java asks for one that no Spark has.


LINES = {
    line.split()[3]: line
    for line in java_sources()["Internals.java"].splitlines()
    if line.startswith("  static final")
}
# Every line, and what it would ask for.
LACKING = [
    (line, line.replace(f'"{name}"', f'"{name}Gone"'), f"{name}Gone")
    for line in LINES.values()
    for name in re.findall(r'"([$\w]+)"', line)
]
OF_ANOTHER_TYPE = [
    (line, line.replace("StructType", "String"), "outputSchema of type String")
    for line in (LINES["SCAN_SCHEMA"], LINES["TASK_SCHEMA"])
]
# What the compiler sees: a class that is gone, a method, a constructor with other arguments.
PLAIN = [
    ("ColumnScan.java", "python.PythonBatch;", "python.PythonBotch;"),
    ("OwnScans.java", "own.setShortName(name)", "own.setShortNome(name)"),
    ("OwnScans.java", "PythonScanBuilder(own, name, asked,", "PythonScanBuilder(name, own, asked,"),
    ("ColumnReaders.java", "source.createPythonTaskMetrics", "source.createTaskMetrics"),
    ("Nodes.java", "batch.buffers(buffer)", "batch.buffers()"),
    ("NodeWriter.java", "tasks.pickledWriteFunc()", "tasks.writeFunction()"),
]


def one_of_a_kind(*kinds: Sequence[tuple[str, str, str]]) -> list[Any]:
    """Return the first case of each kind, and the others for the long run."""
    return [
        pytest.param(*case, marks=[pytest.mark.long] if place else [], id=" ".join(case[1:]))
        for cases in kinds
        for place, case in enumerate(cases)
    ]


Session = Callable[..., SparkSession]


@pytest.fixture
def session_with(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> Session:
    """Make a session of an application for which our Java was changed in one place."""

    def make(file: str, old: str, new: str) -> SparkSession:
        sources = java_sources()
        assert sources[file].count(old) == 1
        sources[file] = sources[file].replace(old, new)
        monkeypatch.setattr(optimizer_rule, "java_sources", lambda: sources)
        monkeypatch.setattr(optimizer_rule, "_rules", WeakKeyDictionary())
        fresh = spark.newSession()
        fresh.conf.set(PUSHDOWN, "true")
        register(fresh)
        return fresh

    return make


def check_is_off(spark: SparkSession, log: pytest.LogCaptureFixture, url: str, stream: str) -> str:
    """See that filters stay with Spark, rows are right, and one line says so; returns the line."""
    register(spark)
    assert spark.conf.get(PUSHDOWN) == "false"
    frame = spark.read.format("headwater").options(url=url, stream=stream).load()
    assert "ColumnarToRow" not in plan_of(frame)
    low, high = frame.where("offset <= 3"), frame.where("tag = 'tag-3'")
    low.explain()
    high.explain()
    assert sorted(row.offset for row in low.collect()) == [1, 2, 3]
    wanted = [(tag, value) for tag, value in entries(1200) if tag == "tag-3"]
    assert sorted((row.tag, bytes(row.value)) for row in high.collect()) == sorted(wanted)
    (line,) = [record.getMessage() for record in log.records if record.name == "headwater.spark"]
    assert "\n" not in line
    return line


def test_every_part_is_tried_here() -> None:
    used = {
        part
        for file, text in java_sources().items()
        if file != "Internals.java"
        for part in re.findall(r"\bInternals\.([A-Z]\w+)", text)
    }
    assert used == set(LINES)
    assert used == {line.split()[3] for line, _, _ in LACKING}


@pytest.mark.parametrize(("line", "asked", "words"), one_of_a_kind(LACKING, OF_ANOTHER_TYPE))
def test_a_part_that_is_missing_turns_all_of_it_off(
    session_with: Session,
    make_embedded_stream: Callable[[int], Stream],
    embedded_url: str,
    caplog: pytest.LogCaptureFixture,
    line: str,
    asked: str,
    words: str,
) -> None:
    fresh = session_with("Internals.java", line, asked)
    told = check_is_off(fresh, caplog, embedded_url, make_embedded_stream(1200).name)
    assert words in told


@pytest.mark.parametrize(("file", "old", "new"), one_of_a_kind(PLAIN))
def test_what_the_compiler_does_not_find_turns_all_of_it_off(
    session_with: Session,
    make_embedded_stream: Callable[[int], Stream],
    embedded_url: str,
    caplog: pytest.LogCaptureFixture,
    file: str,
    old: str,
    new: str,
) -> None:
    fresh = session_with(file, old, new)
    told = check_is_off(fresh, caplog, embedded_url, make_embedded_stream(1200).name)
    assert file in told
    assert "\tat " not in told


def test_an_application_after_another_one_gets_the_rule_too(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The JVM stays when a session is stopped, and with it what it knows of our classes."""
    monkeypatch.setattr(optimizer_rule, "_rules", WeakKeyDictionary())
    fresh = spark.newSession()
    with caplog.at_level(logging.WARNING, "headwater.spark"):
        register(fresh)
    rules = fresh._jsparkSession.experimental().extraOptimizations()
    assert rules.length() == 2
    assert not caplog.records
