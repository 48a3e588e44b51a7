"""Workers of a group over a topic: as those of a stream, in all partitions at once."""

from __future__ import annotations

from collections import Counter

import pytest

from headwater import InvalidInput, Topic, TopicGroup, TopicMessage
from tests.support.entries import entries
from tests.support.servers import until
from tests.support.workers import Crew, Gate, at_work, done_in

PARTITIONS = 4


@pytest.fixture
def topic(crew: Crew, name: str) -> Topic:
    return crew.hw.topic(name, partitions=PARTITIONS)


@pytest.fixture
def group(topic: Topic) -> TopicGroup:
    """Look at the group that the workers are members of."""
    return topic.group("g")


def test_the_messages_of_all_partitions_are_handled_once(
    crew: Crew, topic: Topic, group: TopicGroup
) -> None:
    topic.write_many(entries(200))
    seen: list[tuple[int, int]] = []
    workers = [
        crew.topic_worker(topic, lambda m: seen.append((m.partition, m.offset))) for _ in range(2)
    ]
    with at_work(*workers):
        until(lambda: done_in(group) == 200)
        topic.write("late", b"v")  # they are blocked, and woken by this
        until(lambda: done_in(group) == 201)
    assert set(Counter(seen).values()) == {1}
    assert {place for place, _ in seen} == set(range(PARTITIONS))
    assert sum(info.pending for info in group.info()) == 0


def test_the_same_offset_of_two_partitions_is_two_messages(
    crew: Crew, topic: Topic, group: TopicGroup
) -> None:
    tags = [next(t for t in map(str, range(99)) if topic.partition_of(t) == p) for p in (0, 1)]
    for tag in tags:
        topic.write(tag, b"v")
    gate = Gate()
    with at_work(crew.topic_worker(topic, gate, concurrency=2)):
        until(lambda: len(gate.begun) == 2)
        gate.open()
        until(lambda: done_in(group) == 2)
    assert sorted((m.partition, m.offset) for m in gate.begun) == [(0, 1), (1, 1)]


def test_a_worker_of_a_topic_that_stops_returns_what_it_did_not_begin(
    crew: Crew, topic: Topic, group: TopicGroup
) -> None:
    topic.write_many(entries(12))
    gate = Gate()
    worker = crew.topic_worker(topic, gate, concurrency=2)
    with at_work(worker):
        until(lambda: len(gate.begun) == 2)
        worker.stop()
        again: list[TopicMessage] = []

        def have_all() -> bool:
            again.extend(group.read(20, ack_ms=60_000))
            return len(again) == 10

        until(have_all)
        gate.open()
    assert {message.attempt for message in again} == {1}


def test_what_fails_or_does_not_fit_is_buried_in_its_partition(
    crew: Crew, topic: Topic, group: TopicGroup
) -> None:
    topic.write_many([("good", b"1"), ("bad", b"2"), ("misfit", b"{")])

    def handler(message: TopicMessage) -> None:
        if message.tag == "bad":
            raise LookupError("no")

    options = {"codec": "json", "dead_letters": True, "max_attempts": 2, "backoff_ms": 1}
    with at_work(crew.topic_worker(topic, handler, **options)):
        until(lambda: done_in(group) == 3 and len(group.dead()) == 2)
    letters = {letter.tag: letter for letter in group.dead()}
    assert {tag: letter.attempts for tag, letter in letters.items()} == {"bad": 2, "misfit": 1}
    for tag, kind in (("bad", "LookupError"), ("misfit", "Undecodable")):
        assert (letters[tag].cause or ("", ""))[0] == kind
        assert letters[tag].partition == topic.partition_of(tag)
        assert (letters[tag].delivered_ms or 0) <= letters[tag].buried_ms
    assert group.read(9, ack_ms=60_000) == []
    assert sum(done.redriven for done in group.redrive().values()) == 2
    (first, second) = group.read(9, ack_ms=60_000)
    assert group.release(first) == 1
    assert group.bury(second, error="by hand") == 1
    assert [letter.cause and letter.cause.text for letter in group.dead()] == ["by hand"]


def test_a_worker_of_a_topic_without_dead_letters_takes_no_max_attempts(
    crew: Crew, topic: Topic
) -> None:
    with pytest.raises(InvalidInput, match="keeps no dead letters"):
        crew.topic_worker(topic, print, max_attempts=3).run()
