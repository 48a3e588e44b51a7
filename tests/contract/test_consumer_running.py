"""A running consumer takes up what comes at once, on all its streams, and stops when asked to."""

from __future__ import annotations

import time
from typing import Any

import pytest
import sqlalchemy as sa

from headwater import Message
from headwater.errors import (
    PoisonedBatch,
)
from headwater.outbox import Outbox, Streamer
from tests.support.consumers import Desk, Running, numbers, running, writes
from tests.support.entries import entries
from tests.support.servers import until
from tests.support.waking import check_quick
from tests.support.watch import blocked

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
    for count, place in enumerate(places, 1):
        desk.hw.stream(place).write_many(entries(10 * count))
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
