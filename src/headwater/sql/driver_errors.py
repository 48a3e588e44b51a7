"""The meaning of database drivers' errors: which are temporary, which are final, and why.

A server that restarts, a lock that is held, a deadlock: these say nothing about the current work,
so that another try may succeed. A missing table, a missing right or a violated constraint will be
met again by every try.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager

import psycopg
from sqlalchemy import exc

from headwater.errors import DatabaseRefused, DatabaseUnreachable, NotCreated, OutboxError
from headwater.sql.safe_names import Database, safe_name, without_secrets

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
# (25006) is a standby that is just taking over.
_SQLSTATES = {"08", "40", "53", "55", "57", "58"}
_CANCELLED = "57014"
_READ_ONLY = "25006"
_ROLLED_BACK = "40"
_NO_TABLE = "42P01"
_NO_RIGHT = "42501"
# A file or a connection that may only be read, or that the system does not let us use.
_SQLITE_NO_RIGHT = {sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM, sqlite3.SQLITE_AUTH}
# A server that starts, stops or has as many connections as it may have.
_NOT_READY = {"57P01", "57P02", "57P03", "53300"}
# While it connects, libpq passes on the words of the server and not its codes. What else it says is
# taken for an outage.
_NOT_READY_WORDS = re.compile(
    r"database system is (starting up|shutting down|not (yet )?accepting connections|in recovery)"
    r"|too many (clients|connections)|connection slots are reserved|terminating connection"
)
_REFUSING_WORDS = re.compile(
    r'(database|role) "[^"]*" does not exist|is not permitted to log in'
    r"|(password|Peer|Ident|certificate) authentication failed|no password supplied"
    r"|no pg_hba\.conf entry|pg_hba\.conf rejects|permission denied for database"
    r"|certificate verify failed|server does not support SSL|unsupported frontend protocol"
)


@contextmanager
def translating_errors(database: Database, *, table: str | None = None) -> Iterator[None]:
    """Raise an error of a driver as one of the OutboxError tree; see ``translated``."""
    try:
        yield
    except (exc.SQLAlchemyError, psycopg.Error, sqlite3.Error) as error:
        found = translated(error, database, table=table)
        raise found from found.__cause__


@contextmanager
def naming_missing_rights(database: Database) -> Iterator[None]:
    """Raise DatabaseRefused if a statement on our own tables needs a right that the user lacks.

    Other errors pass as they are.
    """
    try:
        yield
    except exc.DBAPIError as error:
        if not lacks_right(error):
            raise
        found = translated(error, database)
        raise found from found.__cause__


def translated(error: Exception, database: Database, *, table: str | None = None) -> OutboxError:
    """Return what an error of a driver means: the database is down, or it refuses.

    With ``table``, a missing table is NotCreated, which names that one. The error is the cause of
    what is returned, unless it shows a secret.
    """
    found: OutboxError
    if table is not None and is_missing_table(error):
        found = NotCreated(table)
    elif database_may_recover(error):
        found = DatabaseUnreachable(
            safe_name(database), reason_of(error, database), answered=_is_not_ready(error)
        )
    else:
        found = DatabaseRefused(safe_name(database), reason_of(error, database))
    found.__cause__ = error if _shows_no_secret(error, database) else None
    return found


def reason_of(error: BaseException, database: Database) -> str:
    """Return what a driver says, on one line and without secrets."""
    driver = _driver_error(error)
    # After it Postgres repeats the statement and points into it.
    text = str(driver).partition("\nLINE ")[0]
    words = " ".join(text.split()).rstrip(";")
    return without_secrets(words, database) or type(driver).__name__


def database_may_recover(error: BaseException) -> bool:
    """Return whether an error is the database's own, and may be gone by the next try."""
    if isinstance(error, exc.TimeoutError):
        return True
    if isinstance(error, exc.DBAPIError) and error.connection_invalidated:
        return True
    driver = _driver_error(error)
    if isinstance(driver, sqlite3.Error):
        return _sqlite_code(driver) in _SQLITE
    state = getattr(driver, "sqlstate", None)
    if isinstance(state, str):
        return state == _READ_ONLY or (state[:2] in _SQLSTATES and state != _CANCELLED)
    if _REFUSING_WORDS.search(str(driver)):
        return False
    # A driver that got no answer at all has no state to report.
    return isinstance(driver, psycopg.OperationalError | psycopg.InterfaceError) or isinstance(
        error, exc.OperationalError | exc.InterfaceError
    )


def _is_not_ready(error: BaseException) -> bool:
    """Return whether the server is there and says that it cannot serve now."""
    driver = _driver_error(error)
    state = getattr(driver, "sqlstate", None)
    return state in _NOT_READY if state else _NOT_READY_WORDS.search(str(driver)) is not None


def is_locked(error: BaseException) -> bool:
    """Return whether SQLite refused because another connection holds the file."""
    return _sqlite_code(_driver_error(error)) == sqlite3.SQLITE_BUSY


def is_missing_table(error: BaseException) -> bool:
    """Return whether a statement failed because a table was never created."""
    driver = _driver_error(error)
    return getattr(driver, "sqlstate", None) == _NO_TABLE or (
        isinstance(driver, sqlite3.OperationalError) and "no such table" in str(driver)
    )


def lacks_right(error: BaseException) -> bool:
    """Return whether a statement failed because the user may not run it."""
    driver = _driver_error(error)
    state = getattr(driver, "sqlstate", None)
    return state == _NO_RIGHT or _sqlite_code(driver) in _SQLITE_NO_RIGHT


def was_rolled_back_for_others(error: BaseException) -> bool:
    """Return whether the database rolled a transaction back for the sake of another one."""
    return str(getattr(_driver_error(error), "sqlstate", "")).startswith(_ROLLED_BACK)


def _driver_error(error: BaseException) -> BaseException:
    if type(error).__module__ == "django.db.utils" and error.__cause__:
        return error.__cause__
    return error.orig if isinstance(error, exc.DBAPIError) and error.orig else error


def _sqlite_code(error: BaseException) -> int:
    return int(getattr(error, "sqlite_errorcode", 0)) & 0xFF


def _shows_no_secret(error: BaseException, database: Database) -> bool:
    """Return whether an error may be shown with all that a traceback shows before it."""
    at: BaseException | None = error
    while at is not None:
        if without_secrets(str(at), database) != str(at):
            return False
        at = at.__cause__ or at.__context__
    return True
