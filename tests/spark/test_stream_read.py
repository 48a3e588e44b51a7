"""A streaming query reads every message once, across restarts, and says what it cannot read."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

import headwater
from headwater import InvalidInput, Stream, Topic
from headwater.spark.engine.failures import translating_errors
from headwater.spark.engine.processes import SOURCE_DAEMON
from headwater.spark.queries.status import QueryStatus, ReadPosition, query_statuses
from tests.spark.conftest import STORES
from tests.support.entries import entries
from tests.support.processes import children
from tests.support.servers import until
from tests.support.spark.harvest import Harvest

# What a reader promises on every kind of store is in test_planning.py; here Spark calls it.


@pytest.fixture
def harvest(spark: SparkSession, embedded_url: str, name: str, tmp_path: Path) -> Harvest:
    return Harvest(spark, tmp_path, embedded_url, stream=name)


def test_available_now_reads_what_is_there_and_a_restart_goes_on(
    harvest: Harvest, make_embedded_stream: Callable[[int], Stream]
) -> None:
    stream = make_embedded_stream(1500)
    query = harvest.run(maxOffsetsPerTrigger=600)
    assert [p["numInputRows"] for p in query.recentProgress] == [600, 600, 300]
    assert harvest.offsets() == list(range(1, 1501))
    stream.write_many(entries(250, 1501))
    harvest.run(minPartitions=3)
    rows = harvest.rows()
    assert [(row.tag, bytes(row.value)) for row in rows] == entries(1750)
    assert [row.offset for row in rows] == list(range(1, 1751))


def test_a_query_is_noted_in_its_store_with_what_waits_for_it(
    spark: SparkSession,
    embedded_url: str,
    make_embedded_stream: Callable[[int], Stream],
    name: str,
    tmp_path: Path,
) -> None:
    stream = make_embedded_stream(100)

    def status() -> QueryStatus:
        with headwater.connect(embedded_url) as hw:
            found = hw.store.run(query_statuses())
        (one,) = [one for one in found if one.name == f"copy {name}"]
        return one

    query = (
        spark.readStream.format("headwater")
        .options(url=embedded_url, stream=name, maxOffsetsPerTrigger=60)
        .load()
        .writeStream.format("headwater")
        .options(url=embedded_url, stream=f"{name}-copy", checkpointLocation=str(tmp_path))
        .queryName(f"copy {name}")
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    until(lambda: status().state == "ended")
    found = status()
    assert (found.query, found.epoch, found.writes) == (str(query.id), 1, (f"{name}-copy",))
    assert (found.checkpoint, found.lag) == (str(tmp_path), 0)
    assert found.reads == (ReadPosition(name, 101, 0, 0),)
    ends = [progress["sources"][0]["latestOffset"] for progress in query.recentProgress]
    assert [(json.loads(end) if isinstance(end, str) else end)["behind"] for end in ends] == [40, 0]
    sources = [progress["sources"][0] for progress in query.recentProgress]
    assert {one["description"] for one in sources} == {f"headwater stream '{name}'"}
    metrics = [one["metrics"] for one in sources]
    assert all(int(one.pop("bytesRead")) > 100 for one in metrics)
    assert metrics == [
        {"offsetsBehind": behind, "offsetsBehind.0": behind} for behind in ("40", "0")
    ]
    stream.write_many(entries(5, 101))
    assert status().lag == 0, "nothing waits for a query that has ended"


def test_the_checkpoint_of_a_query_is_noted_wherever_it_writes(
    spark: SparkSession,
    embedded_url: str,
    make_embedded_stream: Callable[[int], Stream],
    name: str,
    tmp_path: Path,
) -> None:
    make_embedded_stream(3)
    place = tmp_path / "a place"
    query = (
        spark.readStream.format("headwater")
        .options(url=embedded_url, stream=name)
        .load()
        .writeStream.format("noop")
        .option("checkpointLocation", str(place))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    with headwater.connect(embedded_url) as hw:
        found = {one.query: one.checkpoint for one in hw.store.run(query_statuses())}
    assert found[str(query.id)] == str(place)


@pytest.mark.parametrize("store_url", [STORES[-1]], indirect=True)
def test_a_topic_is_read_over_all_partitions(
    spark: SparkSession,
    store_url: str,
    tmp_path: Path,
    make_topic: Callable[..., Topic],
    name: str,
) -> None:
    harvest = Harvest(spark, tmp_path, store_url, topic=name)
    # Neither the topic nor a message is there yet.
    harvest.run()
    assert harvest.rows() == []
    topic = make_topic(1000, partitions=3)
    query = harvest.run(maxOffsetsPerTrigger=400)
    assert [p["numInputRows"] for p in query.recentProgress] == [400, 400, 200]
    topic.write_many(entries(300, 1001, tags=50))
    harvest.run()
    rows = harvest.rows()
    assert sorted((row.tag, bytes(row.value)) for row in rows) == sorted(entries(1300, tags=50))
    assert {row.stream for row in rows} == {f"{name}/{place}" for place in range(3)}
    assert [info.last for info in topic.info()] == [
        max(row.offset for row in rows if row.partition == place) for place in range(3)
    ]


def test_a_query_waits_for_a_stream_that_is_not_there_yet(
    spark: SparkSession, harvest: Harvest, make_embedded_stream: Callable[[int], Stream]
) -> None:
    query = harvest.start()
    try:
        # Its process is forked from one that has imported all of it.
        until(lambda: SOURCE_DAEMON in started(spark), 200)
        stream = make_embedded_stream(10)
        until(lambda: harvest.offsets() == list(range(1, 11)), 200)
        stream.write("late", b"")
        until(lambda: harvest.offsets() == list(range(1, 12)))
        assert query.exception() is None
    finally:
        query.stop()


def started(spark: SparkSession) -> str:
    """Return what the JVM has started, with its arguments."""
    jvm = spark._jvm
    assert jvm is not None
    parent = jvm.java.lang.ProcessHandle.current().pid()
    return "\n".join(children(parent).values())


def test_evicted_messages_are_a_loss_that_is_told_exactly(
    harvest: Harvest, make_embedded_stream: Callable[[int], Stream]
) -> None:
    stream = make_embedded_stream(100)
    harvest.run()
    stream.write_many(entries(200, 101))
    stream.evict(150)
    with pytest.raises(StreamingQueryException, match=r"offsets 101 to 150 of stream .* evicted"):
        harvest.run()
    harvest.run(failOnDataLoss=False)
    assert harvest.offsets() == [*range(1, 101), *range(151, 301)]


def test_a_refused_option_is_told_in_one_line(
    spark: SparkSession, embedded_url: str, name: str, tmp_path: Path
) -> None:
    frame = spark.readStream.format("headwater").options(url=embedded_url, stream=name)
    writer = frame.option("endingOffsets", "5").load().writeStream.format("noop")
    query = writer.option("checkpointLocation", str(tmp_path)).start()
    words = "'endingOffsets' means nothing in a streaming query"
    with pytest.raises(InvalidInput, match=words), translating_errors():
        query.awaitTermination()
