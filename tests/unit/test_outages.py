"""Which errors are waited out, for how long, and what is said about them."""

from __future__ import annotations

import logging
import sqlite3
import time

import psycopg
import pytest
from sqlalchemy import exc, make_url

from headwater import errors
from headwater.kernel.failures import LONGEST_DELAY_S, delay_s
from headwater.outbox.consuming import DatabaseOutage, is_passing

URL = make_url("postgresql://me:hush-hush@here/app")


def of_sqlite(code: int) -> exc.OperationalError:
    error = sqlite3.OperationalError("as SQLite says it")
    error.sqlite_errorcode = code
    return exc.OperationalError("UPDATE t", None, error)


def of_postgres(state: str) -> exc.DBAPIError:
    kind = psycopg.errors.lookup(state)
    return exc.DBAPIError("UPDATE t", None, kind("as Postgres says it"))


PASSING = [
    errors.StoreUnreachable("here", "it is away"),
    errors.OutcomeUnknown("hw_stream_write", "it broke"),
    errors.EmbeddedServerFailed("it does not come up"),
    errors.StoreError("it is out of memory"),
    exc.TimeoutError("no connection is free"),
    exc.DBAPIError("SELECT 1", None, ValueError("closed"), connection_invalidated=True),
    exc.OperationalError("SELECT 1", None, psycopg.OperationalError("no answer")),
    exc.InterfaceError("SELECT 1", None, psycopg.InterfaceError("closed")),
    psycopg.OperationalError("no answer"),
    *(
        psycopg.OperationalError(f"connection failed: connection to server failed: {words}")
        for words in (
            "Connection refused",
            "FATAL:  the database system is starting up",
            "FATAL:  the database system is not yet accepting connections",
            "FATAL:  sorry, too many clients already",
        )
    ),
    psycopg.OperationalError("failed to resolve host 'h': Name or service not known"),
    of_sqlite(sqlite3.SQLITE_BUSY),
    of_sqlite(sqlite3.SQLITE_BUSY_SNAPSHOT),
    of_sqlite(sqlite3.SQLITE_FULL),
    of_sqlite(sqlite3.SQLITE_IOERR_WRITE),
    *(of_postgres(s) for s in ("40001", "40P01", "53300", "55P03", "57P01", "57P03", "08006")),
    of_postgres("25006"),
]
LASTING = [
    ValueError("of the handler's own"),
    ConnectionError("to somebody else"),
    errors.AccessDenied("here", "no", "ask"),
    errors.StoreTooOld("here", "Redis 6"),
    errors.FormatTooNew("stream 's'", 2, 1),
    errors.StoreUnreachable("here", "its certificate is refused", lasting=True),
    errors.EmbeddedServerFailed("its directory is gone", lasting=True),
    errors.GapError("c", "s", 1, 2),
    *(
        psycopg.OperationalError(f"connection failed: connection to server failed: {words}")
        for words in (
            'FATAL:  database "nope" does not exist',
            'FATAL:  role "nobody" does not exist',
            'FATAL:  role "nobody" is not permitted to log in',
            'FATAL:  password authentication failed for user "me"',
            "fe_sendauth: no password supplied",
            'FATAL:  no pg_hba.conf entry for host "[local]"',
            'FATAL:  pg_hba.conf rejects connection for host "[local]"',
        )
    ),
    of_sqlite(sqlite3.SQLITE_ERROR),
    of_sqlite(sqlite3.SQLITE_CONSTRAINT_UNIQUE),
    *(of_postgres(state) for state in ("23505", "42P01", "42501", "22012", "57014")),
]


@pytest.mark.parametrize("error", PASSING, ids=repr)
def test_trouble_of_database_and_store_passes(error: Exception) -> None:
    assert is_passing(error)


@pytest.mark.parametrize("error", LASTING, ids=repr)
def test_what_another_try_would_meet_again_does_not(error: Exception) -> None:
    assert not is_passing(error)


def test_delays_double_up_to_the_longest() -> None:
    assert [delay_s(n, 1, 10) for n in (1, 2, 3, 4, 5, 6, 10_000)] == [1, 2, 4, 8, 10, 10, 10]


def test_an_outage_is_logged_twice_however_long_it_lasts(caplog: pytest.LogCaptureFixture) -> None:
    now = 100.0
    outage = DatabaseOutage("consumer 'c'", logging.getLogger("test"), URL, lambda: now)
    delays = []
    for _ in range(50):
        delays.append(outage.meet(ValueError("gone\nand more")))
        now += 1
        assert outage.lasts_s == now - 100
    outage.over()
    outage.over()
    assert outage.lasts_s == 0
    assert delays[0] < delays[1] < delays[-1] == LONGEST_DELAY_S
    assert [record.getMessage() for record in caplog.records] == [
        "consumer 'c' is held up, and retries until it works: gone",
        "consumer 'c' works again, after 50.0 s and 50 tries",
    ]


def test_what_is_logged_of_an_outage_shows_no_secret(caplog: pytest.LogCaptureFixture) -> None:
    outage = DatabaseOutage("consumer 'c'", logging.getLogger("test"), URL, time.monotonic)
    outage.meet(psycopg.OperationalError("no answer to hush-hush"))
    assert [record.getMessage() for record in caplog.records] == [
        "consumer 'c' is held up, and retries until it works: no answer to ***"
    ]


def test_a_transaction_that_was_rolled_back_for_another_is_not_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    outage = DatabaseOutage("consumer 'c'", logging.getLogger("test"), URL, time.monotonic)
    for _ in range(20):
        outage.meet(of_postgres("40001"))
        outage.meet(of_postgres("40P01"))
        outage.over()
    assert caplog.records == []
    for _ in range(20):
        outage.meet(of_postgres("40001"))
    outage.over()
    assert len(caplog.records) == 2, "unless there is no end to it"
