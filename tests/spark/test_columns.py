"""Scans of ours give Spark columns, and nodes of the log that the JVM opens: the same rows as ever.

Each is compared with what the library's own ``scan`` gives, and with the rows that a session
without our rule takes from the same source.
"""

from __future__ import annotations

import contextlib
import os
import secrets
from collections import Counter
from collections.abc import Callable, Iterator
from functools import reduce
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException, PythonException
from pyspark.sql import DataFrame, DataFrameReader, Row, SparkSession
from pyspark.sql import functions as F  # noqa: N812  as everybody who uses Spark calls it
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

import headwater
from headwater import DataLost, Headwater, Stream, Topic, UnreadableNode
from headwater.log import node
from headwater.log.keys import index_key, stream_key
from headwater.log.reading import UnopenedNode
from headwater.spark import register
from headwater.spark.engine.failures import translated, translating_errors
from headwater.spark.engine.optimizer_rule import install_rule
from headwater.spark.log.columns import ALL, arrow_schema, batch_of_nodes, spark_schema
from headwater.spark.log.range_reader import OffsetRange
from headwater.spark.log.source import HeadwaterSource
from headwater.spark.log.stream_reader import HELD_BYTES, HELD_OFFSETS, HeldRows, StreamReader
from headwater.spark.queries.notes import all_notes
from tests.support.entries import entries
from tests.support.servers import Server, until
from tests.support.spark.dying_sinks import LOG_STEPS, PUBLISHED, Death, sink_that_dies
from tests.support.spark.plans import last_plan, plan_of, without_our_rule
from tests.support.spark.queries import finish, following

Source = Callable[..., DataFrameReader]


def by_library(stream: Stream) -> list[tuple[Any, ...]]:
    return [
        (row["offset"], row["tag"], row["value"], int(row["time"].timestamp() * 1000 + 0.5))
        for batch in stream.scan()
        for row in batch.to_pylist()
    ]


def by_spark(frame: DataFrame) -> list[tuple[Any, ...]]:
    chosen = frame.select("offset", "tag", "value", F.unix_millis("time").alias("time"))
    return sorted((r.offset, r.tag, bytes(r.value), r.time) for r in chosen.collect())


def kinds_of_nodes(raw: Any, stream: Stream) -> set[int]:
    nodes = raw.hgetall(f"{stream_key(stream.name)}:nodes").values()
    return {blob[3] for blob in nodes if blob}


def test_a_scan_of_ours_gives_columns(
    source: Source, make_stream: Callable[..., Stream], spark: SparkSession
) -> None:
    frame = source(stream=make_stream(20).name).load()
    assert "ColumnarToRow" in plan_of(frame)
    with without_our_rule(spark):
        assert "ColumnarToRow" not in plan_of(frame.select("*"))


def test_nodes_of_every_kind_are_opened_rightly(
    source: Source, many_kinds: Stream, spark: SparkSession
) -> None:
    wanted = by_library(many_kinds)
    frame = source(stream=many_kinds.name).load()
    assert by_spark(frame) == wanted
    with without_our_rule(spark):
        assert by_spark(source(stream=many_kinds.name).load()) == wanted


def list_again(raw: Any, stream: Stream) -> None:
    """Put the checksums of the nodes that a test has changed into the index."""
    key = stream_key(stream.name)
    for member, score in raw.zrange(index_key(key), 0, -1, withscores=True):
        base, count, size, time, newest, _ = member.split(b":")
        last, blob = int(score), raw.hget(f"{key}:nodes", base)
        version = node.checksum(node.crc_of(blob), last, int(newest), last - int(base) + 1)
        raw.zrem(index_key(key), member)
        raw.zadd(
            index_key(key),
            {b"%b:%b:%b:%b:%b:%d" % (base, count, size, time, newest, version): score},
        )


def test_all_ways_to_pack_a_node_are_opened(spark: SparkSession, name: str) -> None:
    with Server() as server, headwater.connect(server.url) as hw, server.client() as raw:
        stream = hw.stream(name)
        for base in range(1, 8000, 1000):
            stream.write_many(entries(1000, base, tags=8000))
        key = f"{stream_key(name)}:nodes"
        batch = node.unpack(raw.hget(key, "1"))
        plain = node.batch_of(["a"] * 1000, [b""] * 1000)
        raw.hset(key, "1", node.pack(batch, hot=True).blob)
        raw.hset(key, "1001", node.pack(batch, sealed=True).blob)
        raw.hset(key, "2001", node.pack(plain).blob)
        offsets = list(range(3001, 4001, 100))
        few = node.batch_of(["f"] * 10, [b"few"] * 10, [5] * 10, offsets)
        raw.hset(key, "3001", node.pack(few).blob)
        raw.hset(key, "4001", b"")
        list_again(raw, stream)
        kinds = kinds_of_nodes(raw, stream)
        assert {node.LZ4, node.ZSTD, node.HAS_TIME | node.HAS_OFFSET} <= kinds
        frame = spark.read.format("headwater").option("url", server.url).option("stream", name)
        found = by_spark(frame.load())
        wanted = by_library(hw.stream(name))
        assert len(wanted) == 3000 + 10 + 3000
        assert found == wanted


def test_a_range_that_cuts_nodes_gives_no_message_more(source: Source, many_kinds: Stream) -> None:
    wanted = by_library(many_kinds)
    for start, stop in ((2, 2), (500, 501), (999, 1703), (1700, 4000)):
        frame = source(stream=many_kinds.name, startingOffsets=start, endingOffsets=stop).load()
        assert by_spark(frame) == [row for row in wanted if start <= row[0] < stop]


def test_any_columns_in_any_order(source: Source, make_stream: Callable[..., Stream]) -> None:
    stream = make_stream(1500)
    rows = source(stream=stream.name, columns="value,partition,tag").load().collect()
    assert sorted((bytes(r.value), r.tag) for r in rows) == sorted(
        (value, tag) for tag, value in entries(1500)
    )
    assert {tuple(row.asDict()) for row in rows} == {("value", "partition", "tag")}
    frame = source(stream=stream.name).load()
    assert {r[0] for r in frame.select("stream").distinct().collect()} == {stream.name}
    assert frame.count() == 1500


def test_offsets_without_a_gap_are_counted_by_the_jvm(
    source: Source, make_topic: Callable[..., Topic], spark: SparkSession
) -> None:
    """Of one partition messages are missing, so its nodes are looked at."""
    topic = make_topic(2000)
    topic.partition(1).compact()
    topic.partition(2).evict(20)

    def found() -> list[Any]:
        frame = source(topic=topic.name, minPartitions=5).load()
        some = frame.where("offset > 100 AND partition <> 1").select("stream", "offset")
        return [frame.count(), some.count(), *sorted(map(tuple, some.collect()))]

    counted = found()
    with without_our_rule(spark):
        assert counted == found()


def test_what_a_query_keeps_outlives_the_batch_it_came_in(
    source: Source, make_stream: Callable[..., Stream], spark: SparkSession
) -> None:
    """The memory of a node is used again for the next one."""
    stream = make_stream(6000, size=1000, tags=6000)
    frame = source(stream=stream.name).load()
    wanted = entries(6000, tags=6000)
    low, high = min(wanted), max(wanted)
    assert frame.agg(F.min("tag"), F.max("tag")).first() == (low[0], high[0])
    assert frame.agg(F.min_by("value", "tag"), F.first("tag")).first() == (low[1], wanted[0][0])
    assert frame.select("tag").distinct().count() == 6000
    assert [r.tag for r in frame.orderBy("tag").select("tag").collect()] == sorted(
        tag for tag, _ in wanted
    )
    joined = frame.alias("a").join(frame.alias("b"), "tag").where("a.value = b.value")
    assert joined.count() == 6000
    held = frame.cache()
    try:
        assert sorted((r.tag, bytes(r.value)) for r in held.collect()) == sorted(wanted)
    finally:
        held.unpersist()
    spark.conf.set("spark.sql.codegen.wholeStage", "false")
    try:
        assert sorted(r.tag for r in frame.limit(2500).collect()) == sorted(
            tag for tag, _ in wanted[:2500]
        )
    finally:
        spark.conf.unset("spark.sql.codegen.wholeStage")


@pytest.mark.parametrize(
    "limit", ["maxRecordsPerOutputBatch", "maxBytesPerOutputBatch"], ids=["rows", "bytes"]
)
def test_batches_that_spark_cuts_give_the_same_rows(
    source: Source, many_kinds: Stream, spark: SparkSession, limit: str
) -> None:
    wanted = by_library(many_kinds)
    setting = f"spark.sql.execution.arrow.{limit}"
    for most in (1, 2, 5000):
        spark.conf.set(setting, most)
        try:
            assert by_spark(source(stream=many_kinds.name).load()) == wanted
        finally:
            spark.conf.unset(setting)


def test_a_damaged_node_is_one_readable_error(spark: SparkSession, name: str) -> None:
    with Server() as server, headwater.connect(server.url) as hw, server.client() as raw:
        hw.stream(name).write_many(entries(1000))
        key = f"{stream_key(name)}:nodes"
        blob = bytearray(raw.hget(key, "1") or b"")
        blob[len(blob) // 2] ^= 0xFF
        raw.hset(key, "1", bytes(blob))
        frame = spark.read.format("headwater").option("url", server.url).option("stream", name)
        with pytest.raises(PythonException, match="damaged") as caught:
            frame.load().collect()
        assert "Traceback" not in str(caught.value)


@pytest.mark.parametrize(
    ("at", "byte", "why"),
    [
        (2, 2, "it has format version 2, this client reads up to 1"),
        (2, 200, "it has format version 200, this client reads up to 1"),
        (3, 64, "it has columns that this client does not know (64)"),
        (0, 104, "it does not begin as a node does"),
    ],
    ids=["next version", "late version", "columns", "no node"],
)
def test_a_node_of_an_unknown_version_is_refused_by_the_jvm_too(
    spark: SparkSession, at: int, byte: int, why: str
) -> None:
    """As if Python read a newer version already, and our Java did not."""
    blob = bytearray(node.pack(node.batch_of(["t"] * 3, [b"v"] * 3)).blob)
    blob[at] = byte
    fresh = spark.newSession()
    register(fresh)
    fresh.dataSource.register(source_of(UnopenedNode(1, 0, bytes(blob))))
    with pytest.raises(UnreadableNode) as caught, translating_errors():
        fresh.read.format("headwater").load().collect()
    assert str(caught.value) == str(UnreadableNode(why))


def source_of(kept: UnopenedNode) -> type[DataSource]:
    """Make a source of our name whose tasks pass on one node, unchecked."""

    class OneNode(DataSourceReader):
        def __init__(self, schema: pa.Schema) -> None:
            self.schema = schema

        def read(self, partition: Any) -> Iterator[pa.RecordBatch]:  # noqa: ARG002
            yield batch_of_nodes([kept], "s", 0, self.schema)

    class Source(DataSource):
        @classmethod
        def name(cls) -> str:
            return "headwater"

        def schema(self) -> StructType:
            return spark_schema(ALL)

        def reader(self, schema: StructType) -> OneNode:
            return OneNode(arrow_schema(schema))

    return Source


def test_a_table_comes_as_columns_too(spark: SparkSession, tmp_path: Any) -> None:
    import sqlite3

    path = tmp_path / "t.db"
    with contextlib.closing(sqlite3.connect(path)) as conn, conn:
        conn.execute("CREATE TABLE t (id INTEGER PRIMARY KEY, name TEXT, size REAL)")
        rows = [(i, None if i % 3 else f"n{i}", i / 4) for i in range(1, 50)]
        conn.executemany("INSERT INTO t VALUES (?, ?, ?)", rows)
    reader = spark.read.format("headwater_table").option("url", f"sqlite:///{path}")
    frame = reader.option("table", "t").load()
    assert "ColumnarToRow" in plan_of(frame)
    assert sorted(tuple(row) for row in frame.collect()) == rows


def test_the_rule_is_installed_once(spark: SparkSession) -> None:
    rules = spark._jsparkSession.experimental().extraOptimizations()
    names = [rules.apply(i).getClass().getName() for i in range(rules.length())]
    assert names == ["headwater.OwnScans", "headwater.NodeWrites"]
    install_rule(spark)
    assert spark._jsparkSession.experimental().extraOptimizations().length() == 2


def test_spark_pushes_no_filter_to_a_source_of_ours_before_the_rule(
    spark: SparkSession, embedded_url: str, make_embedded_stream: Callable[[int], Stream]
) -> None:
    stream = make_embedded_stream(10)
    frame = spark.read.format("headwater").options(url=embedded_url, stream=stream.name).load()
    leaves = frame.where("offset > 7")._jdf.queryExecution().optimizedPlan().collectLeaves()
    assert leaves.apply(0).relation().table().getClass().getSimpleName() == "OwnTable"
    assert leaves.apply(0).scan().getClass().getSimpleName() == "ColumnScan"


# ── Micro-batches of the log come as columns and unopened nodes, too: the rows of a batch read ───


Query = Callable[[DataFrame], DataFrame]


class Micro:
    """A query that ran in micro-batches: its rows, how many each read, and the last plan."""

    def __init__(self, frame: DataFrame, folder: Path, mode: str = "append") -> None:
        name = f"micro_{folder.name}".replace("-", "_")
        query: Any = finish(frame, "memory", folder / "checkpoint", mode, queryName=name)
        self.rows = rows_of(frame.sparkSession.table(name))
        self.read = [one["numInputRows"] for one in query.recentProgress]
        self.plan = str(query._jsq.explainInternal(False))


def rows_of(frame: DataFrame) -> Counter[tuple[Any, ...]]:
    return Counter(tuple(row) for row in frame.collect())


@pytest.fixture
def streaming(spark: SparkSession, store_url: str) -> Callable[[Stream], DataFrame]:
    """Begin a streaming read in micro-batches that cut nodes."""

    def streaming(stream: Stream) -> DataFrame:
        limits = {"maxOffsetsPerTrigger": 2500, "minPartitions": 2}
        return following(spark, store_url, stream.name, **limits)

    return streaming


def all_columns(frame: DataFrame) -> DataFrame:
    return frame


def some_rows(frame: DataFrame) -> DataFrame:
    return frame.where("offset % 3 = 0").selectExpr("tag", "length(value) AS size")


def two_columns_of_one_type(frame: DataFrame) -> DataFrame:
    """Two scans that differ in nothing but the name of the column that is left."""
    tags = frame.selectExpr("'tag' AS kind", "tag AS name").repartition(2)
    return tags.union(frame.selectExpr("'stream' AS kind", "stream AS name").repartition(2))


def every_column_of_its_own(frame: DataFrame) -> DataFrame:
    """Scans that differ, each behind an exchange: Spark plans them at the same time."""
    parts = [frame.selectExpr(f"string({name}) AS one").repartition(2) for name in frame.columns]
    return reduce(DataFrame.union, parts)


@pytest.mark.parametrize(
    ("query", "columns"),
    [
        (all_columns, "stream, partition, offset, tag, value, time"),
        (some_rows, "offset, tag, value"),
        (two_columns_of_one_type, "tag"),
        (every_column_of_its_own, "time"),
    ],
    ids=["all columns", "some", "two of one type", "many scans"],
)
def test_micro_batches_have_the_rows_of_a_batch_read(
    spark: SparkSession,
    source: Source,
    streaming: Callable[[Stream], DataFrame],
    many_kinds: Stream,
    tmp_path: Path,
    query: Query,
    columns: str,
) -> None:
    with without_our_rule(spark):
        wanted = rows_of(query(source(stream=many_kinds.name).load()))
    found = Micro(query(streaming(many_kinds)), tmp_path)
    assert found.rows == wanted
    plan = "".join(part for part in found.plan if not part.isdigit()).replace("#L", "#")
    assert f"ColumnStream[{columns}]" in plan.replace("#", "")


def test_progress_counts_what_micro_batches_read(
    streaming: Callable[[Stream], DataFrame], many_kinds: Stream, tmp_path: Path
) -> None:
    """Also where no column is used, and messages are counted by their offsets or headers."""
    found = Micro(streaming(many_kinds).groupBy().count(), tmp_path, "complete")
    messages = many_kinds.info().length
    assert found.rows == {(messages,): 1}
    assert sum(found.read) == messages


def test_a_session_without_our_rule_streams_rows(
    spark: SparkSession,
    source: Source,
    streaming: Callable[[Stream], DataFrame],
    many_kinds: Stream,
    tmp_path: Path,
) -> None:
    with without_our_rule(spark):
        found = Micro(some_rows(streaming(many_kinds)), tmp_path)
    assert "ColumnStream" not in found.plan
    assert found.rows == rows_of(some_rows(source(stream=many_kinds.name).load()))


# ── The rows of a small micro-batch go to the JVM with its plan, and are those of a batch read ───

# What the JVM looks for in a task; messages may have the same bytes.
MARKS = b"\xffheadwater:held\xff \xffheadwater:counted\xff"


@pytest.fixture
def hw(embedded: Headwater) -> Headwater:
    return embedded


def reader_of(url: str, name: str) -> StreamReader:
    source = HeadwaterSource({"url": url, "stream": name})
    reader = source.streamReader(source.schema())
    assert isinstance(reader, StreamReader)
    return reader


def plan(reader: StreamReader, first: int = 1, query: str | None = "q") -> list[InputPartition]:
    """Plan a micro-batch up to the end, as our Java asks for it."""
    start = reader.initialOffset()
    end = reader.latestOffset(start, reader.getDefaultReadLimit())
    start["0"]["next"] = first
    if query is not None:
        end["asking"] = {"query": query, "batch": "7", "about": None}
    return reader.partitions(start, end)


def rows_in(part: InputPartition) -> list[dict[str, Any]]:
    assert isinstance(part, HeldRows)
    rows: list[dict[str, Any]] = pa.ipc.open_stream(part.facts[16:]).read_all().to_pylist()
    return rows


def test_few_messages_are_read_by_the_process_that_plans(
    hw: Headwater, embedded_url: str, name: str
) -> None:
    hw.stream(name).write_many(entries(HELD_OFFSETS + 1))
    reader, query = reader_of(embedded_url, name), f"q-{secrets.token_hex(8)}"
    [many] = plan(reader, query=query)
    assert isinstance(many, OffsetRange)
    [few] = plan(reader, first=2, query=query)
    found = [(row["offset"], row["tag"], row["value"]) for row in rows_in(few)]
    assert found == [(i, *entry) for i, entry in enumerate(entries(HELD_OFFSETS, 2), 2)]
    # No task notes the query then.
    reader.stop()
    noted = {one.part: one.facts for one in hw.store.run(all_notes()).notes if one.query == query}
    assert (noted["read"].epoch, noted["read"].next) == (7, {name: 2})
    assert noted["beat"].ended
    # A session without our Java does not ask for rows.
    [plain] = plan(reader_of(embedded_url, name), first=2, query=None)
    assert isinstance(plain, OffsetRange)


def test_large_messages_are_left_to_tasks(hw: Headwater, embedded_url: str, name: str) -> None:
    stream = hw.stream(name)
    stream.write("large", b"x" * HELD_BYTES)
    reader = reader_of(embedded_url, name)
    assert isinstance(plan(reader)[0], OffsetRange)
    stream.write("small", b"x")
    # Not tried again: each would be read twice.
    assert isinstance(plan(reader, first=2)[0], OffsetRange)


def test_what_was_evicted_before_it_was_read_is_a_loss(
    hw: Headwater, embedded_url: str, name: str
) -> None:
    hw.stream(name).write_many(entries(20))
    reader = reader_of(embedded_url, name)
    start = reader.initialOffset()
    end = reader.latestOffset(start, reader.getDefaultReadLimit())
    end["asking"] = {"query": "q", "batch": "0", "about": None}
    hw.stream(name).evict(5)
    with pytest.raises(DataLost) as caught:
        reader.partitions(start, end)
    assert (caught.value.first, caught.value.last) == (1, 5)


def test_every_kind_of_column_comes_with_the_plan(
    spark: SparkSession, hw: Headwater, embedded_url: str, name: str, tmp_path: Path
) -> None:
    stream = hw.stream(name)
    stream.write_many([("tág", b'{"id": 1}'), ("", b'{"id": "no"}'), ("m", MARKS)])
    stream.write("h", b'{"id": 2}', headers={"a": b"1", "b": MARKS})
    options = {"url": embedded_url, "stream": name, "includeHeaders": "true"}
    ways = {
        "all": (options, ["*"]),
        "values": ({**options, "schema": "id bigint"}, ["id", "_corrupt_record", "headers"]),
        "some": (options, ["value", "partition"]),
        "none": (options, ["1 AS one"]),
    }
    for way, (given, columns) in ways.items():
        found: list[Row] = []

        def take(rows: DataFrame, _: int, found: list[Row] = found) -> None:
            found.extend(rows.collect())

        query = (
            spark.readStream.format("headwater")
            .options(**given)
            .load()
            .selectExpr(*columns)
            .writeStream.foreachBatch(take)
            .option("checkpointLocation", str(tmp_path / way))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        read = spark.read.format("headwater").options(**given).load().selectExpr(*columns)
        assert found == read.collect(), way
        progress = query.lastProgress
        assert progress is not None
        assert progress["numInputRows"] == 4
        assert int(progress["sources"][0]["metrics"]["bytesRead"]) > 0


def test_a_query_is_noted_although_no_task_does(
    spark: SparkSession, hw: Headwater, embedded_url: str, name: str, tmp_path: Path
) -> None:
    hw.stream(name).write_many(entries(3))
    query = (
        following(spark, embedded_url, name)
        .writeStream.format("noop")
        .queryName("small ones")
        .option("checkpointLocation", str(tmp_path))
        .start()
    )
    try:
        query.processAllAvailable()

        def noted() -> bool:
            notes = hw.store.run(all_notes()).notes
            return [
                (one.facts.name, one.facts.end) for one in notes if one.query == str(query.id)
            ] == [("small ones", {name: 4})]

        until(noted)
    finally:
        query.stop()


# Rows that the JVM packs as nodes give the messages, and the errors, of rows that Python packs.
# Each write runs twice: in a session with our rules, and in the same one without them.


PACKED = "headwater (nodes)"
TEXTS = "elt(1 + id % 5, '', 'plain', 'größer', '日本語', concat('🚀', id))"
# Behind 1970 by less than a millisecond; now; in the year 2200.
TIMES = "timestamp_micros(elt(1 + id % 3, -999, 1790000000123456, 7258118400000999) + 0)"
KINDS = {
    "texts": (4321, [f"concat({TEXTS}, id) AS tag", f"concat({TEXTS}, id) AS value"]),
    "bytes": (1400, ["unhex(substr('00FF80', 1, 2 * (id % 4))) AS value"]),
    "times": (
        2600,
        [f"{TEXTS} AS tag", f"{TIMES} AS time", "CAST(CAST(id AS string) AS binary) AS value"],
    ),
    "large": (60, ["'t' AS tag", "repeat('0123456789abcdef', 1 << (id % 18)) AS value"]),
    "greatest": (2, ["repeat('t', 4096) AS tag", "repeat('x', 16 << 20) AS value"]),
    "few": (3, ["'t' AS tag", "CAST(id AS string) AS value"]),
    "none": (0, ["'t' AS tag", "CAST(id AS string) AS value"]),
}
# All steps in ``make test-long``; each takes a query that dies and another that goes on.
LONG = "HEADWATER_LONG" in os.environ
STEPS = LOG_STEPS if LONG else ("writing", PUBLISHED)
# Settings of a session that change how rows get to Python, or are read before that.
SETTINGS = {
    "many": {
        "spark.sql.execution.arrow.maxRecordsPerBatch": "1",
        "spark.sql.execution.arrow.useLargeVarTypes": "true",
        "spark.sql.execution.arrow.compression.codec": "zstd",
        "spark.sql.codegen.wholeStage": "false",
        "spark.sql.codegen.factoryMode": "NO_CODEGEN",
        "spark.sql.adaptive.enabled": "false",
        "spark.sql.ansi.enabled": "false",
        "spark.sql.caseSensitive": "true",
        "spark.sql.session.timeZone": "America/New_York",
    },
    # Rows are sent as they are: Arrow does not read back what is empty.
    "lz4": {"spark.sql.execution.arrow.compression.codec": "lz4"},
}
REFUSED = [
    "SELECT IF(id = 2500, NULL, 'x') AS value",
    "SELECT 'x' AS value, IF(id = 0, NULL, 't') AS tag",
    "SELECT 'x' AS value, IF(id = 1200, repeat('t', 4097), 't') AS tag",
    "SELECT 'x' AS value, IF(id = 1700, CAST(X'41FF' AS string), 't') AS tag",
    "SELECT IF(id = 7, repeat('x', 1 + (16 << 20)), 'x') AS value",
    "SELECT 'x' AS value, IF(id = 1999, NULL, now()) AS time",
    "SELECT 'x' AS value, timestamp_micros(1500 - id) AS time",
]


def write(rows: DataFrame, url: str, stream: str, **options: str) -> str:
    """Write rows to a stream; returns the plan of that."""
    writer = rows.write.format("headwater").mode("append")
    writer.options(url=url, stream=stream, **options).save()
    return last_plan(rows.sparkSession)


def messages(stream: Stream, times: bool) -> list[tuple[object, ...]]:
    found = [m for m in stream.read(1, 1_000_000) if m]
    stream.delete()
    return [(m.tag, m.value, m.time_ms if times else None) for m in found]


@pytest.mark.parametrize("kind", KINDS)
def test_packed_rows_are_the_same_messages(
    spark: SparkSession, embedded_url: str, embedded: Headwater, name: str, kind: str
) -> None:
    count, columns = KINDS[kind]
    # Of five tasks some have few rows, or none.
    rows = spark.range(0, count, 1, 4).where("id % 2 = 0 OR id < 1500").selectExpr(*columns)
    rows = rows.union(rows.limit(0)) if count else rows
    stream = embedded.stream(name)
    assert PACKED in write(rows, embedded_url, name)
    info = stream.info()
    ours = messages(stream, "time" in rows.columns)
    with without_our_rule(spark):
        assert PACKED not in write(rows, embedded_url, name)
    assert (info.nodes, info.sealed) == (stream.info().nodes, stream.info().sealed)
    theirs = messages(stream, "time" in rows.columns)
    assert ours == theirs
    assert len(ours) == rows.count()


@pytest.mark.parametrize("settings", SETTINGS)
def test_the_settings_of_a_session_change_no_message(
    spark: SparkSession, embedded_url: str, embedded: Headwater, name: str, settings: str
) -> None:
    rows = spark.range(0, 2600, 1, 2).selectExpr(
        "timestamp_micros(1790000000123456 + id) AS time", "concat('v', id) AS value", "'t' AS tag"
    )
    stream = embedded.stream(name)
    write(rows, embedded_url, name)
    usual = messages(stream, times=True)
    nulls = rows.selectExpr("value", "IF(value = 'v7', NULL, tag) AS tag")
    kept = rows.coalesce(1).cache()
    before = {key: spark.conf.get(key) or "" for key in SETTINGS[settings]}
    for key, value in SETTINGS[settings].items():
        spark.conf.set(key, value)
    try:
        assert "tag that is null" in refusal(nulls, embedded_url, name)
        assert (PACKED in write(kept, embedded_url, name)) == (settings != "lz4")
    finally:
        kept.unpersist()
        for key, value in before.items():
            spark.conf.set(key, value)
    assert messages(stream, times=True) == usual


def test_rows_of_our_own_source_are_packed_as_they_are(
    spark: SparkSession,
    embedded_url: str,
    make_embedded_stream: Callable[[int], Stream],
    embedded: Headwater,
) -> None:
    source = make_embedded_stream(2300)
    rows = spark.read.format("headwater").options(url=embedded_url, stream=source.name).load()
    copied = embedded.stream(f"{source.name}-copied")
    assert PACKED in write(rows, embedded_url, copied.name)
    assert messages(copied, times=True) == messages(source, times=True)


@pytest.mark.parametrize(
    ("columns", "options"),
    [(["'x' AS value", "map('k', X'00') AS headers"], {}), (["id"], {"schema": "id long"})],
)
def test_what_python_has_to_look_at_goes_to_python_as_rows(
    spark: SparkSession,
    embedded_url: str,
    embedded: Headwater,
    name: str,
    columns: list[str],
    options: dict[str, str],
) -> None:
    rows = spark.range(3).selectExpr(*columns)
    assert PACKED not in write(rows, embedded_url, name, **options)
    assert len(messages(embedded.stream(name), times=False)) == 3


def refusal(rows: DataFrame, url: str, stream: str) -> str:
    with pytest.raises(PySparkException) as caught:
        write(rows, url, stream)
    return str(translated(caught.value))


@pytest.mark.parametrize("query", REFUSED)
def test_a_row_that_the_log_does_not_take_has_the_same_error(
    spark: SparkSession, embedded_url: str, embedded: Headwater, name: str, query: str
) -> None:
    rows = spark.sql(f"{query} FROM range(0, 4000, 1, 2)")
    told = refusal(rows, embedded_url, name)
    with without_our_rule(spark):
        assert told == refusal(rows, embedded_url, name)
    assert not embedded.stream(name).info().exists
    left = embedded.store.command("KEYS", f"hw:s:{{{name}*:staged:*")
    assert not any(left), "what the tasks staged is dropped"


@pytest.mark.fault
def test_a_query_that_sends_nodes_may_die_at_any_step(
    spark: SparkSession,
    embedded_url: str,
    make_embedded_stream: Callable[[int], Stream],
    embedded: Headwater,
    tmp_path: Path,
) -> None:
    source = make_embedded_stream(1)
    copied = embedded.stream(f"{source.name}-copied")
    # A session of its own, in which the format itself is the one that dies.
    fresh = spark.newSession()
    register(fresh)

    def run(step: str) -> None:
        fresh.dataSource.register(sink_that_dies("nodes", Death(step, str(tmp_path / step))))
        rows = following(fresh, embedded_url, source.name).select("tag", "value")
        to = {"url": embedded_url, "stream": copied.name}
        finish(rows, "headwater", tmp_path / "c", **to)

    for step in STEPS:
        source.write_many([(f"t{n % 7}", f"{step} {n}".encode()) for n in range(1500)])
        if step == "writing":
            run(step)
        else:
            with pytest.raises(PySparkException):
                run(step)
            run("never")
        assert (tmp_path / step).exists(), f"{step} was not reached"
        assert PACKED in last_plan(fresh)
    assert messages(copied, times=False) == messages(source, times=False)
