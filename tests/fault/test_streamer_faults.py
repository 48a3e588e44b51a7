"""Every committed row is in the log once, while streamers, database and store are killed."""

from __future__ import annotations

import logging
import random
import signal
import sqlite3
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa

import headwater
from headwater import Headwater
from headwater.outbox import Outbox, Streamer
from tests.support.books import Books
from tests.support.postgres import Postgres
from tests.support.servers import Server, until
from tests.support.stores import Stores
from tests.support.streamers import logged, streaming
from tests.support.waking import check_quick
from tests.support.zygote import Zygote

pytestmark = pytest.mark.fault

STEPS = [
    "leading",
    "deleted",
    "marked",
    "committing",
    "claimed",
    "appended:first",
    "appended:last",
    "cleared",
]


@pytest.fixture(scope="module")
def zygote() -> Iterator[Zygote]:
    with Zygote() as zygote:
        yield zygote


@pytest.fixture
def store_url(stores: Stores) -> str:
    return stores.url("plain")


# ── Streamers ────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("times", [1, pytest.param(2, marks=pytest.mark.long)])
def test_a_streamer_may_die_at_any_step(
    zygote: Zygote,
    engine: sa.Engine,
    outbox: Outbox,
    books: Books,
    hw: Headwater,
    database_url: str,
    store_url: str,
    name: str,
    step: str,
    times: int,
) -> None:
    for _ in range(4):
        books.commit_one(engine, *["first", "last", "first"] * 10)
    word = step.replace("appended:", f"appended:{name}-")
    # Only the first step of all, and the one after the last row, come once.
    times = 1 if step in ("leading", "cleared") else times
    dying = zygote.start(database_url, store_url, step=word, times=times, batch=50)
    assert zygote.wait(dying) == -signal.SIGKILL
    books.commit_one(engine, "last", "first")
    going_on = zygote.start(database_url, store_url, batch=50)
    until(lambda: outbox.status().backlog == 0)
    assert zygote.end(going_on) == 0
    assert books.anomalies(hw) == []
    assert outbox.status().claimed == 0


@pytest.mark.parametrize("id_header", [True, pytest.param(False, marks=pytest.mark.long)])
def test_a_batch_that_is_repeated_has_the_headers_of_the_first_time(
    zygote: Zygote,
    engine: sa.Engine,
    outbox: Outbox,
    hw: Headwater,
    database_url: str,
    store_url: str,
    name: str,
    id_header: bool,
) -> None:
    with engine.begin() as conn:
        outbox.stage_many(conn, name, [("t", b"1"), ("t", b"2", {"a": b"2"})])
    orders = {"step": f"appended:{name}", "id_header": id_header}
    assert zygote.wait(zygote.start(database_url, store_url, **orders)) == -signal.SIGKILL
    assert outbox.status().claimed == 2
    with engine.begin() as conn:
        outbox.stage(conn, name, "t", b"3")
    going_on = zygote.start(database_url, store_url, id_header=not id_header)
    until(lambda: outbox.status().backlog == 0)
    assert zygote.end(going_on) == 0
    found = [
        (message.value, "hw.outbox-id" in message.headers)
        for message in hw.stream(name).read(1, 9)
        if message
    ]
    assert found == [(b"1", id_header), (b"2", id_header), (b"3", not id_header)]


@pytest.mark.parametrize("seed", [0, *(pytest.param(n, marks=pytest.mark.long) for n in (1, 2))])
def test_streamers_may_die_at_any_moment(
    zygote: Zygote,
    engine: sa.Engine,
    outbox: Outbox,
    books: Books,
    hw: Headwater,
    database_url: str,
    store_url: str,
    seed: int,
) -> None:
    dice = random.Random(seed)
    sizes = [3, 20, 100]
    pids = [zygote.start(database_url, store_url, batch=dice.choice(sizes)) for _ in range(2)]
    for _ in range(12):
        for _ in range(dice.randint(1, 10)):
            books.commit_one(engine, *dice.choices("abc", k=dice.randint(1, 30)))
        dying = dice.randrange(2)
        assert zygote.end(pids[dying], signal.SIGKILL) == -signal.SIGKILL
        pids[dying] = zygote.start(database_url, store_url, batch=dice.choice(sizes))
    until(lambda: outbox.status().backlog == 0)
    assert [zygote.end(pid) for pid in pids] == [0, 0]
    assert books.anomalies(hw) == []


def test_a_stand_by_takes_over_within_seconds(
    zygote: Zygote,
    engine: sa.Engine,
    outbox: Outbox,
    books: Books,
    hw: Headwater,
    database_url: str,
    store_url: str,
) -> None:
    leaders = [zygote.start(database_url, store_url)]
    until(lambda: outbox.status().streaming)

    def took_ms() -> float:
        leader, stand_by = leaders[-1], zygote.start(database_url, store_url)
        books.commit_one(engine, "a")
        until(lambda: books.arrived(hw) == books.count())
        assert str(leader) in outbox.status().producer
        assert zygote.end(leader, signal.SIGKILL) == -signal.SIGKILL
        died = time.monotonic()
        books.commit_one(engine, "a")
        until(lambda: books.arrived(hw) == books.count())
        took = (time.monotonic() - died) * 1000
        assert str(stand_by) in outbox.status().producer
        leaders.append(stand_by)
        return took

    check_quick(took_ms, 5000)
    assert zygote.end(leaders[-1]) == 0
    assert books.anomalies(hw) == []


# ── Database and store ───────────────────────────────────────────────────────────────────────


def test_the_store_may_be_killed_and_come_back(
    engine: sa.Engine, books: Books, caplog: pytest.LogCaptureFixture
) -> None:
    with Server(fsync="always") as server, headwater.connect(server.url) as hw:
        streamer = Streamer(Outbox(engine), hw, batch=10)
        with streaming(streamer), caplog.at_level(logging.INFO):
            for _ in range(2):
                for _ in range(20):
                    books.commit_one(engine, "a", "b", "a")
                server.kill()
                books.commit_one(engine, "a", "b")
                until(lambda: streamer.progress.trouble)
                assert "store" in str(streamer.progress.trouble)
                server.restart()
                until(lambda: books.arrived(hw) >= books.count())
                until(lambda: streamer.progress.trouble is None)
        assert books.anomalies(hw) == []
        lines = logged(caplog)
        assert len([line for line in lines if "held up" in line]) == 2
        assert len([line for line in lines if "works again" in line]) == 2
        assert len(lines) == 4


def test_a_streamer_can_be_stopped_while_the_store_is_away(
    engine: sa.Engine, books: Books, outbox: Outbox
) -> None:
    with Server(fsync="always") as server, headwater.connect(server.url) as hw:
        streamer = Streamer(outbox, hw)
        with streaming(streamer):
            until(lambda: streamer.progress.leading)
            server.kill()
            books.commit_one(engine, "a")
            until(lambda: streamer.progress.trouble)
            asked = time.monotonic()
        assert time.monotonic() - asked < 5
        assert outbox.status().claimed == 1
        server.restart()
        with Streamer(outbox, hw) as other:
            assert other.run_once() == 1
        assert books.anomalies(hw) == []


@pytest.mark.parametrize("end", ["kill", "stop"])
def test_postgres_may_be_killed_and_come_back(
    own_postgres: Postgres, hw: Headwater, name: str, caplog: pytest.LogCaptureFixture, end: str
) -> None:
    engine = sa.create_engine(own_postgres.database(), pool_pre_ping=True)
    outbox = Outbox(engine)
    outbox.create_all()
    books = Books(outbox, name)
    streamers = [Streamer(outbox, hw, batch=10) for _ in range(2)]
    with streaming(*streamers), caplog.at_level(logging.INFO):
        for _ in range(2):
            for _ in range(20):
                books.commit_one(engine, "a", "b", "a")
            getattr(own_postgres, end)()
            until(lambda: all(streamer.progress.trouble for streamer in streamers))
            own_postgres.start()
            books.commit_one(engine, "a", "b")
            until(lambda: books.arrived(hw) >= books.count())
            until(lambda: not any(streamer.progress.trouble for streamer in streamers))
    assert books.anomalies(hw) == []
    lines = logged(caplog)
    assert len([line for line in lines if "held up" in line]) == 4, lines
    assert len([line for line in lines if "works again" in line]) == 4, lines
    engine.dispose()


def test_a_file_that_is_locked_for_long_is_waited_for(
    hw: Headwater, name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    engine = sa.create_engine(f"sqlite:///{tmp_path}/app.db", connect_args={"timeout": 0.1})
    outbox = Outbox(engine)
    outbox.create_all()
    books = Books(outbox, name)
    books.commit_one(engine, "a")
    streamer = Streamer(outbox, hw)
    blocker = sqlite3.connect(tmp_path / "app.db", isolation_level=None)
    blocker.execute("BEGIN IMMEDIATE")
    with streaming(streamer), caplog.at_level(logging.INFO):
        until(lambda: "locked" in str(streamer.progress.trouble))
        blocker.execute("ROLLBACK")
        until(lambda: books.arrived(hw) == 1)
    blocker.close()
    assert len(logged(caplog)) == 2
    assert books.anomalies(hw) == []
    engine.dispose()


def test_a_database_whose_connections_are_cut_is_connected_to_again(
    postgres: Postgres, hw: Headwater, name: str
) -> None:
    engine = sa.create_engine(postgres.database())
    outbox = Outbox(engine)
    outbox.create_all()
    books = Books(outbox, name)
    cut = "SELECT pg_terminate_backend(pid) FROM pg_locks WHERE locktype = 'advisory'"

    def stage_and_cut(times: int) -> None:
        for _ in range(times):
            books.commit_one(engine, "a", "b")
            with engine.begin() as conn:
                conn.exec_driver_sql(cut)

    def settled() -> Callable[[], bool]:
        return lambda: books.arrived(hw) >= books.count()

    with streaming(Streamer(outbox, hw, batch=3)):
        for _ in range(5):
            stage_and_cut(3)
            until(settled())
    assert books.anomalies(hw) == []
    engine.dispose()
