"""A consumer of a topic applies each message once, with a position for each partition."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest
import sqlalchemy as sa

from headwater import Topic, TopicMessage
from headwater.errors import GapError, InvalidInput, PoisonedBatch
from headwater.outbox import Consumer, consumer
from tests.support.consumers import Desk, drain, numbers, running
from tests.support.entries import entries
from tests.support.servers import until
from tests.support.stores import Stores
from tests.support.waking import check_quick
from tests.support.watch import blocked

PARTITIONS = 3


@pytest.fixture(params=["sync", "async"])
def desk(request: pytest.FixtureRequest, stores: Stores, tmp_path: Path) -> Iterator[Desk]:
    """Make consumers of both manners, on SQLite; the faults are tried on Postgres, too."""
    loop = request.getfixturevalue("loop") if request.param == "async" else None
    database = f"sqlite:///{tmp_path / 'app.db'}"
    with contextlib.closing(Desk(request.param, stores.url("plain"), database, loop)) as desk:
        yield desk


@pytest.fixture
def topic(desk: Desk, name: str) -> Topic:
    return desk.hw.topic(name, partitions=PARTITIONS)


def ends(topic: Topic) -> list[int]:
    return [info.last for info in topic.info()]


def applied(desk: Desk, topic: Topic, name: str = "c") -> bool:
    """Whether every message of the topic had its effect once, in the order of its partition."""
    found = [desk.effects(f"{name}/{place}") for place in range(PARTITIONS)]
    return found == [numbers(1, last) for last in ends(topic)]


def test_every_partition_has_its_position(desk: Desk, topic: Topic) -> None:
    topic.write_many(entries(90, tags=30))
    reader = desk.consumer("c", topic, batch=10)
    assert reader.streams == (topic.name,)
    names = [f"{topic.name}/{place}" for place in range(PARTITIONS)]
    assert reader.positions() == dict.fromkeys(names)
    assert reader.lag() == 90
    assert reader.run_once() == 30
    assert reader.positions() == dict.fromkeys(names, 11)
    assert drain(reader) == 60
    assert applied(desk, topic)
    assert (reader.lag(), reader.stats.handled) == (0, 90)
    assert [info.readers for info in topic.info()] == [
        {"consumer:c": last + 1} for last in ends(topic)
    ]
    assert drain(desk.consumer("c", topic)) == 0


def test_the_handler_is_given_messages_of_one_partition_at_a_time(desk: Desk, name: str) -> None:
    topic = desk.hw.topic(name, partitions=PARTITIONS, codec="json")
    topic.write_many([(f"tag-{n}", {"n": n}) for n in range(30)])
    seen: dict[int, list[int]] = {}

    def handler(_: sa.Connection, messages: list[TopicMessage]) -> None:
        (place,) = {message.partition for message in messages}
        assert {topic.partition_of(message.tag) for message in messages} == {place}
        seen.setdefault(place, []).extend(message.data["n"] for message in messages)  # type: ignore[call-overload]

    drain(desk.consumer("c", topic, {name: handler}))
    assert sorted(n for found in seen.values() for n in found) == list(range(30))
    assert all(found == sorted(found) for found in seen.values())


def test_a_running_consumer_waits_for_all_partitions_at_once(desk: Desk, topic: Topic) -> None:
    turns = count()

    def took_ms() -> float:
        until(lambda: blocked(desk.hw))
        written = time.perf_counter()
        topic.write(f"tag-{next(turns)}", b"1")
        until(lambda: applied(desk, topic))
        return (time.perf_counter() - written) * 1000

    with running(desk.consumer("c", topic)):
        # Far below any poll.
        check_quick(took_ms, 200, least=6)
        topic.write_many(entries(300, tags=50))
        until(lambda: applied(desk, topic))


@pytest.mark.cluster
def test_a_consumer_of_a_topic_on_a_cluster_takes_its_partitions_in_turn(
    stores: Stores, tmp_path: Path, name: str
) -> None:
    url = f"sqlite:///{tmp_path / 'app.db'}"
    with contextlib.closing(Desk("sync", stores.url("cluster"), url, None)) as desk:
        topic = desk.hw.topic(name, partitions=PARTITIONS)
        with running(desk.consumer("c", topic)):
            for turn in range(6):
                topic.write(f"tag-{turn}", b"1")
                until(lambda: applied(desk, topic))


def test_consumers_of_one_name_share_the_partitions(desk: Desk, topic: Topic) -> None:
    crew = [desk.consumer("c", topic, batch=size) for size in (2, 5, 9)]
    with running(*crew):
        for first in range(1, 300, 30):
            topic.write_many(entries(30, first, tags=20))
        until(lambda: applied(desk, topic), 60)
    assert sum(one.stats.handled for one in crew) == sum(ends(topic)) == 300


def test_a_partition_that_fails_holds_up_no_other(desk: Desk, topic: Topic) -> None:
    bad = topic.partition_of("bad")
    tries: list[int] = []

    def handler(_: sa.Connection, messages: list[TopicMessage]) -> None:
        if any(message.tag == "bad" for message in messages):
            tries.append(len(messages))
            raise RuntimeError("cannot be handled")
        done.append(len(messages))

    done: list[int] = []
    topic.write("bad", b"1")
    reader = desk.consumer("c", topic, handler, backoff_ms=600_000)
    with running(reader):
        until(lambda: tries)
        topic.write_many(entries(90, tags=30))
        until(lambda: sum(done) == sum(ends(topic)) - topic.partition(bad).info().last)
    assert len(tries) == 1
    assert reader.positions()[f"{topic.name}/{bad}"] == 1


def test_a_failing_message_goes_to_the_dead_letters_of_its_partition(
    desk: Desk, topic: Topic
) -> None:
    def handler(_: sa.Connection, messages: list[TopicMessage]) -> None:
        if any(message.tag == "bad" for message in messages):
            raise RuntimeError("cannot be handled")

    bad = topic.write("bad", b"1")
    topic.write_many(entries(30, tags=20))
    with pytest.raises(PoisonedBatch) as caught:
        drain(desk.consumer("c", topic, handler, attempts=1))
    assert (caught.value.partition, caught.value.stream) == (
        *(bad.partition, f"{topic.name}/{bad.partition}"),
    )
    skipping = desk.consumer("c", topic, handler, attempts=1, on_error="skip")
    drain(skipping)
    assert (skipping.stats.dead, skipping.lag()) == (1, 0)
    (letter,) = desk.hw.stream(f"{topic.name}/{bad.partition}.c.sql-dead").read(1, 9)
    assert letter is not None
    assert (letter.tag, letter.value) == ("bad", b"1")
    [shown] = skipping.dead()
    assert (shown.stream, shown.origin) == (f"{topic.name}/{bad.partition}", bad.offset)
    assert str(shown.cause) == "RuntimeError: cannot be handled"


def test_a_consumer_of_a_topic_is_moved_in_all_partitions_or_in_one(
    desk: Desk, topic: Topic
) -> None:
    topic.write_many(entries(60, tags=30))
    reader = desk.consumer("c", topic)
    drain(reader)
    assert reader.seek("first") == {0: 1, 1: 1, 2: 1}
    assert reader.seek({1: "last", 2: 5}) == {1: ends(topic)[1] + 1, 2: 5}
    assert reader.seek(3, stream=f"{topic.name}/0") == 3
    names = [f"{topic.name}/{place}" for place in range(PARTITIONS)]
    assert list(map(reader.positions().get, names)) == [3, ends(topic)[1] + 1, 5]
    for position, stream in (({3: 1}, None), (1, f"{topic.name}/3"), (1, "other"), ("x", None)):
        with pytest.raises(InvalidInput):
            reader.seek(position, stream=stream)  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="offset 1000 is beyond") as caught:
        reader.seek({0: 1, 1: 1000})
    assert (caught.value.partition, caught.value.partitions_done) == (1, {0: 1})
    assert reader.remove()
    assert reader.positions() == dict.fromkeys(names)
    assert [info.readers for info in topic.info()] == [{}] * PARTITIONS


def test_a_gap_names_its_partition(desk: Desk, topic: Topic) -> None:
    topic.write_many(entries(60, tags=30))
    reader = desk.consumer("c", topic, batch=2)
    reader.run_once()
    topic.partition(1).evict(7)
    with pytest.raises(GapError) as caught:
        drain(reader)
    assert (caught.value.partition, caught.value.stream) == (1, f"{topic.name}/1")
    assert (caught.value.first, caught.value.last) == (3, 7)


def test_a_consumer_opens_a_topic_with_the_partitions_it_was_given(desk: Desk, name: str) -> None:
    if desk.manner == "sync":
        reader = desk.consumer("c", desk.hw.topic(name, partitions=2))
    else:
        reader = desk.consumer("c", desk.async_hw.topic(name, partitions=2))
    assert reader.run_once() == 0
    assert desk.hw.topic(name).partitions() == 2


def test_the_decorator_takes_a_topic(desk: Desk, topic: Topic) -> None:
    @consumer("c", stream=topic, outbox=desk.engine, hw=desk.hw)
    def counts(_: sa.Connection, messages: list[TopicMessage]) -> None:
        counted.extend(message.partition for message in messages)

    counted: list[int] = []
    topic.write_many(entries(60, tags=30))
    assert isinstance(counts, Consumer)
    assert counts.run_once() == 60
    assert [counted.count(place) for place in range(PARTITIONS)] == ends(topic)
