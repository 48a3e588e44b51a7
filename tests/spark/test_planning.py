"""What a query reads is settled exactly: positions, shares, losses, and who waits for whom."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable

import pytest

import headwater
from headwater import DataLost, InvalidInput, OffsetOutOfRange, Stream, StreamReplaced, Topic
from headwater.spark.log.range_reader import OffsetRange
from headwater.spark.log.source import HeadwaterSource
from tests.support.entries import entries
from tests.support.spark.engine import Engine


@pytest.fixture
def engine(store_url: str, name: str) -> Callable[..., Engine]:
    def engine(**options: object) -> Engine:
        what = {} if "topic" in options else {"stream": name}
        return Engine(url=store_url, **what, **options)

    return engine


def ranges(url: str, **options: object) -> list[tuple[int, int, int]]:
    """Plan a batch read; returns partition, first and last offset of each task."""
    source = HeadwaterSource({"url": url} | {key: str(value) for key, value in options.items()})
    parts = source.reader(source.schema()).partitions()
    return [(p.partition, p.start, p.stop - 1) for p in parts if isinstance(p, OffsetRange)]


def test_a_task_per_partition_unless_more_are_asked_for(
    store_url: str, make_topic: Callable[..., Topic]
) -> None:
    topic = make_topic(3000, partitions=2)
    lasts = [info.last for info in topic.info()]
    assert ranges(store_url, topic=topic.name) == [(0, 1, lasts[0]), (1, 1, lasts[1])]
    many = ranges(store_url, topic=topic.name, minPartitions=50)
    assert len(many) >= 50
    for partition, last in enumerate(lasts):
        mine = [(low, high) for place, low, high in many if place == partition]
        assert [low for low, _ in mine] == [1, *(high + 1 for _, high in mine[:-1])]
        assert mine[-1][1] == last
    assert len(ranges(store_url, topic=topic.name, minPartitions=100_000)) == 3000


def test_positions_are_named_for_each_partition(
    store_url: str, make_topic: Callable[..., Topic]
) -> None:
    topic = make_topic(900, partitions=3)
    second = topic.info()[1].last
    found = ranges(
        store_url,
        topic=topic.name,
        startingOffsets=json.dumps({"0": 10, "1": "latest", "2": "earliest"}),
        endingOffsets=json.dumps({"0": 12, "1": "latest", "2": 2}),
    )
    assert second
    assert found == [(0, 10, 11), (2, 1, 1)]


def test_positions_may_be_written_as_for_kafka(
    store_url: str, make_topic: Callable[..., Topic]
) -> None:
    topic = make_topic(900, partitions=3)
    lasts = [info.last for info in topic.info()]
    found = ranges(
        store_url,
        topic=topic.name,
        startingOffsets=json.dumps({topic.name: {"0": -2, "1": -1, "2": 5}}),
        endingOffsets=json.dumps({"2": 7}),
    )
    assert found == [(0, 1, lasts[0]), (2, 5, 6)]
    # A partition that is not named is read as a whole.
    found = ranges(store_url, topic=topic.name, startingOffsets='{"1": 9}')
    assert found == [(0, 1, lasts[0]), (1, 9, lasts[1]), (2, 1, lasts[2])]
    future, past = 4_000_000_000_000, 1
    found = ranges(
        store_url,
        topic=topic.name,
        startingOffsetsByTimestamp=json.dumps({topic.name: {"0": past, "1": future}}),
        endingOffsetsByTimestamp=json.dumps({"2": "1970-01-01T00:00:01Z"}),
    )
    assert found == [(0, 1, lasts[0])]


@pytest.mark.parametrize(
    ("positions", "begins"),
    [({"topic": {"0": -2, "1": -1, "2": 5}}, (1, "end", 5)), ({"1": 9}, (1, 9, 1))],
    ids=["as for Kafka", "some partitions"],
)
def test_a_streaming_query_begins_at_positions_as_for_kafka(
    embedded_url: str, name: str, positions: dict[str, object], begins: tuple[object, ...]
) -> None:
    with headwater.connect(embedded_url) as hw:
        topic = hw.topic(name, 3)
        topic.write_many(entries(900, tags=50))
        end = topic.info()[1].last + 1
    text = json.dumps(positions).replace("topic", name)
    source = HeadwaterSource({"url": embedded_url, "topic": name, "startingOffsets": text})
    found = source.streamReader(source.schema()).initialOffset()
    wanted = [end if one == "end" else one for one in begins]
    assert [found[str(place)]["next"] for place in range(3)] == wanted


def test_a_micro_batch_waits_for_enough_but_not_for_ever(
    engine: Callable[..., Engine], make_stream: Callable[..., Stream]
) -> None:
    stream = make_stream(10)
    query = engine(minOffsetsPerTrigger=15, maxTriggerDelay="1h")
    assert not query.plan()
    stream.write_many(entries(5, 11))
    assert query.plan()
    assert query.finish() == 15
    stream.write_many(entries(1, 16))
    assert not query.plan()
    query.restart(maxTriggerDelay="0ms")
    assert query.run() == [1]
    # What is there now is read as a whole when the query ends with it.
    stream.write_many(entries(3, 17))
    query.restart(maxTriggerDelay="1h")
    query.reader.prepareForTriggerAvailableNow()
    assert query.run() == [3]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"minOffsetsPerTrigger": 5, "maxTriggerDelay": "soon"}, "with one of the units ms, s"),
        ({"maxTriggerDelay": "5m"}, "goes with 'minOffsetsPerTrigger'"),
        ({"minOffsetsPerTrigger": 5, "maxOffsetsPerTrigger": 4}, "more than"),
    ],
)
def test_limits_that_cannot_be_meant_are_refused(
    engine: Callable[..., Engine], options: dict[str, object], words: str
) -> None:
    with pytest.raises(InvalidInput, match=words):
        engine(**options)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"startingOffsets": '{"other": {"0": 1}}'}, "names 'other'; only 'options' is read"),
        ({"startingOffsetsByTimestamp": "1"}, "must be a JSON object of partitions"),
        ({"startingOffsetsByTimestamp": "{}", "startingOffsets": "1"}, "not both"),
        ({"startingOffsets": '{"0": 1, "1": 1, "7": 1}'}, "partition 7, but there are only 2"),
        ({"startingOffsets": '{"zero": 1}'}, "where a partition's number belongs"),
        ({"startingOffsets": "{1: 2}"}, "is not JSON"),
        ({"startingOffsets": "0"}, "offsets count from 1"),
        ({"startingOffsets": "-1"}, "must be earliest, latest, an offset, a time"),
        ({"startingOffsets": "soon"}, "must be earliest, latest, an offset, a time"),
        ({"startingOffsets": "2026-01-31T12:00:00"}, "has no time zone"),
        ({"startingTimestamp": "latest"}, "milliseconds since 1970"),
        ({"startingTimestamp": "1", "startingOffsets": "1"}, "not both"),
        ({"startingOffsets": "9", "endingOffsets": "5"}, "begin before the end"),
        ({"minPartitions": "0"}, "from 1 to"),
        ({"minPartitions": "two"}, "whole number"),
        ({"failOnDataLoss": "maybe"}, "true or false"),
        ({"columns": "offset,size"}, "no column 'size'"),
        ({"columns": "tag,tag"}, "named twice"),
        ({"groupId": "a b"}, "must not contain"),
        ({"maxOffsetsPerTrigger": "5"}, "means nothing in a batch read"),
        ({"startingOfsets": "5"}, "did you mean 'startingOffsets'"),
        ({"stream": "s"}, "both given"),
        ({"topic": ""}, "nothing to read is named"),
        ({"topic": "a{b"}, "must not contain"),
        ({"url": "nowhere"}, "not a store URL"),
    ],
)
def test_options_that_cannot_be_meant_are_refused(
    embedded_url: str, options: dict[str, str], words: str
) -> None:
    with headwater.connect(embedded_url) as hw:
        hw.topic("options", 2).write_many(entries(50, tags=20))
    with pytest.raises(InvalidInput, match=words):
        ranges(**{"url": embedded_url, "topic": "options", **options})


def test_a_position_behind_the_end_is_refused(
    store_url: str, engine: Callable[..., Engine], make_stream: Callable[..., Stream]
) -> None:
    stream = make_stream(20)
    for option in ("startingOffsets", "endingOffsets"):
        with pytest.raises(OffsetOutOfRange, match="is 22, but the stream ends at 20"):
            ranges(store_url, stream=stream.name, **{option: 22})
    with pytest.raises(OffsetOutOfRange):
        engine(startingOffsets=22).plan()
    with pytest.raises(InvalidInput, match="means nothing in a streaming query"):
        engine(endingOffsets=22)


def test_a_batch_read_of_what_was_evicted_tells_the_gap(
    store_url: str, make_stream: Callable[..., Stream], caplog: pytest.LogCaptureFixture
) -> None:
    stream = make_stream(1000)
    stream.evict(400)
    with pytest.raises(DataLost, match="offsets 300 to 400") as caught:
        ranges(store_url, stream=stream.name, startingOffsets=300)
    assert (caught.value.stream, caught.value.first, caught.value.last) == (stream.name, 300, 400)
    with caplog.at_level(logging.WARNING, "headwater.spark"):
        found = ranges(store_url, stream=stream.name, startingOffsets=300, failOnDataLoss=False)
    assert found == [(0, 401, 1000)]
    assert "skipped offsets 300 to 400" in caplog.text
    with pytest.raises(DataLost, match="offsets 300 to 310"):
        ranges(store_url, stream=stream.name, startingOffsets=300, endingOffsets=311)


def test_what_is_evicted_after_planning_is_told_by_the_task(
    engine: Callable[..., Engine], make_stream: Callable[..., Stream]
) -> None:
    stream = make_stream(2000)
    query = engine(minPartitions=2)
    assert query.plan()
    stream.evict(600)
    with pytest.raises(DataLost, match="offsets 1 to 600"):
        query.read()
    query.restart(failOnDataLoss=False)
    assert query.finish() == 1400
    assert [row[1] for row in query.rows] == list(range(601, 2001))


def test_a_limit_is_shared_in_proportion_to_what_waits(
    engine: Callable[..., Engine], make_topic: Callable[..., Topic], name: str
) -> None:
    topic = make_topic(2000, partitions=3)
    waiting = [info.last for info in topic.info()]
    query = engine(topic=name, maxOffsetsPerTrigger=100)
    assert query.plan()
    assert query.planned is not None
    ends = [place["next"] - 1 for place in json.loads(query.planned[1]).values()]
    assert sum(ends) == 100
    assert all(abs(end - 100 * size / 2000) < 1 for end, size in zip(ends, waiting, strict=True))
    query.restart(maxOffsetsPerTrigger=999)
    assert query.run() == [100, 999, 901]


def test_available_now_ends_at_what_was_there(
    engine: Callable[..., Engine], make_stream: Callable[..., Stream]
) -> None:
    stream = make_stream(100)
    query = engine(maxOffsetsPerTrigger=30)
    query.reader.prepareForTriggerAvailableNow()
    assert query.plan()
    stream.write_many(entries(100, 101))
    assert query.run() == [30, 30, 30, 10]
    query.restart(maxOffsetsPerTrigger=1000)
    assert query.run() == [100]


def test_a_reader_is_registered_from_the_start_until_the_end(
    engine: Callable[..., Engine], make_stream: Callable[..., Stream]
) -> None:
    stream = make_stream(1000)
    query = engine(groupId="totals", startingOffsets=201, maxOffsetsPerTrigger=300)
    query.reader.initialOffset()
    assert stream.info().readers == {"totals": 201}
    assert query.plan()
    assert stream.retain(max_count=0).held_by == "totals"
    assert query.finish() == 300
    assert stream.info().readers == {"totals": 501}
    # Somebody forgot it; the query goes on, and is known again.
    stream.forget_reader("totals")
    query.restart()
    assert query.plan()
    assert stream.info().readers == {"totals": 501}
    query.run()
    assert stream.info().readers == {"totals": 1001}


def test_a_batch_read_with_a_group_id_holds_what_it_reads(
    store_url: str, make_stream: Callable[..., Stream]
) -> None:
    stream = make_stream(100)
    ranges(store_url, stream=stream.name, groupId="nightly", startingOffsets=51)
    assert stream.info().readers == {"nightly": 51}
    assert stream.retain(max_count=0).held_by == "nightly"
    assert stream.info().first == 51


def test_a_stream_made_anew_is_noticed_by_plan_and_task(
    engine: Callable[..., Engine], make_stream: Callable[..., Stream]
) -> None:
    stream = make_stream(50)
    query = engine()
    assert query.plan()
    stream.delete()
    stream.write_many(entries(80))
    with pytest.raises(StreamReplaced):
        query.read()
    query.restart()
    with pytest.raises(StreamReplaced):
        query.read()
    fresh = engine()
    fresh.run()
    stream.delete()
    with pytest.raises(StreamReplaced):
        fresh.plan()
