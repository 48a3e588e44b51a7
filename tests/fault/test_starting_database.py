"""A database that starts is waited for; one that will never take us is one error at once."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator

import psycopg
import pytest
import sqlalchemy as sa

import headwater
from headwater.errors import DatabaseRefused, DatabaseUnreachable
from headwater.outbox import Outbox, Streamer
from headwater.sql.driver_errors import database_may_recover
from tests.support.blocking import Loop
from tests.support.consumers import Desk, numbers, running
from tests.support.entries import entries
from tests.support.postgres import Postgres, postgres_folder
from tests.support.servers import until
from tests.support.stores import Stores
from tests.support.streamers import logged, streaming

pytestmark = pytest.mark.fault


@pytest.fixture
def slow_postgres() -> Iterator[Postgres]:
    """A server that can be held while it starts."""
    with Postgres(postgres_folder(), wal_level="replica") as server:
        yield server


def test_a_streamer_waits_for_a_database_that_starts(
    slow_postgres: Postgres, stores: Stores, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    engine = sa.create_engine(slow_postgres.database())
    outbox = Outbox(engine)
    outbox.create_all()
    with engine.begin() as conn:
        outbox.stage(conn, name, "t", b"v")
    engine.dispose()
    slow_postgres.stop()
    with headwater.connect(stores.url("plain")) as hw, contextlib.ExitStack() as end:
        streamer = Streamer(outbox, hw)
        with slow_postgres.starting():
            with pytest.raises(DatabaseUnreachable) as caught:
                streamer.run_once()
            assert caught.value.answered
            end.enter_context(streaming(streamer))
            until(lambda: logged(caplog))
        until(lambda: hw.stream(name).info().last == 1)
        end.close()
    assert [line.split(",")[0] for line in logged(caplog)] == [
        "the streamer is held up",
        "the streamer works again",
    ]
    engine.dispose()


@pytest.mark.parametrize("manner", ["sync", "async"])
def test_a_consumer_waits_for_a_database_that_starts(
    manner: str,
    slow_postgres: Postgres,
    stores: Stores,
    loop: Loop,
    name: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    used = loop if manner == "async" else None
    with contextlib.closing(
        Desk(manner, stores.url("plain"), slow_postgres.database(), used)
    ) as desk:
        desk.hw.stream(name).write_many(entries(20))
        desk.engine.dispose()
        slow_postgres.stop()
        with contextlib.ExitStack() as end:
            with slow_postgres.starting():
                end.enter_context(running(desk.consumer("c", name)))
                until(lambda: logged(caplog))
            until(lambda: desk.effects("c") == numbers(1, 20))


# ── What never passes ────────────────────────────────────────────────────────────────────────


@pytest.fixture(scope="module")
def guarded() -> Iterator[Postgres]:
    """A server that asks one of its users for a password."""
    with Postgres(postgres_folder()) as server:
        with psycopg.connect(server.conninfo("postgres"), autocommit=True) as admin:
            admin.execute("CREATE ROLE guarded LOGIN PASSWORD 'right'")
            admin.execute("CREATE ROLE idle NOLOGIN")
        rules = server.directory / "data" / "pg_hba.conf"
        rules.write_text(f"local all guarded scram-sha-256\n{rules.read_text()}")
        os.kill(server.pid, signal.SIGHUP)
        until(lambda: refused(server, "guarded:wrong@/postgres") is not None)
        yield server


WRONG = [
    "postgres@/nope",
    "nobody@/postgres",
    "idle@/postgres",
    "guarded:wrong@/postgres",
    "guarded@/postgres",
]


def engine_of(server: Postgres, place: str) -> sa.Engine:
    return sa.create_engine(f"postgresql+psycopg://{place}?host={server.directory}")


def refused(server: Postgres, place: str) -> Exception | None:
    try:
        engine_of(server, place).connect().close()
    except sa.exc.OperationalError as error:
        return error
    return None


@pytest.mark.parametrize("place", WRONG)
def test_a_database_that_refuses_the_connection_is_one_error_at_once(
    place: str, guarded: Postgres, stores: Stores
) -> None:
    error = refused(guarded, place)
    assert error is not None
    assert not database_may_recover(error)
    with headwater.connect(stores.url("plain")) as hw:
        streamer = Streamer(Outbox(engine_of(guarded, place)), hw)
        for work in (streamer.run_once, streamer.run):
            with pytest.raises(DatabaseRefused, match="correct the URL") as caught:
                work()
            assert "wrong" not in str(caught.value)


@pytest.mark.parametrize("manner", ["sync", "async"])
def test_a_consumer_of_a_database_that_is_not_there_ends(
    manner: str, guarded: Postgres, stores: Stores, loop: Loop, name: str
) -> None:
    used = loop if manner == "async" else None
    with contextlib.closing(Desk(manner, stores.url("plain"), guarded.database(), used)) as desk:
        desk.hw.stream(name).write("t", b"v")
        consumer = desk.consumer("c", name)
        desk.engine.dispose()
        guarded.drop(desk.engine.url.render_as_string())
        with pytest.raises((sa.exc.OperationalError, DatabaseRefused), match="does not exist"):
            consumer.run()
