"""What is written to a stream or topic is there once, whole and in order, or not at all."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pytest
import sqlalchemy as sa
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, DataFrameWriter, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.types import StringType, StructField, StructType

import headwater
from headwater import CheckpointWentBack, Headwater, InvalidInput, Stream, Topic
from headwater.log.topics import partition_of
from headwater.spark.engine import writes
from headwater.spark.engine.columns import arrow_type, to_batch
from headwater.spark.engine.failures import translated
from headwater.spark.engine.formats import WriteFormat
from headwater.spark.log import staging
from headwater.spark.log.source import HeadwaterSource
from headwater.spark.log.target import StreamOrTopic
from headwater.spark.queues import QueueSource
from headwater.spark.sql_sink.source import SqlSink
from tests.support.spark.queries import finish, following
from tests.support.spark.queues import intakes, popped
from tests.support.spark.sql_sinks import RIDES, Table
from tests.support.stores import Stores


def numbers(spark: SparkSession, count: int, tasks: int = 3, first: int = 0) -> DataFrame:
    """Rows with the values first, first + 1, ... in order over the tasks."""
    rows = spark.range(first, first + count, 1, tasks)
    tag = f.concat(f.lit("tag-"), (f.col("id") % 50).cast("string"))
    return rows.select(tag.alias("tag"), f.col("id").cast("string").alias("value"))


@pytest.fixture
def sink(store_url: str) -> Callable[..., DataFrameWriter]:
    """Begin a batch write to the store: ``sink(rows, stream=name).save()``."""

    def sink(rows: DataFrame, **options: object) -> DataFrameWriter:
        writer = rows.write.format("headwater").mode("append").option("url", store_url)
        for key, value in options.items():
            writer = writer.option(key, str(value))
        return writer

    return sink


def values(stream: Stream) -> list[int]:
    return [int(m.value) for m in stream.read(1, 1_000_000) if m]


def staged(hw: Headwater, name: str) -> list[str]:
    """Name what is staged beside streams whose names begin so."""
    pages = hw.store.command("KEYS", f"hw:s:{{{name}*:staged:*")
    return [key.decode() for page in pages for key in page]


# ── Batch ────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(("count", "tasks"), [(0, 1), (1, 1), (7, 3), (40_500, 3)])
def test_rows_are_in_the_stream_in_the_order_of_the_tasks(
    spark: SparkSession,
    sink: Callable[..., DataFrameWriter],
    hw: Headwater,
    name: str,
    count: int,
    tasks: int,
) -> None:
    sink(numbers(spark, count, tasks), stream=name).save()
    stream = hw.stream(name)
    assert values(stream) == list(range(count))
    assert [m.tag for m in stream.read(1, 60) if m] == [f"tag-{i % 50}" for i in range(count)][:60]
    assert staged(hw, name) == []
    if count > 40_000:
        info = stream.info()
        assert info.sealed == info.last, "they were nodes when they came"
        assert info.nodes <= count // 1000 + tasks


def test_binary_values_and_no_tags_are_taken(
    spark: SparkSession, sink: Callable[..., DataFrameWriter], hw: Headwater, name: str
) -> None:
    rows = spark.sql("SELECT X'00FF' AS value UNION ALL SELECT X'' AS value").coalesce(1)
    sink(rows, stream=name).save()
    found = hw.stream(name).read(1, 10)
    assert sorted((m.tag, m.value) for m in found if m) == [("", b""), ("", b"\x00\xff")]


def test_rows_of_a_topic_go_by_their_tags(
    spark: SparkSession, sink: Callable[..., DataFrameWriter], hw: Headwater, name: str
) -> None:
    sink(numbers(spark, 5000), topic=name, partitions=3).save()
    topic = hw.topic(name, 3)
    found = []
    for place in range(3):
        messages = [m for m in topic.partition(place).read(1, 10_000) if m]
        assert {partition_of(m.tag, 3) for m in messages} == {place}
        order = [int(m.value) for m in messages]
        assert order == sorted(order), "the order within a partition is kept"
        found += order
    assert sorted(found) == list(range(5000))


def test_rows_of_a_topic_may_name_their_partition(
    spark: SparkSession, sink: Callable[..., DataFrameWriter], hw: Headwater, name: str
) -> None:
    topic: Topic = hw.topic(name, 4)
    where = "CASE WHEN id % 3 = 0 THEN NULL ELSE id % 4 END"
    rows = spark.range(0, 300, 1, 1).selectExpr(
        "CAST(id AS string) AS value", "'t' AS tag", f"CAST({where} AS int) AS partition"
    )
    sink(rows, topic=name).save()
    home = partition_of("t", 4)
    for place in range(4):
        wanted = [i for i in range(300) if (home if i % 3 == 0 else i % 4) == place]
        assert values(topic.partition(place)) == wanted


def test_very_large_rows_are_cut_to_what_can_be_sent(
    spark: SparkSession, sink: Callable[..., DataFrameWriter], hw: Headwater, name: str
) -> None:
    rows = spark.range(0, 30, 1, 1).selectExpr("repeat(CAST(id % 10 AS string), 5000000) AS value")
    sink(rows, stream=name).save()
    stream = hw.stream(name)
    assert stream.info().last == 30
    for place in range(1, 31):
        (message,) = stream.read(place, 1)
        assert message is not None
        assert message.value[:1] == b"%d" % ((place - 1) % 10)
        assert len(message.value) == 5_000_000


def test_a_batch_with_producer_and_sequence_may_be_repeated(
    spark: SparkSession, sink: Callable[..., DataFrameWriter], hw: Headwater, name: str
) -> None:
    for _ in range(2):
        sink(numbers(spark, 3000), stream=name, producer="nightly", sequence=7).save()
    sink(numbers(spark, 10, first=3000), stream=name, producer="nightly", sequence=8).save()
    assert values(hw.stream(name)) == list(range(3010))
    assert staged(hw, name) == []


def test_it_is_recognised_in_other_tasks_and_in_another_kind_of_session(
    spark: SparkSession, embedded_url: str, name: str
) -> None:
    """The JVM packs rows, unless a setting leaves them to Python: both make the same checksums."""
    rows = numbers(spark, 2500).withColumn("time", f.timestamp_millis(f.col("value").cast("long")))
    rows = rows.withColumn("tag", f.concat("tag", f.lit("é")))

    def write(rows: DataFrame) -> None:
        options = {"url": embedded_url, "stream": name, "producer": "nightly", "sequence": "7"}
        rows.write.format("headwater").mode("append").options(**options).save()

    write(rows)
    write(rows.repartition(2))
    codec = "spark.sql.execution.arrow.compression.codec"
    spark.conf.set(codec, "lz4")
    try:
        write(rows)
        assert "give new content a new sequence" in refusal(lambda: write(rows.limit(2499)))
    finally:
        spark.conf.unset(codec)
    assert "give new content a new sequence" in refusal(lambda: write(rows.limit(2499)))
    with headwater.connect(embedded_url) as hw:
        assert values(hw.stream(name)) == list(range(2500))
        assert staged(hw, name) == []


def test_without_them_each_write_is_one_of_its_own(
    spark: SparkSession, sink: Callable[..., DataFrameWriter], hw: Headwater, name: str
) -> None:
    for _ in range(2):
        sink(numbers(spark, 10, 1), stream=name).save()
    assert values(hw.stream(name)) == [*range(10), *range(10)]


def test_a_task_that_fails_leaves_nothing(
    spark: SparkSession, sink: Callable[..., DataFrameWriter], hw: Headwater, name: str
) -> None:
    rows = numbers(spark, 30_000).withColumn(
        "value", f.expr("IF(value = '29999', raise_error('no more'), value)")
    )
    with pytest.raises(PySparkException, match="no more"):
        sink(rows, stream=name).save()
    assert not hw.stream(name).info().exists


# ── What is refused, in one line, before anything runs ───────────────────────────────────────


def refusal(attempt: Callable[[], Any]) -> str:
    with pytest.raises(PySparkException) as caught:
        attempt()
    return str(translated(caught.value))


def test_a_refusal_is_one_line_on_the_driver(
    spark: SparkSession, embedded_url: str, name: str
) -> None:
    twice = spark.sql("SELECT 'x' AS value, 'y' AS value").write.format("headwater")
    twice = twice.mode("append").options(url=embedded_url, stream=name)
    assert refusal(twice.save) == "column 'value' is there twice; name each once"


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        ({"value": pa.array([None], pa.string())}, "a value that is null"),
        ({"value": ["x"], "tag": pa.array([None], pa.string())}, "a tag that is null"),
        ({"value": ["x" * 17_000_000]}, "a value may have 16777216 bytes, not 17000000"),
        ({"value": ["x"], "tag": ["t" * 5000]}, "a tag may have 4096 bytes, not 5000"),
        ({"value": ["x"] * 2, "partition": [0, 7]}, "a row has partition 7, and the topic has 3"),
    ],
)
def test_a_row_that_the_log_does_not_take_is_refused_with_a_cure(
    stores: Stores, embedded_url: str, name: str, columns: dict[str, Any], words: str
) -> None:
    sink = staging.LogSink(StreamOrTopic(embedded_url, name, True), 3)
    good = pa.record_batch({"value": ["good"] * 3000})
    with pytest.raises(InvalidInput) as caught:
        staging.stage_rows(sink, [good, pa.record_batch(columns)], "a")
    assert words in str(caught.value)
    with headwater.connect(stores.url("embedded")) as hw:
        assert staged(hw, name) == []


def test_such_a_row_fails_the_write(
    spark: SparkSession, embedded_url: str, hw: Headwater, name: str
) -> None:
    rows = spark.sql("SELECT CAST(NULL AS string) AS value").write.format("headwater")
    rows = rows.mode("append").options(url=embedded_url, stream=name)
    assert "a value that is null" in refusal(rows.save)
    assert not hw.stream(name).info().exists


# ── Streaming ────────────────────────────────────────────────────────────────────────────────


class Copy:
    """A streaming query from one stream to another that can be stopped and started again."""

    def __init__(self, spark: SparkSession, url: str, place: Path, source: str) -> None:
        self._spark, self._url, self._place, self._source = spark, url, place, source

    def run(self, most: int = 1000, **target: Any) -> None:
        """Bring over all that is there now."""
        limits = {"columns": "tag,value", "maxOffsetsPerTrigger": most}
        rows = following(self._spark, self._url, self._source, **limits)
        finish(rows, "headwater", self._place, url=self._url, **target)


@pytest.fixture
def copy(spark: SparkSession, store_url: str, tmp_path: Path, name: str) -> Copy:
    return Copy(spark, store_url, tmp_path / "checkpoint", name)


def test_a_query_writes_each_row_once_and_in_order(copy: Copy, hw: Headwater, name: str) -> None:
    source, out = hw.stream(name), hw.stream(f"{name}-out")
    source.write_many([("t", b"%d" % i) for i in range(2500)])
    copy.run(stream=out.name)
    assert values(out) == list(range(2500))
    copy.run(stream=out.name)
    source.write_many([("t", b"%d" % i) for i in range(2500, 2600)])
    copy.run(stream=out.name)
    assert values(out) == list(range(2600))
    assert staged(hw, name) == []


def test_an_epoch_that_spark_repeats_is_published_once(
    copy: Copy, hw: Headwater, name: str, tmp_path: Path
) -> None:
    source, topic = hw.stream(name), hw.topic(f"{name}-out", 3)
    source.write_many([(f"t{i % 20}", b"%d" % i) for i in range(3000)])
    copy.run(most=1000, topic=topic.name)
    commits = tmp_path / "checkpoint" / "commits"
    for left in commits.glob("*2*"):
        left.unlink()
    copy.run(most=1000, topic=topic.name)
    found = sorted(n for place in range(3) for n in values(topic.partition(place)))
    assert found == list(range(3000))
    assert staged(hw, name) == []


@pytest.mark.parametrize("store_url", ["embedded"], indirect=True)
def test_a_checkpoint_that_went_back_is_refused_unless_the_same_rows_come(
    copy: Copy, hw: Headwater, name: str, tmp_path: Path
) -> None:
    source, out = hw.stream(name), hw.stream(f"{name}-out")
    checkpoint, backup = tmp_path / "checkpoint", tmp_path / "backup"
    source.write_many([("t", b"%d" % i) for i in range(100)])
    copy.run(stream=out.name)
    shutil.copytree(checkpoint, backup)
    source.write_many([("t", b"%d" % i) for i in range(100, 150)])
    copy.run(stream=out.name)

    def restore() -> None:
        shutil.rmtree(checkpoint)
        shutil.copytree(backup, checkpoint)

    restore()
    copy.run(stream=out.name)
    assert values(out) == list(range(150)), "it planned the same rows under that epoch again"
    restore()
    source.write_many([("t", b"%d" % i) for i in range(150, 200)])
    assert "start the query with a new checkpointLocation" in refusal(
        lambda: copy.run(stream=out.name)
    )
    assert values(out) == list(range(150))
    assert staged(hw, name) == []


# An epoch that was written is skipped when its rows come again, and refused when others come.
# So a checkpoint that went back, or one that two queries use, never makes a sink drop new rows.


CURE = "start the query with a new checkpointLocation, and with startingOffsets"


class Target(NamedTuple):
    """What a streaming query writes to, how rows come, and what has come there."""

    source: WriteFormat
    schema: StructType
    row: Callable[[int], tuple[Any, ...]]
    # Returns what has come, sorted.
    rows: Callable[[], list[int]]


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    (tmp_path / "checkpoint" / "offsets").mkdir(parents=True)
    return tmp_path / "checkpoint"


@pytest.fixture(params=["stream", "topic", "queue", "sqlite", "postgres"])
def target(
    request: pytest.FixtureRequest,
    embedded: Headwater,
    embedded_url: str,
    name: str,
    checkpoint: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Target]:
    monkeypatch.setattr(writes, "query_of_task", lambda: "spark-query")
    kind, given = request.param, {"checkpointLocation": str(checkpoint)}
    if kind in ("stream", "topic", "queue"):
        names = ["value"] if kind == "queue" else ["value", "tag"]
        schema = StructType([StructField(one, StringType()) for one in names])
        given |= {"url": embedded_url, kind: name}
        form = QueueSource if kind == "queue" else HeadwaterSource
        popped_before: list[int] = []

        def come() -> list[int]:
            if kind == "queue":
                popped_before.extend(popped(embedded.queue(name)))
                return sorted(popped_before)
            streams = [name] if kind == "stream" else [f"{name}/{place}" for place in range(3)]
            messages = [m for one in streams for m in embedded.stream(one).read(1, 10_000)]
            return sorted(int(m.value) for m in messages if m)

        if kind == "topic":
            embedded.topic(name, 3)
        yield Target(form(given), schema, lambda n: (str(n), f"t{n % 7}")[: len(names)], come)
        for intake in intakes(embedded, name):
            embedded.stream(intake).delete()
        return
    server = request.getfixturevalue("postgres") if kind == "postgres" else None
    url = server.database() if server else f"sqlite:///{checkpoint.parent / 'app.db'}"
    table = Table(url, sa.create_engine(url, poolclass=sa.NullPool))
    table.make("CREATE TABLE totals (ride varchar(20) PRIMARY KEY, distance bigint)")
    source = SqlSink(given | {"url": url, "table": "totals", "mode": "add"})
    numbers = "SELECT distance FROM totals ORDER BY 1"
    yield Target(
        source, RIDES, lambda n: (f"r{n}", n), lambda: [int(n) for (n,) in table.rows(numbers)]
    )
    if server:
        server.drop(url)


def bring(target: Target, epoch: int, *tasks: Sequence[int]) -> None:
    """Do what Spark does with an epoch: its tasks, the commit, and an abort if that fails."""
    writer: Any = target.source.streamWriter(target.schema, overwrite=False)
    columns = [(field.name, arrow_type(field.dataType)) for field in target.schema.fields]
    messages = []
    for numbers in tasks:
        rows = zip(*map(target.row, numbers), strict=True)
        messages.append(writer.write(iter([to_batch(rows, pa.schema(columns))])))
    try:
        writer.commit([*messages], epoch)
    except CheckpointWentBack:
        writer.abort([*messages], epoch)
        raise


def test_the_same_rows_are_skipped_in_whatever_tasks_and_order(target: Target) -> None:
    bring(target, 0, range(100), range(100, 150))
    bring(target, 1, range(200, 260))
    bring(target, 0, range(149, 80, -1), range(60, 81), range(60))
    assert target.rows() == [*range(150), *range(200, 260)]
    bring(target, 2, range(300, 310))
    assert target.rows() == [*range(150), *range(200, 260), *range(300, 310)]


@pytest.mark.parametrize(
    "others",
    [range(100, 150), range(99), range(101), [*range(99), 98]],
    ids=["new", "fewer", "more", "one-twice"],
)
def test_other_rows_under_a_written_epoch_are_refused(
    target: Target, others: Sequence[int]
) -> None:
    bring(target, 0, range(100))
    bring(target, 1, range(200, 260))
    with pytest.raises(CheckpointWentBack, match=CURE) as caught:
        bring(target, 0, others)
    assert (caught.value.query, caught.value.epoch) == ("query", 0)
    assert target.rows() == [*range(100), *range(200, 260)]


def test_an_epoch_that_is_no_longer_remembered_is_refused(target: Target) -> None:
    bring(target, 72, range(7))
    bring(target, 200, range(100, 107))
    with pytest.raises(CheckpointWentBack, match=CURE):
        bring(target, 72, range(7))
    # Nobody knows what it wrote, or whether it did.
    with pytest.raises(CheckpointWentBack, match=CURE):
        bring(target, 150, range(7))
    assert target.rows() == [*range(7), *range(100, 107)]


def test_what_spark_planned_once_is_one_epoch_whatever_rows_a_retry_has(
    target: Target, checkpoint: Path
) -> None:
    plan = checkpoint / "offsets" / "0"
    plan.write_text('v1\n{"batchTimestampMs":1}\n{"next":{"0":100}}')
    bring(target, 0, range(100))
    bring(target, 0, range(500, 600))
    assert target.rows() == [*range(100)]
    plan.write_text('v1\n{"batchTimestampMs":2}\n{"next":{"0":100}}')
    bring(target, 0, range(100))
    with pytest.raises(CheckpointWentBack, match=CURE):
        bring(target, 0, range(500, 600))
    assert target.rows() == [*range(100)]
