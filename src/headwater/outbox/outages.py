"""Trouble that passes: which errors are of the database or the store, and how they are met.

A server that restarts, a lock that is held, a deadlock: these say nothing about the messages at
hand, so they are waited out for as long as they last and never count as a handler's failure. An
outage is told once when it begins and once when it is over.
"""

from __future__ import annotations

import logging
import sqlite3
import time
from collections.abc import Callable

import psycopg
from sqlalchemy import exc

from headwater.errors import AccessDenied, LibraryTooNew, StoreError, StoreTooOld

FIRST_DELAY_S = 0.05
LONGEST_DELAY_S = 2.0

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
        return not isinstance(error, AccessDenied | StoreTooOld | LibraryTooNew)
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


def delay_s(failures: int, first_s: float, longest_s: float) -> float:
    """Say how long to wait after so many failures in a row: twice as long after each."""
    return min(first_s * 2.0 ** min(failures - 1, 60), longest_s)


class Outage:
    """One stretch of trouble after another, each told when it begins and when it is over."""

    def __init__(
        self, who: str, log: logging.Logger, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._who = who
        self._log = log
        self._clock = clock
        self._failures = 0
        self._since = 0.0
        self._told = False

    def meet(self, error: BaseException) -> float:
        """Take note of an error; says how many seconds to wait before the next try."""
        self._failures += 1
        if self._failures == 1:
            self._since = self._clock()
        # One transaction that gave way to another is daily business.
        if not self._told and (self._failures >= _UNUSUAL or not _gave_way(error)):
            self._told = True
            why = str(error).strip().partition("\n")[0]
            self._log.warning("%s is held up, and tries again until it works: %s", self._who, why)
        return delay_s(self._failures, FIRST_DELAY_S, LONGEST_DELAY_S)

    def over(self) -> None:
        """Take note that it works."""
        if self._told:
            took = self._clock() - self._since
            self._log.warning(
                "%s works again, after %.1f s and %d tries", self._who, took, self._failures
            )
        self._failures, self._told = 0, False


def _gave_way(error: BaseException) -> bool:
    """Say whether the database rolled a transaction back for the sake of another one."""
    driver = error.orig if isinstance(error, exc.DBAPIError) else error
    return str(getattr(driver, "sqlstate", "")).startswith(_ROLLED_BACK)
