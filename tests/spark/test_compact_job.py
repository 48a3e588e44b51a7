"""The compact job leaves what Stream.compact leaves, whatever happens meanwhile."""

from __future__ import annotations

import random
from collections.abc import Callable

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import headwater
from headwater import Stream, UnknownStream, UnknownTopic
from headwater.errors import InvalidInput
from headwater.spark.jobs import compact as job
from headwater.spark.jobs.compact import compact
from tests.support.entries import entries
from tests.support.servers import until
from tests.support.spark.killing import kill_at_work
from tests.support.spark.plans import plan_of

DAY = 24 * 3600 * 1000


def contents(stream: Stream) -> list[tuple[int, str, bytes, int]]:
    rows = [row for batch in stream.scan() for row in batch.to_pylist()]
    return [(row["offset"], row["tag"], row["value"], row["time"]) for row in rows]


def write_twins(hw: headwater.Headwater, name: str, seed: int) -> tuple[Stream, Stream]:
    """Two streams alike: tags that come back, markers, holes, an evicted beginning."""
    draw = random.Random(seed)
    twins = hw.stream(f"{name}-a"), hw.stream(f"{name}-b")
    at = 1000
    for size in (1, 700, 3, 1500, 40, 1000, 9):
        tags = [f"t{draw.randrange(500)}" for _ in range(size)]
        values = [b"" if draw.random() < 0.3 else b"%d" % draw.randrange(99) for _ in tags]
        at += DAY // 5
        table = pa.table({"tag": tags, "value": values, "time": list(range(at, at + size))})
        for stream in twins:
            stream.append(table)
            if size == 40:
                stream.compact(marker_ms=DAY)
    for stream in twins:
        stream.evict(350)
        stream.register_reader("elsewhere", 2900)
    return twins


@pytest.mark.parametrize("marker_ms", [DAY // 2, 100 * DAY])
def test_the_same_messages_stay_as_with_stream_compact(
    spark: SparkSession, embedded_url: str, name: str, marker_ms: int
) -> None:
    with headwater.connect(embedded_url) as hw:
        check_twins(spark, embedded_url, marker_ms, *write_twins(hw, name, marker_ms))


def check_twins(
    spark: SparkSession, url: str, marker_ms: int, ours: Stream, theirs: Stream
) -> None:
    assert contents(ours) == contents(theirs)
    dry = compact(spark, ours.name, url=url, marker_ms=marker_ms, dry_run=True)
    before = contents(ours)
    removed = theirs.compact(marker_ms=marker_ms)
    assert (dry.dry_run, dry.removed) == (True, removed)
    assert "would remove" in dry.headline()
    assert contents(ours) == before
    done = compact(spark, ours.name, url=url, marker_ms=marker_ms)
    assert (done.removed, done.left) == (removed, 0)
    assert (done.markers > 0) == (marker_ms < DAY)
    assert contents(ours) == contents(theirs)
    assert ours.info().length == theirs.info().length
    assert compact(spark, ours.name, url=url, marker_ms=marker_ms).removed == 0


def test_every_partition_of_a_topic_is_compacted(
    spark: SparkSession,
    hw: headwater.Headwater,
    make_topic: Callable[..., headwater.Topic],
    store_url: str,
) -> None:
    topic = make_topic(3000, partitions=4, tags=90)
    done = compact(spark, topic=topic.name, url=store_url)
    assert done.removed == 3000 - 90
    left = [row for part in range(4) for row in contents(hw.stream(f"{topic.name}/{part}"))]
    assert len({tag for _, tag, _, _ in left}) == len(left) == 90


def test_a_part_of_which_nothing_stays_is_emptied(
    spark: SparkSession, embedded_url: str, name: str
) -> None:
    with headwater.connect(embedded_url) as hw:
        stream = hw.stream(name)
        for _ in range(2):
            stream.write_many(entries(1000, tags=5))
        done = compact(spark, name, url=embedded_url)
        assert (done.parts, done.removed) == (2, 1995)
        assert [message.offset for message in stream.read(1, 2000) if message] == list(
            range(1996, 2001)
        )


def test_tags_are_compared_by_hashing_and_never_sorted(
    spark: SparkSession, embedded_url: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To sort the tags of a million messages took most of a compaction."""
    plans = []
    found = job._last_of_tags

    def note_plan(*args: object) -> object:
        last = found(*args)  # type: ignore[arg-type]
        plans.append(plan_of(last))
        return last

    monkeypatch.setattr(job, "_last_of_tags", note_plan)
    with headwater.connect(embedded_url) as hw:
        hw.stream(name).write_many(entries(2000, tags=90))
    assert compact(spark, name, url=embedded_url, dry_run=True).removed == 2000 - 90
    (plan,) = plans
    assert "HashAggregate" in plan
    assert "Sort" not in plan


def test_what_others_do_meanwhile_is_not_undone(
    spark: SparkSession, embedded_url: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between finding and rewriting: new messages, an eviction, another compaction."""
    with headwater.connect(embedded_url) as hw:
        stream = hw.stream(name)
        stream.write_many(entries(4000, tags=300))
        found = job._last_of_tags

        def interfere(*args: object) -> object:
            last = found(*args).localCheckpoint()  # type: ignore[arg-type]
            stream.evict(3750)
            stream.write_many([("t1", b"new"), ("other", b"new")])
            stream.compact()
            return last

        monkeypatch.setattr(job, "_last_of_tags", interfere)
        compact(spark, name, url=embedded_url)
        monkeypatch.undo()
        compact(spark, name, url=embedded_url)
        kept = {message.tag: message for message in stream.read(1, 5000) if message}
        assert len(kept) == stream.info().length
        assert kept["t1"].value == b"new"
        newest = dict(entries(4000, tags=300)[3750:])
        assert {tag: kept[tag].value for tag in newest if tag != "t1"} == {
            tag: value for tag, value in newest.items() if tag != "t1"
        }


def test_a_stream_made_anew_is_left_alone(
    spark: SparkSession, embedded_url: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with headwater.connect(embedded_url) as hw:
        stream = hw.stream(name)
        stream.write_many(entries(1500, tags=3))
        found = job._last_of_tags

        def replace_stream(*args: object) -> object:
            last = found(*args).localCheckpoint()  # type: ignore[arg-type]
            stream.delete()
            stream.write_many(entries(1500, tags=1500))
            stream.seal()
            return last

        monkeypatch.setattr(job, "_last_of_tags", replace_stream)
        done = compact(spark, name, url=embedded_url)
        assert (done.removed, done.left) == (0, done.parts)
        assert stream.info().length == 1500


def test_what_is_not_there_is_refused(spark: SparkSession, embedded_url: str, name: str) -> None:
    with pytest.raises(UnknownStream, match=name):
        compact(spark, name, url=embedded_url)
    with pytest.raises(UnknownTopic, match=name):
        compact(spark, topic=name, url=embedded_url)
    with pytest.raises(InvalidInput, match="either"):
        compact(spark, url=embedded_url)


@pytest.mark.long
@pytest.mark.fault
@pytest.mark.timeout(300)
def test_a_killed_command_is_gone_on_with(
    spark: SparkSession, embedded_url: str, name: str
) -> None:
    """The driver and the JVM are killed as soon as the first nodes are rewritten."""
    with headwater.connect(embedded_url) as hw:
        twins = hw.stream(f"{name}-a"), hw.stream(f"{name}-b")
        times = list(range(1000, 1000 + 1000))
        for first in range(0, 60_000, 1000):
            tags = [f"t{(first + i) * 7 % 25_000}" for i in range(1000)]
            values = [b"" if i % 3 else b"v" for i in range(1000)]
            for stream in twins:
                stream.append(pa.table({"tag": tags, "value": values, "time": times}))
        ours, theirs = twins
        words = ("spark", "compact", ours.name, "--markers", "0s")
        kill_at_work(embedded_url, *words, when=lambda: ours.info().length < 60_000)
        theirs.compact(marker_ms=0)
        # What was under way in a task when its driver died may still come to its end.
        until(lambda: not compact(spark, ours.name, url=embedded_url, marker_ms=0).left)
        assert contents(ours) == contents(theirs)
