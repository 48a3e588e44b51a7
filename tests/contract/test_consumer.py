"""A consumer applies every message once, in order, and its position is part of its effects."""

from __future__ import annotations

import contextlib
import datetime as dt
import time
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from headwater import Message, Topic, TopicMessage
from headwater.errors import CheckpointRemoved, GapError, InvalidInput, PoisonedBatch
from headwater.outbox import Consumer, Outbox, Streamer
from headwater.outbox import consumer as make_consumer
from headwater.store.call import Call, Wait
from tests.support.consumers import Desk, Running, drain, numbers, running, writes
from tests.support.entries import entries, pairs
from tests.support.servers import until
from tests.support.stores import Stores
from tests.support.waking import check_quick
from tests.support.watch import blocked

# ── One batch is one transaction ─────────────────────────────────────────────────────────────


@pytest.mark.parametrize("batch", [1, 7, 1000])
def test_every_message_is_applied_once_and_in_order(desk: Desk, name: str, batch: int) -> None:
    stream = desk.hw.stream(name)
    for first in range(1, 50, 10):
        stream.write_many(entries(10, first))
    consumer = desk.consumer("c", name, batch=batch)
    counts = []
    while applied := consumer.run_once():
        counts.append(applied)
    assert counts == [batch] * (50 // batch) + ([50 % batch] if 50 % batch else [])
    assert desk.effects("c") == numbers(1, 50)
    assert consumer.positions() == {name: 51}
    assert consumer.stats.handled == 50


def test_the_handler_is_given_what_was_written(desk: Desk, name: str) -> None:
    seen: list[Message] = []
    stream = desk.hw.stream(name)
    stream.write_many(entries(3))
    consumer = desk.consumer("c", stream, lambda _, messages: seen.extend(messages))
    assert consumer.run_once() == 3
    assert pairs(seen) == entries(3)
    assert [message.offset for message in seen] == [1, 2, 3]


def test_effects_and_position_are_there_together_or_not_at_all(desk: Desk, name: str) -> None:
    desk.hw.stream(name).write_many(entries(30))

    def fails_late(conn: sa.Connection, messages: list[Message]) -> None:
        writes("c")(conn, messages)
        if messages[-1].offset > 10:
            raise RuntimeError("after the effects")

    consumer = desk.consumer("c", name, fails_late, batch=10, attempts=1)
    assert consumer.run_once() == 10
    with pytest.raises(Exception, match="after the effects"):
        consumer.run_once()
    assert desk.effects("c") == numbers(1, 10)
    assert consumer.positions() == {name: 11}
    assert drain(desk.consumer("c", name)) == 20
    assert desk.effects("c") == numbers(1, 30)


def test_a_position_survives_its_consumer(desk: Desk, name: str) -> None:
    stream = desk.hw.stream(name)
    for last in (20, 40, 60):
        stream.write_many(entries(20, last - 19))
        assert desk.consumer("c", name).run_once() == 20
    assert desk.effects("c") == numbers(1, 60)


def test_consumers_of_different_names_do_not_know_of_each_other(desk: Desk, name: str) -> None:
    desk.hw.stream(name).write_many(entries(10))
    assert drain(desk.consumer("a", name, batch=3)) == 10
    assert drain(desk.consumer("b", name, batch=4)) == 10
    assert desk.effects("a") == desk.effects("b") == numbers(1, 10)


def test_a_business_id_plays_no_part(desk: Desk, name: str) -> None:
    """Duplicates and ids out of order are messages like any other: the position passes them."""
    stream = desk.hw.stream(name)
    stream.write_many([("ride-7", b"same")] * 2500)
    stream.write_many([("ride-3", b"late")])
    seen = set()

    def once_per_tag(conn: sa.Connection, messages: list[Message]) -> None:
        new = [m for m in messages if m.tag not in seen and not seen.add(m.tag)]  # type: ignore[func-returns-value]
        if new:
            writes("c")(conn, new)

    consumer = desk.consumer("c", name, once_per_tag)
    assert drain(consumer) == 2501
    assert consumer.positions() == {name: 2502}
    assert desk.effects("c") == [1, 2501]


def test_two_consumers_of_one_name_apply_everything_once(desk: Desk, name: str) -> None:
    stream = desk.hw.stream(name)
    pair = [desk.consumer("c", name, batch=5), desk.consumer("c", name, batch=8)]
    with running(*pair):
        for first in range(1, 400, 20):
            stream.write_many(entries(20, first))
        until(lambda: len(desk.effects("c")) >= 400)
    assert desk.effects("c") == numbers(1, 400)
    assert sum(consumer.stats.handled for consumer in pair) == 400


def test_a_consumer_that_was_overtaken_goes_on_behind_the_other(desk: Desk, name: str) -> None:
    stream = desk.hw.stream(name)
    stream.write_many(entries(10))
    slow, fast = desk.consumer("c", name, batch=4), desk.consumer("c", name, batch=4)
    assert slow.run_once() == 4
    assert fast.run_once() == 4
    assert slow.run_once() == 2
    assert slow.stats.overtaken == 1
    assert fast.run_once() == 0
    assert desk.effects("c") == numbers(1, 10)


def test_offsets_of_no_message_are_passed(desk: Desk, name: str) -> None:
    stream = desk.hw.stream(name)
    stream.write_many(entries(500, tags=2))
    stream.compact()
    consumer = desk.consumer("c", name, batch=50)
    assert drain(consumer) == 2
    assert consumer.positions() == {name: 501}
    stream.write_many([("tag-0", b"gone"), ("tag-0", b"")])
    stream.compact()
    assert consumer.run_once() == 1
    assert consumer.positions() == {name: 503}
    assert consumer.stats.gaps == []


# ── The decorator ────────────────────────────────────────────────────────────────────────────


def test_a_decorated_handler_is_a_consumer(desk: Desk, name: str) -> None:
    @make_consumer("totals", stream=name, outbox=desk.engine, hw=desk.hw, batch=2)
    def totals(conn: sa.Connection, messages: list[Message]) -> None:
        writes("totals")(conn, messages)

    desk.hw.stream(name).write_many(entries(3))
    assert isinstance(totals, Consumer)
    assert (totals.run_once(), totals.run_once()) == (2, 1)
    assert desk.effects("totals") == [1, 2, 3]


# ── What it costs ────────────────────────────────────────────────────────────────────────────


def test_a_batch_costs_one_read_and_one_report_to_the_log(
    desk: Desk, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = desk.hw.stream(name)
    stream.write_many(entries(30))
    consumer = Consumer("c", name, desk.engine, desk.hw, writes("c"), batch=10)
    consumer.run_once()
    calls: list[str] = []
    ask = desk.hw.store.ask

    def counted(request: Call | Wait, *more: Any) -> Any:
        calls.append(request.function if isinstance(request, Call) else "wait")
        return ask(request, *more)

    monkeypatch.setattr(desk.hw.store, "ask", counted)
    consumer.run_once()
    assert calls == ["hw_stream_read", "hw_stream_reader"]


# ── A consumer begins, moves and stands where it is asked to, and retention waits for it ─────────

# ── Where it begins, and where it stands ─────────────────────────────────────────────────────


def test_a_new_consumer_begins_where_it_is_asked_to(desk: Desk, name: str) -> None:
    stream = desk.hw.stream(name)
    stream.write_many(entries(10))
    stream.evict(2)
    now = dt.datetime.now(dt.UTC) + dt.timedelta(hours=1)
    starts: dict[str, Any] = {"a": "first", "b": "last", "d": 7, "e": now, "f": 11}
    for who, start in starts.items():
        desk.consumer(who, name, start=start).run_once()
    stream.write_many(entries(1, 11))
    for who, start in starts.items():
        drain(desk.consumer(who, name, start=start))
    assert desk.effects("a") == numbers(3, 11)
    assert desk.effects("d") == numbers(7, 11)
    assert desk.effects("b") == desk.effects("e") == desk.effects("f") == [11]


def test_a_start_beyond_the_end_is_refused(desk: Desk, name: str) -> None:
    desk.hw.stream(name).write_many(entries(3))
    consumer = desk.consumer("c", name, start=5)
    with pytest.raises(InvalidInput, match="beyond"):
        consumer.run_once()
    assert desk.hw.stream(name).info().readers == {}


def test_where_it_begins_counts_only_once(desk: Desk, name: str) -> None:
    desk.hw.stream(name).write_many(entries(10))
    assert desk.consumer("c", name, start=8).run_once() == 3
    assert desk.consumer("c", name, start="first").run_once() == 0


def test_a_stream_that_was_never_written_is_waited_for(desk: Desk, name: str) -> None:
    consumer = desk.consumer("c", name)
    assert consumer.run_once() == 0
    assert consumer.lag() == 0
    desk.hw.stream(name).write_many(entries(2))
    assert consumer.run_once() == 2


def test_lag_counts_what_is_to_come(desk: Desk, name: str) -> None:
    stream = desk.hw.stream(name)
    stream.write_many(entries(30))
    consumer = desk.consumer("c", name, batch=10)
    assert consumer.lag() == 30, "before its first run"
    assert desk.consumer("late", name, start="last").lag() == 0
    consumer.run_once()
    assert consumer.lag() == 20
    stream.evict(15)
    assert consumer.lag() == 15
    stream.evict(30)
    assert consumer.lag() == 0


def test_seek_goes_back_and_forth(desk: Desk, name: str) -> None:
    stream = desk.hw.stream(name)
    stream.write_many(entries(10))
    consumer = desk.consumer("c", name)
    assert consumer.seek(9) == 9
    assert drain(consumer) == 2
    assert consumer.seek("first") == 1
    assert stream.info().readers == {"consumer:c": 1}
    assert drain(consumer) == 10
    assert consumer.seek("last") == 11
    with pytest.raises(InvalidInput, match="beyond"):
        consumer.seek(12)
    assert desk.effects("c") == [9, 10, *numbers(1, 10)]


def test_a_running_consumer_follows_a_seek(desk: Desk, name: str) -> None:
    desk.hw.stream(name).write_many(entries(10))
    consumer = desk.consumer("c", name)
    with running(consumer):
        until(lambda: len(desk.effects("c")) == 10)
        desk.consumer("c", name).seek(6)
        desk.hw.stream(name).write_many(entries(1, 11))
        until(lambda: len(desk.effects("c")) == 16)
    assert desk.effects("c") == [*numbers(1, 10), *numbers(6, 11)]


def test_an_idle_consumer_follows_a_seek_too(desk: Desk, name: str) -> None:
    stream = desk.hw.stream(name)
    stream.write_many(entries(10))
    with running(desk.consumer("c", name)):
        until(lambda: len(desk.effects("c")) == 10)
        until(lambda: blocked(desk.hw))
        desk.consumer("c", name).seek(6)
        until(lambda: len(desk.effects("c")) == 15)
        until(lambda: stream.info().readers == {"consumer:c": 11})
    assert desk.effects("c") == [*numbers(1, 10), *numbers(6, 10)]


def test_a_consumer_that_is_removed_while_it_runs_does_not_begin_anew(
    desk: Desk, name: str
) -> None:
    stream = desk.hw.stream(name)
    stream.write_many(entries(10))
    consumer = desk.consumer("c", name)
    run = Running(consumer.run)
    until(lambda: len(desk.effects("c")) == 10)
    desk.consumer("c", name).remove()
    with pytest.raises(CheckpointRemoved, match="reset its state and start it again"):
        run.result()
    with pytest.raises(CheckpointRemoved):
        consumer.run_once()
    assert desk.effects("c") == numbers(1, 10)


def test_a_removed_consumer_is_forgotten(desk: Desk, name: str) -> None:
    stream = desk.hw.stream(name)
    stream.write_many(entries(10))
    consumer = desk.consumer("c", name)
    consumer.run_once()
    assert consumer.remove() is True
    assert stream.info().readers == {}
    assert consumer.positions() == {name: None}
    assert consumer.remove() is False
    assert consumer.run_once() == 10, "it begins anew"


# ── Retention knows it ───────────────────────────────────────────────────────────────────────


def test_retention_waits_for_a_stopped_consumer_and_passes_when_it_caught_up(
    desk: Desk, name: str
) -> None:
    stream = desk.hw.stream(name)
    stream.write_many(entries(100))
    consumer = desk.consumer("c", name, batch=30)
    consumer.run_once()
    assert stream.retain(max_count=10) == (30, 60, "consumer:c")
    stream.write_many(entries(100, 101))
    assert stream.retain(max_count=10).evicted == 0
    assert drain(desk.consumer("c", name)) == 170
    assert stream.retain(max_count=10) == (160, 0, None)
    assert desk.effects("c") == numbers(1, 200)


def test_retention_waits_from_the_very_start(desk: Desk, name: str) -> None:
    stream = desk.hw.stream(name)
    stream.write_many(entries(50))
    consumer = desk.consumer("c", name, lambda *_: 1 / 0, attempts=1)
    with pytest.raises(Exception, match="division"):
        consumer.run_once()
    assert stream.retain(max_count=0) == (0, 50, "consumer:c")


def test_a_running_consumer_reports_its_position_while_it_waits(desk: Desk, name: str) -> None:
    stream = desk.hw.stream(name)
    with running(desk.consumer("c", name)):
        stream.write_many(entries(20))
        until(lambda: stream.info().readers == {"consumer:c": 21})


def test_a_consumer_that_stops_reports_its_position(desk: Desk, name: str) -> None:
    stream = desk.hw.stream(name)
    stream.write_many(entries(20))
    with running(desk.consumer("c", name, batch=3)):
        until(lambda: len(desk.effects("c")) == 20)
    assert stream.info().readers == {"consumer:c": 21}


# A running consumer takes up what comes at once, on all its streams, and stops when asked to.

# ── Running ──────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("size", [1, 300])
def test_a_message_reaches_a_waiting_consumer_within_milliseconds(
    desk: Desk, name: str, size: int
) -> None:
    stream = desk.hw.stream(name)
    took: list[float] = []

    def handler(_: sa.Connection, messages: list[Message]) -> None:
        if messages[-1].offset % size == 0:
            took.append(time.perf_counter())

    def took_ms() -> float:
        turn = len(took)
        until(lambda: blocked(desk.hw))
        written = time.perf_counter()
        stream.write_many(entries(size, turn * size + 1))
        until(lambda: len(took) > turn)
        return (took[turn] - written) * 1000

    with running(desk.consumer("c", name, handler)):
        # Far below any poll.
        check_quick(took_ms, 100, least=5)


def test_stop_ends_a_waiting_consumer_soon(desk: Desk, name: str) -> None:
    consumer = desk.consumer("c", name)
    with running(consumer) as (run,):
        until(lambda: blocked(desk.hw))
        asked = time.monotonic()
        consumer.stop()
        run.result()
        assert time.monotonic() - asked < 5
    assert desk.consumer("c", name).run_once() == 0


def test_what_was_staged_reaches_a_waiting_consumer_within_milliseconds(
    desk: Desk, name: str
) -> None:
    outbox = Outbox(desk.engine)
    outbox.create_all()
    took: list[float] = []
    with (
        Streamer(outbox, desk.hw) as streamer,
        running(desk.consumer("c", name, lambda *_: took.append(time.perf_counter()))),
    ):
        streaming = Running(streamer.run)

        def took_ms() -> float:
            turn = len(took)
            until(lambda: blocked(desk.hw) and streamer.progress.leading)
            with desk.engine.begin() as conn:
                outbox.stage(conn, name, "t", {"turn": turn})
            committed = time.perf_counter()
            until(lambda: len(took) > turn)
            return (took[turn] - committed) * 1000

        # Far below any poll of seconds.
        check_quick(took_ms, 200, least=5)
        streamer.stop()
        streaming.result()


def test_stop_lets_the_batch_at_hand_end(desk: Desk, name: str) -> None:
    desk.hw.stream(name).write_many(entries(30))

    def handler(conn: sa.Connection, messages: list[Message]) -> None:
        consumer.stop()
        writes("c")(conn, messages)

    consumer = desk.consumer("c", name, handler, batch=10)
    consumer.run()
    assert desk.effects("c") == numbers(1, 10)
    assert consumer.positions() == {name: 11}


def test_stop_cuts_a_retry_short_without_giving_up(desk: Desk, name: str) -> None:
    desk.hw.stream(name).write_many(entries(3))
    tries: list[int] = []

    def handler(_: sa.Connection, messages: list[Message]) -> None:
        tries.append(len(messages))
        raise RuntimeError("not yet")

    consumer = desk.consumer("c", name, handler, backoff_ms=600_000, on_error="skip")
    with running(consumer):
        until(lambda: tries)
    assert len(tries) == 1
    assert (consumer.stats.dead, consumer.positions()) == (0, {name: 1})


def test_a_consumer_that_was_stopped_before_it_ran_does_not_run(desk: Desk, name: str) -> None:
    desk.hw.stream(name).write_many(entries(3))
    consumer = desk.consumer("c", name)
    consumer.stop()
    consumer.run()
    assert desk.effects("c") == []


# ── Several streams ──────────────────────────────────────────────────────────────────────────


def test_each_stream_has_its_position_and_its_turn(desk: Desk, name: str) -> None:
    places = [f"{name}-{letter}" for letter in "abc"]
    for number, place in enumerate(places, 1):
        desk.hw.stream(place).write_many(entries(10 * number))
    consumer = desk.consumer("c", [desk.hw.stream(places[0]), *places[1:]], batch=10)
    assert [consumer.run_once() for _ in range(4)] == [30, 20, 10, 0]
    assert consumer.positions() == dict(zip(places, (11, 21, 31), strict=True))
    assert consumer.lag() == 0


def test_several_streams_are_all_waited_for_at_once(desk: Desk, name: str) -> None:
    places = [f"{name}-{letter}" for letter in "abc"]
    seen: dict[str, list[int]] = {place: [] for place in places}
    inside: list[str] = []

    def handler_of(place: str) -> Any:
        def handler(_: sa.Connection, messages: list[Message]) -> None:
            inside.append(place)
            assert inside == [place], "one at a time"
            seen[place] += [message.offset for message in messages]
            inside.remove(place)

        return handler

    consumer = desk.consumer("c", places, {place: handler_of(place) for place in places})
    with running(consumer):
        for first in range(1, 60, 20):
            for place in places:
                desk.hw.stream(place).write_many(entries(20, first))
        until(lambda: all(len(found) == 60 for found in seen.values()))
    assert all(found == numbers(1, 60) for found in seen.values())


def test_trouble_with_one_stream_ends_the_run_of_all(desk: Desk, name: str) -> None:
    good, bad = f"{name}-good", f"{name}-bad"

    def fails(*_: object) -> None:
        raise RuntimeError("always")

    handlers = {good: writes("c"), bad: fails}
    consumer = desk.consumer("c", [good, bad], handlers, attempts=1)
    run = Running(consumer.run)
    desk.hw.stream(good).write_many(entries(5))
    until(lambda: len(desk.effects("c")) == 5)
    desk.hw.stream(bad).write_many(entries(1))
    with pytest.raises(PoisonedBatch, match="always"):
        run.result()
    # It may run again, once somebody has seen to it; nobody has.
    with pytest.raises(PoisonedBatch, match="always"):
        Running(consumer.run).result()


# ── A consumer of a topic applies each message once, with a position for each partition ──────────


PARTITIONS = 3


@pytest.fixture(params=["sync", "async"])
def topic_desk(request: pytest.FixtureRequest, stores: Stores, tmp_path: Path) -> Iterator[Desk]:
    """Make consumers of both manners, on SQLite; the faults are tried on Postgres, too."""
    loop = request.getfixturevalue("loop") if request.param == "async" else None
    database = f"sqlite:///{tmp_path / 'app.db'}"
    with contextlib.closing(Desk(request.param, stores.url("plain"), database, loop)) as topic_desk:
        yield topic_desk


@pytest.fixture
def topic(topic_desk: Desk, name: str) -> Topic:
    return topic_desk.hw.topic(name, partitions=PARTITIONS)


def ends(topic: Topic) -> list[int]:
    return [info.last for info in topic.info()]


def applied(topic_desk: Desk, topic: Topic, name: str = "c") -> bool:
    """Whether every message of the topic had its effect once, in the order of its partition."""
    found = [topic_desk.effects(f"{name}/{place}") for place in range(PARTITIONS)]
    return found == [numbers(1, last) for last in ends(topic)]


def test_every_partition_has_its_position(topic_desk: Desk, topic: Topic) -> None:
    topic.write_many(entries(90, tags=30))
    reader = topic_desk.consumer("c", topic, batch=10)
    assert reader.streams == (topic.name,)
    names = [f"{topic.name}/{place}" for place in range(PARTITIONS)]
    assert reader.positions() == dict.fromkeys(names)
    assert reader.lag() == 90
    assert reader.run_once() == 30
    assert reader.positions() == dict.fromkeys(names, 11)
    assert drain(reader) == 60
    assert applied(topic_desk, topic)
    assert (reader.lag(), reader.stats.handled) == (0, 90)
    assert [info.readers for info in topic.info()] == [
        {"consumer:c": last + 1} for last in ends(topic)
    ]
    assert drain(topic_desk.consumer("c", topic)) == 0


def test_the_handler_is_given_messages_of_one_partition_at_a_time(
    topic_desk: Desk, name: str
) -> None:
    topic = topic_desk.hw.topic(name, partitions=PARTITIONS, codec="json")
    topic.write_many([(f"tag-{n}", {"n": n}) for n in range(30)])
    seen: dict[int, list[int]] = {}

    def handler(_: sa.Connection, messages: list[TopicMessage]) -> None:
        (place,) = {message.partition for message in messages}
        assert {topic.partition_of(message.tag) for message in messages} == {place}
        seen.setdefault(place, []).extend(message.data["n"] for message in messages)  # type: ignore[call-overload]

    drain(topic_desk.consumer("c", topic, {name: handler}))
    assert sorted(n for found in seen.values() for n in found) == list(range(30))
    assert all(found == sorted(found) for found in seen.values())


def test_a_running_consumer_waits_for_all_partitions_at_once(
    topic_desk: Desk, topic: Topic
) -> None:
    turns = count()

    def took_ms() -> float:
        until(lambda: blocked(topic_desk.hw))
        written = time.perf_counter()
        topic.write(f"tag-{next(turns)}", b"1")
        until(lambda: applied(topic_desk, topic))
        return (time.perf_counter() - written) * 1000

    with running(topic_desk.consumer("c", topic)):
        # Far below any poll.
        check_quick(took_ms, 200, least=6)
        topic.write_many(entries(300, tags=50))
        until(lambda: applied(topic_desk, topic))


@pytest.mark.cluster
def test_a_consumer_of_a_topic_on_a_cluster_takes_its_partitions_in_turn(
    stores: Stores, tmp_path: Path, name: str
) -> None:
    url = f"sqlite:///{tmp_path / 'app.db'}"
    with contextlib.closing(Desk("sync", stores.url("cluster"), url, None)) as topic_desk:
        topic = topic_desk.hw.topic(name, partitions=PARTITIONS)
        with running(topic_desk.consumer("c", topic)):
            for turn in range(6):
                topic.write(f"tag-{turn}", b"1")
                until(lambda: applied(topic_desk, topic))


def test_consumers_of_one_name_share_the_partitions(topic_desk: Desk, topic: Topic) -> None:
    crew = [topic_desk.consumer("c", topic, batch=size) for size in (2, 5, 9)]
    with running(*crew):
        for first in range(1, 300, 30):
            topic.write_many(entries(30, first, tags=20))
        until(lambda: applied(topic_desk, topic), 60)
    assert sum(one.stats.handled for one in crew) == sum(ends(topic)) == 300


def test_a_partition_that_fails_holds_up_no_other(topic_desk: Desk, topic: Topic) -> None:
    bad = topic.partition_of("bad")
    tries: list[int] = []

    def handler(_: sa.Connection, messages: list[TopicMessage]) -> None:
        if any(message.tag == "bad" for message in messages):
            tries.append(len(messages))
            raise RuntimeError("cannot be handled")
        done.append(len(messages))

    done: list[int] = []
    topic.write("bad", b"1")
    reader = topic_desk.consumer("c", topic, handler, backoff_ms=600_000)
    with running(reader):
        until(lambda: tries)
        topic.write_many(entries(90, tags=30))
        until(lambda: sum(done) == sum(ends(topic)) - topic.partition(bad).info().last)
    assert len(tries) == 1
    assert reader.positions()[f"{topic.name}/{bad}"] == 1


def test_a_failing_message_goes_to_the_dead_letters_of_its_partition(
    topic_desk: Desk, topic: Topic
) -> None:
    def handler(_: sa.Connection, messages: list[TopicMessage]) -> None:
        if any(message.tag == "bad" for message in messages):
            raise RuntimeError("cannot be handled")

    bad = topic.write("bad", b"1")
    topic.write_many(entries(30, tags=20))
    with pytest.raises(PoisonedBatch) as caught:
        drain(topic_desk.consumer("c", topic, handler, attempts=1))
    assert (caught.value.partition, caught.value.stream) == (
        *(bad.partition, f"{topic.name}/{bad.partition}"),
    )
    skipping = topic_desk.consumer("c", topic, handler, attempts=1, on_error="skip")
    drain(skipping)
    assert (skipping.stats.dead, skipping.lag()) == (1, 0)
    (letter,) = topic_desk.hw.stream(f"{topic.name}/{bad.partition}.c.sql-dead").read(1, 9)
    assert letter is not None
    assert (letter.tag, letter.value) == ("bad", b"1")
    [shown] = skipping.dead()
    assert (shown.stream, shown.origin) == (f"{topic.name}/{bad.partition}", bad.offset)
    assert str(shown.cause) == "RuntimeError: cannot be handled"


def test_a_consumer_of_a_topic_is_moved_in_all_partitions_or_in_one(
    topic_desk: Desk, topic: Topic
) -> None:
    topic.write_many(entries(60, tags=30))
    reader = topic_desk.consumer("c", topic)
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


def test_a_gap_names_its_partition(topic_desk: Desk, topic: Topic) -> None:
    topic.write_many(entries(60, tags=30))
    reader = topic_desk.consumer("c", topic, batch=2)
    reader.run_once()
    topic.partition(1).evict(7)
    with pytest.raises(GapError) as caught:
        drain(reader)
    assert (caught.value.partition, caught.value.stream) == (1, f"{topic.name}/1")
    assert (caught.value.first, caught.value.last) == (3, 7)


def test_a_consumer_opens_a_topic_with_the_partitions_it_was_given(
    topic_desk: Desk, name: str
) -> None:
    if topic_desk.manner == "sync":
        reader = topic_desk.consumer("c", topic_desk.hw.topic(name, partitions=2))
    else:
        reader = topic_desk.consumer("c", topic_desk.async_hw.topic(name, partitions=2))
    assert reader.run_once() == 0
    assert topic_desk.hw.topic(name).partitions() == 2


def test_the_decorator_takes_a_topic(topic_desk: Desk, topic: Topic) -> None:
    @make_consumer("c", stream=topic, outbox=topic_desk.engine, hw=topic_desk.hw)
    def counts(_: sa.Connection, messages: list[TopicMessage]) -> None:
        counted.extend(message.partition for message in messages)

    counted: list[int] = []
    topic.write_many(entries(60, tags=30))
    assert isinstance(counts, Consumer)
    assert counts.run_once() == 60
    assert [counted.count(place) for place in range(PARTITIONS)] == ends(topic)
