"""A consumer begins, moves and stands where it is asked to, and retention waits for it."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pytest

from headwater.errors import (
    CheckpointRemoved,
    InvalidInput,
)
from tests.support.consumers import Desk, Running, drain, numbers, running
from tests.support.entries import entries
from tests.support.servers import until
from tests.support.watch import blocked

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
