"""A streamer is woken by commits, stops cleanly, and says what it cannot do, on every engine."""

from __future__ import annotations

import asyncio
import os
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
from tests.support.books import Books
from tests.support.servers import until
from tests.support.stores import Stores
from tests.support.streamers import MakeStreamer, drain, streaming
from tests.support.transactions import async_url

on_postgres = pytest.mark.parametrize("database_url", ["postgres"], indirect=True)


@pytest.fixture
def store_url(stores: Stores) -> str:
    return stores.url("plain")


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
    engine: sa.Engine,
    outbox: Outbox,
    books: Books,
    make_streamer: MakeStreamer,
    hw: Headwater,
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
