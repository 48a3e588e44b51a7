"""One streamer leads, and the next one finishes what it left half-way, each row once."""

from __future__ import annotations

import logging
from typing import Any

import pytest
import sqlalchemy as sa

from headwater import Headwater
from headwater.outbox import Outbox, Streamer
from headwater.outbox.postgres import PostgresDatabase
from headwater.outbox.sqlite import SqliteDatabase
from tests.support.books import Books
from tests.support.servers import until
from tests.support.stores import Stores
from tests.support.streamers import MakeStreamer, drain, streaming


@pytest.fixture
def store_url(stores: Stores) -> str:
    return stores.url("plain")


# ── Left half-way ────────────────────────────────────────────────────────────────────────────


class Crash(BaseException):
    """The streamer is gone from one moment to the next."""


STEPS = ["deleted", "marked", "committing", "claimed", "appended:first", "appended:last", "cleared"]


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("time", [1, 2])
def test_the_next_streamer_ends_what_one_left_half_way(
    engine: sa.Engine,
    outbox: Outbox,
    books: Books,
    make_streamer: MakeStreamer,
    hw: Headwater,
    name: str,
    step: str,
    time: int,
) -> None:
    left = time

    def crash(done: str) -> None:
        nonlocal left
        left -= done in (step, f"appended:{name}-{step.removeprefix('appended:')}")
        if not left:
            raise Crash

    for _ in range(3):
        books.commit_one(engine, *["first", "last"] * 10)
    first = make_streamer(steps=crash, batch=30)
    with pytest.raises(Crash):
        drain(first)
    books.commit_one(engine, "last", "first")
    drain(make_streamer(batch=7))
    assert books.anomalies(hw) == []
    assert outbox.status().backlog == 0
    assert outbox.status().claimed == 0


def test_a_batch_that_was_appended_long_ago_is_not_appended_again(
    engine: sa.Engine, outbox: Outbox, streamer: Streamer, hw: Headwater, name: str
) -> None:
    with engine.begin() as conn:
        outbox.stage_many(conn, name, [("t", b"")] * 3)
        conn.exec_driver_sql(
            "UPDATE headwater_streamer SET producer = 'p', batch = 7, "
            "claimed = (SELECT min(id) || '-' || max(id) FROM headwater_outbox)"
        )
    stream = hw.stream(name)
    for number in (7, 8, 200, 300):
        stream.write_many([("t", b"")] * 3, producer="p", sequence=number)
    assert streamer.run_once() == 3
    assert outbox.status().backlog == 0
    assert stream.info().last == 12


def test_a_database_that_was_restored_from_a_backup_loses_nothing(
    engine: sa.Engine, books: Books, make_streamer: MakeStreamer, hw: Headwater
) -> None:
    books.commit_one(engine, "a")
    with engine.connect() as conn:
        backup = conn.exec_driver_sql("SELECT producer, batch FROM headwater_streamer").one()
    for _ in range(3):
        assert make_streamer().run_once() == 1
        books.commit_one(engine, "a")
    with engine.begin() as conn:
        conn.execute(
            sa.text("UPDATE headwater_streamer SET producer = :producer, batch = :batch"),
            backup._asdict(),
        )
    drain(make_streamer())
    assert books.anomalies(hw) == []


def test_a_batch_left_for_longer_than_the_log_remembers_is_logged(
    engine: sa.Engine, outbox: Outbox, streamer: Streamer, name: str, caplog: Any
) -> None:
    with engine.begin() as conn:
        outbox.stage(conn, name, "t", b"")
        conn.exec_driver_sql(
            "UPDATE headwater_streamer SET producer = 'p', claimed_ms = 1, "
            "claimed = (SELECT min(id) FROM headwater_outbox)"
        )
    with caplog.at_level(logging.WARNING, "headwater.outbox"):
        assert streamer.run_once() == 1
    assert "and then has its rows twice" in caplog.text


def test_rows_of_a_claim_that_were_deleted_by_hand_do_not_hold_up_the_others(
    engine: sa.Engine, outbox: Outbox, streamer: Streamer, hw: Headwater, name: str
) -> None:
    with engine.begin() as conn:
        conn.exec_driver_sql(
            "UPDATE headwater_streamer SET producer = 'p', batch = 7, claimed = '1-3,9'"
        )
        outbox.stage_many(conn, name, [("t", b"")] * 12)
        conn.exec_driver_sql("DELETE FROM headwater_outbox WHERE id IN (1, 2, 3, 9)")
    assert streamer.run_once() == 8
    assert (outbox.status().backlog, outbox.status().claimed) == (0, 0)
    assert hw.stream(name).info().last == 8


# ── One leads ────────────────────────────────────────────────────────────────────────────────


def test_while_one_leads_another_sends_nothing(
    engine: sa.Engine, books: Books, make_streamer: MakeStreamer, hw: Headwater
) -> None:
    books.commit_one(engine, "a")
    second = make_streamer()
    answers: list[int] = []

    def ask(_: str) -> None:
        answers.append(second.run_once())

    assert make_streamer(steps=ask).run_once() == 1
    assert set(answers) == {0}
    assert second.run_once() == 0
    assert books.anomalies(hw) == []


def test_two_streamers_at_once_send_nothing_twice(
    engine: sa.Engine, books: Books, make_streamer: MakeStreamer, hw: Headwater
) -> None:
    streamers = [make_streamer(batch=10), make_streamer(batch=10)]
    with streaming(streamers[0]), streaming(streamers[1]):
        for _ in range(50):
            books.commit_one(engine, "a", "b", "a")
        until(lambda: books.arrived(hw) >= 150)
    assert books.anomalies(hw) == []
    assert sum(one.progress.rows for one in streamers) == 150


def test_two_that_take_turns_send_nothing_twice(
    engine: sa.Engine, books: Books, make_streamer: MakeStreamer, hw: Headwater
) -> None:
    streamers = [make_streamer(batch=3), make_streamer(batch=3)]
    for _ in range(10):
        books.commit_one(engine, "a", "b", "a", "c")
    turn = 0
    while streamers[turn % 2].run_once():
        turn += 1
    assert turn == 14
    assert books.anomalies(hw) == []


def test_a_stand_by_takes_over_from_a_leader_that_stops(
    engine: sa.Engine, books: Books, make_streamer: MakeStreamer, hw: Headwater
) -> None:
    first, second = make_streamer(), make_streamer()
    with streaming(second):
        until(lambda: second.progress.leading)
        with streaming(first):
            books.commit_one(engine, "a")
            until(lambda: books.arrived(hw) == 1)
            second.stop()
            until(lambda: first.progress.leading)
            books.commit_one(engine, "a")
            until(lambda: books.arrived(hw) == 2)
            until(lambda: (first.progress.rows, second.progress.rows) == (1, 1))
    assert books.anomalies(hw) == []


@pytest.mark.parametrize("step", ["claimed", "appended", "cleared"])
@pytest.mark.parametrize("turns", [1, 2, 9])
def test_a_leader_that_was_overtaken_unawares_sends_nothing_twice(
    engine: sa.Engine,
    outbox: Outbox,
    books: Books,
    make_streamer: MakeStreamer,
    hw: Headwater,
    monkeypatch: pytest.MonkeyPatch,
    step: str,
    turns: int,
) -> None:
    """As when the lock goes with a connection, and the one who had it wakes up late."""
    monkeypatch.setattr(SqliteDatabase, "lead", lambda _: True)
    monkeypatch.setattr(PostgresDatabase, "lead", lambda _: True)
    other = make_streamer(batch=2)

    def overtake(done: str) -> None:
        if done.startswith(step):
            for _ in range(turns):
                other.run_once()

    for _ in range(5):
        books.commit_one(engine, "a", "b", "a")
    drain(make_streamer(steps=overtake, batch=2))
    assert books.anomalies(hw) == []
    assert outbox.status().backlog == 0
