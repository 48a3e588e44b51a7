"""Every committed row is in its stream once, and what is there is deleted, no more and no less."""

from __future__ import annotations

import asyncio
import logging
import os
import random
import threading
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.pool import StaticPool

from headwater import Headwater
from headwater.errors import (
    DatabaseRefused,
    DatabaseUnreachable,
    InvalidInput,
    NotCreated,
    RowRefused,
)
from headwater.outbox import Outbox, Streamer
from headwater.outbox import streamer as streamer_module
from headwater.outbox.postgres import PostgresDatabase
from headwater.outbox.sqlite import SqliteDatabase
from tests.support.books import Books, Transaction
from tests.support.servers import until
from tests.support.stores import Stores
from tests.support.streamers import MakeStreamer, drain, streaming
from tests.support.transactions import async_url

on_postgres = pytest.mark.parametrize("database_url", ["postgres"], indirect=True)


@pytest.fixture
def store_url(stores: Stores) -> str:
    return stores.url("plain")


# ── From the table to the log ────────────────────────────────────────────────────────────────


def test_rows_go_to_their_streams_and_leave_the_outbox(
    engine: sa.Engine, outbox: Outbox, streamer: Streamer, hw: Headwater, name: str
) -> None:
    with engine.begin() as conn:
        outbox.stage(conn, name, "t1", b"\x00\xff")
        outbox.stage_many(conn, name, [("t2", "two"), ("ünï", {"n": 3})])
    assert streamer.run_once() == 3
    found = [(m.tag, m.value) for m in hw.stream(name).read(1, 10) if m]
    assert found == [("t1", b"\x00\xff"), ("t2", b"two"), ("ünï", b'{"n":3}')]
    assert outbox.status().backlog == 0
    assert streamer.run_once() == 0


def test_what_is_not_committed_is_never_seen(
    engine: sa.Engine, outbox: Outbox, streamer: Streamer, hw: Headwater, name: str
) -> None:
    conn = engine.connect()
    outbox.stage(conn, name, "t", b"")
    assert streamer.run_once() == 0
    conn.rollback()
    conn.close()
    assert streamer.run_once() == 0
    assert hw.stream(name).info().last == 0


@pytest.mark.parametrize("count", [0, 1, 2, 999, 1000, 1001, 2500, 20_000, 43_210])
def test_any_backlog_goes_through(
    engine: sa.Engine, outbox: Outbox, streamer: Streamer, hw: Headwater, name: str, count: int
) -> None:
    with engine.begin() as conn:
        outbox.stage_many(conn, name, [(str(n), b"") for n in range(1, count + 1)])
    assert drain(streamer) == count
    assert outbox.status().backlog == 0
    offsets = 0
    for batch in hw.stream(name).scan():
        assert batch.column("offset").to_pylist() == [int(t.as_py()) for t in batch.column("tag")]
        offsets += batch.num_rows
    assert offsets == count


@pytest.mark.parametrize("batch", [1, 7, 100, 10_000])
def test_batches_may_have_any_size(
    engine: sa.Engine, books: Books, make_streamer: MakeStreamer, hw: Headwater, batch: int
) -> None:
    for _ in range(10):
        books.commit_one(engine, "a", "b", "a")
    streamer = make_streamer(batch=batch)
    assert streamer.run_once() == min(batch, 30)
    drain(streamer)
    assert books.anomalies(hw) == []


@pytest.mark.parametrize("batch", [0, -1, 10_001, 1.5, None])
def test_a_batch_is_a_number_of_rows(outbox: Outbox, hw: Headwater, batch: Any) -> None:
    with pytest.raises(InvalidInput, match="batch"):
        Streamer(outbox, hw, batch=batch)


def test_many_streams_share_a_batch(
    engine: sa.Engine, books: Books, streamer: Streamer, hw: Headwater
) -> None:
    streams = [f"s{n}" for n in range(150)]
    for seed in range(5):
        books.commit_one(engine, *random.Random(seed).sample(streams, len(streams)))
    assert streamer.run_once() == 750
    assert books.anomalies(hw) == []
    assert streamer.progress.batches == 1


def test_large_values_go_in_several_batches(
    engine: sa.Engine, outbox: Outbox, streamer: Streamer, hw: Headwater, name: str
) -> None:
    sizes = [12_000_000, 16 * 1024 * 1024, 5, 16 * 1024 * 1024, 16 * 1024 * 1024, 7]
    with engine.begin() as conn:
        outbox.stage_many(conn, name, [(str(n), bytes(size)) for n, size in enumerate(sizes)])
    assert [streamer.run_once() for _ in range(4)] == [3, 1, 2, 0]
    found = hw.stream(name).read(1, 10)
    assert [(m.tag, len(m.value)) for m in found if m] == [
        (str(n), size) for n, size in enumerate(sizes)
    ]


def test_the_order_of_every_stream_is_that_of_the_transaction(
    engine: sa.Engine, books: Books, make_streamer: MakeStreamer, hw: Headwater
) -> None:
    for seed in range(20):
        books.commit_one(engine, *random.Random(seed).choices("abc", k=17))
    drain(make_streamer(batch=10))
    assert books.anomalies(hw) == []


# ── Exactly what was appended is deleted ─────────────────────────────────────────────────────


def test_rows_that_come_while_a_batch_is_on_its_way_stay_for_the_next(
    engine: sa.Engine, outbox: Outbox, books: Books, make_streamer: MakeStreamer, hw: Headwater
) -> None:
    def interfere(step: str) -> None:
        if step.startswith(("claimed", "appended")) and len(books.transactions) < 5:
            books.commit_one(engine, "a", "b")

    streamer = make_streamer(steps=interfere, batch=2)
    books.commit_one(engine, "a", "a")
    assert streamer.run_once() == 2
    assert outbox.status().backlog == books.count() - 2 > 0
    drain(streamer)
    assert books.anomalies(hw) == []


def test_a_row_with_a_lower_id_that_comes_later_is_not_skipped(
    engine: sa.Engine, streamer: Streamer, hw: Headwater, name: str
) -> None:
    insert = sa.text(
        "INSERT INTO headwater_outbox (id, stream, tag, value) "
        f"{'OVERRIDING SYSTEM VALUE' if engine.dialect.name == 'postgresql' else ''} "
        "VALUES (:id, :stream, :tag, :value)"
    )
    for order, number in enumerate([1000, 5, 999, 1, 1001, 2], start=1):
        with engine.begin() as conn:
            conn.execute(insert, {"id": number, "stream": name, "tag": str(number), "value": b"v"})
        assert streamer.run_once() == 1
        assert hw.stream(name).info().last == order


@on_postgres
def test_a_slow_transaction_is_neither_skipped_nor_waited_for(
    engine: sa.Engine, books: Books, make_streamer: MakeStreamer, hw: Headwater
) -> None:
    streamer = make_streamer(batch=3)
    slow, conn = books.begin(), engine.connect()
    books.stage(conn, slow, "a", "b")
    for _ in range(4):
        books.commit_one(engine, "a", "b")
    assert drain(streamer) == 8
    books.stage(conn, slow, "a")
    books.commit_one(engine, "a", "b")
    conn.commit()
    slow.committed = True
    conn.close()
    assert drain(streamer) == 5
    assert books.anomalies(hw) == []


@on_postgres
@pytest.mark.parametrize("seed", range(25))
def test_any_schedule_of_commits_is_streamed_once_and_in_order(
    engine: sa.Engine, books: Books, make_streamer: MakeStreamer, hw: Headwater, seed: int
) -> None:
    dice = random.Random(seed)
    streamers = [make_streamer(batch=dice.choice([1, 2, 3, 5])) for _ in range(2)]
    opened: list[tuple[Transaction, sa.Connection]] = []
    for _ in range(120):
        what = dice.choice(["begin", "stage", "stage", "stage", "commit", "abort", "stream"])
        if what == "begin" and len(opened) < 4:
            opened.append((books.begin(), engine.connect()))
        elif what == "stream":
            dice.choice(streamers).run_once()
        elif opened and what == "stage":
            transaction, conn = dice.choice(opened)
            books.stage(conn, transaction, *dice.choices("ab", k=dice.randint(1, 3)))
        elif opened and what in ("commit", "abort"):
            transaction, conn = opened.pop(dice.randrange(len(opened)))
            (conn.commit if what == "commit" else conn.rollback)()
            transaction.committed = what == "commit"
            conn.close()
    for _, conn in opened:
        conn.close()
    drain(streamers[0])
    assert books.anomalies(hw) == []


# ── One streamer leads, and the next one finishes what it left half-way, each row once ───────────

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


# ── A streamer is woken by commits, stops cleanly, and says what it cannot do, on every engine ───

# ── Waking, stopping ─────────────────────────────────────────────────────────────────────────


def test_a_commit_wakes_the_streamer_at_once(
    engine: sa.Engine,
    books: Books,
    streamer: Streamer,
    hw: Headwater,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(streamer_module, "_LOOK_S", 600.0)
    with streaming(streamer):
        for count in range(1, 6):
            books.commit_one(engine, "a")
            until(lambda: books.arrived(hw) == count)  # noqa: B023  called at once
        until(lambda: streamer.progress.leading)


def test_a_streamer_that_is_stopped_leaves_nothing_half_way(
    engine: sa.Engine, outbox: Outbox, books: Books, make_streamer: MakeStreamer, hw: Headwater
) -> None:
    def stop(step: str) -> None:
        if step == "claimed":
            stopped.stop()

    stopped = make_streamer(batch=2, steps=stop)
    books.commit_one(engine, "a", "a", "a", "a", "a")
    stopped.run()
    assert stopped.progress.rows == 2
    assert (outbox.status().backlog, outbox.status().claimed) == (3, 0)
    assert outbox.status().streaming is False
    drain(make_streamer())
    assert books.anomalies(hw) == []


def test_a_streamer_that_was_stopped_before_it_ran_does_not_run(
    engine: sa.Engine, outbox: Outbox, books: Books, streamer: Streamer
) -> None:
    books.commit_one(engine, "a")
    streamer.stop()
    streamer.run()
    assert outbox.status().backlog == 1


def test_the_status_shows_what_waits_and_who_streams(
    engine: sa.Engine, outbox: Outbox, books: Books, make_streamer: MakeStreamer
) -> None:
    empty = outbox.status()
    assert (empty.backlog, empty.exact, empty.oldest_ms, empty.streaming) == (0, True, None, False)
    books.commit_one(engine, "a", "b")
    waiting = outbox.status()
    assert (waiting.backlog, waiting.claimed) == (2, 0)
    assert waiting.oldest_ms is not None
    assert 0 <= waiting.oldest_ms < 60_000
    seen = []
    streamer = make_streamer(steps=lambda step: seen.append((step, outbox.status())))
    streamer.run_once()
    during = dict(seen)["claimed"]
    assert (during.backlog, during.claimed, during.batch, during.streaming) == (2, 2, 1, True)
    assert during.producer.startswith("outbox:")
    assert during.leader is not None
    assert during.leader.endswith(f" pid {os.getpid()}"), "the process that holds the lock"
    drain(make_streamer())
    after = outbox.status()
    assert (after.streaming, after.leader) == (False, None)
    assert after.rows_per_s == pytest.approx(2 / 60), "two rows in the last minute"


# ── What cannot be ───────────────────────────────────────────────────────────────────────────


def test_missing_tables_are_an_error(engine: sa.Engine, hw: Headwater) -> None:
    with Streamer(Outbox(engine), hw) as streamer:
        with pytest.raises(NotCreated, match="create_all"):
            streamer.run_once()
        with pytest.raises(NotCreated, match="create_all"):
            streamer.run()
        with pytest.raises(NotCreated, match="create_all"):
            Outbox(engine).status()


@pytest.mark.parametrize(
    "url",
    [
        "sqlite:////nowhere/at/all/app.db",
        "postgresql+psycopg://u:secret@127.0.0.1:1/app",
        "postgresql+psycopg://u@/app?host=/nowhere",
    ],
)
def test_a_database_that_is_away_at_first_contact_is_an_error(hw: Headwater, url: str) -> None:
    with Streamer(Outbox(sa.create_engine(url)), hw) as streamer:
        with pytest.raises(DatabaseUnreachable) as caught:
            streamer.run_once()
        assert "secret" not in str(caught.value)
        with pytest.raises(DatabaseUnreachable):
            streamer.run()


@on_postgres
def test_a_user_without_rights_is_refused(
    engine: sa.Engine, outbox: Outbox, hw: Headwater, name: str
) -> None:
    with engine.begin() as conn:
        conn.exec_driver_sql(f'CREATE ROLE "{name}" LOGIN')
    other = sa.create_engine(engine.url.set(username=name))
    with Streamer(Outbox(other), hw) as streamer, pytest.raises(DatabaseRefused, match="rights"):
        streamer.run_once()
    other.dispose()
    assert outbox.status().backlog == 0


@pytest.mark.parametrize(
    "bad",
    [
        {"stream": ""},
        {"stream": "two words"},
        {"stream": "zero\u200bwidth"},
        {"stream": "x" * 201},
        {"tag": "ü" * 2049},
        {"value": bytes(16 * 1024 * 1024 + 1)},
    ],
    ids=["empty", "space", "zero width", "long stream", "long tag", "large value"],
)
def test_a_row_that_the_log_cannot_take_is_an_error_and_stays(
    engine: sa.Engine,
    outbox: Outbox,
    streamer: Streamer,
    hw: Headwater,
    name: str,
    bad: dict[str, object],
) -> None:
    """It was not staged, but inserted by hand or from another language."""
    insert = sa.text(
        "INSERT INTO headwater_outbox (stream, tag, value) VALUES (:stream, :tag, :value)"
    )
    with engine.begin() as conn:
        conn.execute(insert, {"stream": f"{name}-bad", "tag": "t", "value": b""} | bad)
        outbox.stage(conn, name, "t", b"")
    for _ in range(2):
        with pytest.raises(RowRefused, match="delete it"):
            streamer.run_once()
    with pytest.raises(RowRefused):
        streamer.run()
    with engine.begin() as conn:
        conn.exec_driver_sql(f"DELETE FROM headwater_outbox WHERE stream <> '{name}'")
    assert drain(streamer) == 1
    assert hw.stream(name).info().last == 1


@pytest.mark.parametrize("bad", [None, 5, "sqlite://"])
def test_a_streamer_needs_an_outbox_and_a_store(outbox: Outbox, hw: Headwater, bad: Any) -> None:
    with pytest.raises(InvalidInput, match="Outbox"):
        Streamer(bad, hw)
    with pytest.raises(InvalidInput, match=r"headwater\.connect"):
        Streamer(outbox, bad)


# ── Other engines ────────────────────────────────────────────────────────────────────────────


def test_the_outbox_of_an_async_engine_is_streamed(
    engine: sa.Engine, hw: Headwater, name: str
) -> None:
    async def stage() -> Outbox[Any]:
        other = create_async_engine(async_url(engine.url))
        outbox = Outbox(other)
        await outbox.create_all()
        async with other.begin() as conn:
            await outbox.stage(conn, name, "t", b"v")
        await other.dispose()
        return outbox

    with Streamer(asyncio.run(stage()), hw) as streamer:
        assert streamer.run_once() == 1
    assert hw.stream(name).info().last == 1


def test_an_outbox_in_memory_is_streamed_by_who_stages(hw: Headwater, name: str) -> None:
    engine = sa.create_engine(
        "sqlite://", poolclass=StaticPool, connect_args={"check_same_thread": False}
    )
    outbox = Outbox(engine)
    outbox.create_all()
    with Streamer(outbox, hw, batch=2) as streamer:
        for last in (5, 6):
            with engine.begin() as conn:
                outbox.stage_many(conn, name, [("t", b"v")] * (last - hw.stream(name).info().last))
            drain(streamer)
            assert hw.stream(name).info().last == last
        with pytest.raises(InvalidInput, match=r"one connection for all threads.* run_once"):
            streamer.run()
    engine.dispose()


def test_outboxes_in_memory_do_not_share_a_leader(hw: Headwater, name: str) -> None:
    outboxes = [Outbox(sa.create_engine("sqlite://", poolclass=StaticPool)) for _ in range(2)]
    for outbox in outboxes:
        outbox.create_all()
        with outbox.engine.begin() as conn:
            outbox.stage(conn, name, "t", b"")
    answers: list[int] = []
    second = Streamer(outboxes[1], hw)
    first = Streamer(outboxes[0], hw, steps=lambda _: answers.append(second.run_once()))
    assert first.run_once() == 1
    assert sum(answers) == 1
    for outbox in outboxes:
        outbox.engine.dispose()


def test_asking_for_the_status_does_not_take_the_lead_away(
    engine: sa.Engine, outbox: Outbox, books: Books, make_streamer: MakeStreamer
) -> None:
    over = threading.Event()

    def ask() -> None:
        while not over.is_set():
            outbox.status()

    thread = threading.Thread(target=ask)
    thread.start()
    try:
        for _ in range(30):
            books.commit_one(engine, "a")
            assert make_streamer().run_once() == 1
    finally:
        over.set()
        thread.join()


def test_an_engine_that_begins_every_transaction_itself_is_streamed(
    engine: sa.Engine, books: Books, make_streamer: MakeStreamer, hw: Headwater
) -> None:
    if engine.dialect.name == "sqlite":

        @sa.event.listens_for(engine, "begin")
        def begin(conn: sa.Connection) -> None:
            conn.exec_driver_sql("BEGIN")

        @sa.event.listens_for(engine, "connect")
        def connect(connection: Any, _: Any) -> None:
            connection.isolation_level = None

    else:
        engine.update_execution_options(isolation_level="SERIALIZABLE")
    engine.dispose()
    books.commit_one(engine, "a", "b")
    assert drain(make_streamer()) == 2
    assert books.anomalies(hw) == []
