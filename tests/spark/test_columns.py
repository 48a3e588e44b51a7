"""Scans of ours give Spark columns, and nodes of the log that the JVM opens: the same rows as ever.

Each is compared with what the library's own ``scan`` gives, and with the rows that a session
without our rule takes from the same source.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PythonException
from pyspark.sql import DataFrame, DataFrameReader, SparkSession
from pyspark.sql import functions as F  # noqa: N812  as everybody who uses Spark calls it
from pyspark.sql.datasource import DataSource, DataSourceReader
from pyspark.sql.types import StructType

import headwater
from headwater import Stream, Topic, UnreadableNode
from headwater.log import node
from headwater.log.keys import index_key, stream_key
from headwater.log.reading import UnopenedNode
from headwater.spark import register
from headwater.spark.engine.failures import translating_errors
from headwater.spark.engine.optimizer_rule import install_rule
from headwater.spark.log.columns import ALL, arrow_schema, batch_of_nodes, spark_schema
from tests.support.entries import entries
from tests.support.servers import Server
from tests.support.spark.plans import plan_of, without_our_rule

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


def as_of_an_older_writer(raw: Any, stream: Stream) -> None:
    """Take the checksums out of the index, which do not know nodes that a test has put there."""
    index = index_key(stream_key(stream.name))
    for member, last in raw.zrange(index, 0, -1, withscores=True):
        raw.zrem(index, member)
        raw.zadd(index, {member.rpartition(b":")[0] + b":1": last})


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
        as_of_an_older_writer(raw, stream)
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
        (2, 3, "it has format version 3, this client reads up to 2"),
        (2, 200, "it has format version 200, this client reads up to 2"),
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
