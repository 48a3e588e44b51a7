"""Trouble that passes: which errors are of the database or the store, and how they are met.

A server that restarts, a lock that is held, a deadlock: these say nothing about the messages at
hand, so they are waited out for as long as they last and never count as a handler's failure. An
outage is told once when it begins and once when it is over.
"""

from __future__ import annotations

import sqlite3

import psycopg
from sqlalchemy import exc

from headwater import outages
from headwater.errors import StoreError
from headwater.outages import store_may_recover

# Primary result codes of SQLite that another try may not meet again.
_SQLITE = {
    sqlite3.SQLITE_BUSY,
    sqlite3.SQLITE_LOCKED,
    sqlite3.SQLITE_IOERR,
    sqlite3.SQLITE_FULL,
    sqlite3.SQLITE_CANTOPEN,
    sqlite3.SQLITE_PROTOCOL,
}
# Classes of SQLSTATE: connection, rolled back for the sake of others, resources, locks, operator,
# system. A query that was cancelled (57014) took too long by itself; a server that only reads
# (25006) is one that is just taking over.
_SQLSTATES = {"08", "40", "53", "55", "57", "58"}
_CANCELLED = "57014"
_READ_ONLY = "25006"
_ROLLED_BACK = "40"
# Who gave way so often in a row is held up after all.
_UNUSUAL = 5


def is_passing(error: BaseException) -> bool:
    """Say whether an error is of the database or the store, and may be gone by the next try."""
    if isinstance(error, StoreError):
        return store_may_recover(error)
    if isinstance(error, exc.TimeoutError):
        return True
    driver: BaseException | None = error
    if isinstance(error, exc.DBAPIError):
        if error.connection_invalidated:
            return True
        driver = error.orig
    if isinstance(driver, sqlite3.Error):
        return getattr(driver, "sqlite_errorcode", 0) & 0xFF in _SQLITE
    state = getattr(driver, "sqlstate", None)
    if isinstance(state, str):
        return state == _READ_ONLY or (state[:2] in _SQLSTATES and state != _CANCELLED)
    # A driver that got no answer at all has no state to tell.
    return isinstance(driver, psycopg.OperationalError | psycopg.InterfaceError) or isinstance(
        error, exc.OperationalError | exc.InterfaceError
    )


def is_locked(error: BaseException) -> bool:
    """Say whether SQLite refused because another connection holds the file."""
    driver = error.orig if isinstance(error, exc.DBAPIError) else error
    return getattr(driver, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_BUSY


class Outage(outages.Outage):
    """The same for a database: one transaction that gave way to another is daily business."""

    def _is_worth_telling(self, error: BaseException, failures: int) -> bool:
        return failures >= _UNUSUAL or not _gave_way(error)


def _gave_way(error: BaseException) -> bool:
    """Say whether the database rolled a transaction back for the sake of another one."""
    driver = error.orig if isinstance(error, exc.DBAPIError) else error
    return str(getattr(driver, "sqlstate", "")).startswith(_ROLLED_BACK)
