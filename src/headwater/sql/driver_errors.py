"""The meaning of database drivers' errors, and what may be shown of a database.

A server that restarts, a lock that is held, a deadlock: these say nothing about the current work,
so that another try may succeed. A missing table, a missing right or a violated constraint will be
met again by every try.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import TypeAlias
from urllib.parse import parse_qsl, quote, quote_plus, urlencode

import psycopg
from psycopg import pq
from sqlalchemy import URL, Engine, exc
from sqlalchemy.ext.asyncio import AsyncEngine

from headwater.errors import DatabaseRefused, DatabaseUnreachable, NotCreated, OutboxError

# ── Safe names ────────────────────────────────────────────────────────────────────────────────────
# What may be shown of a database: which one it is, never its credentials.
#
# Every error, repr, log line and plan names a database by ``safe_name``. Parameters of a URL are
# shown by an allow-list, because any other may hold a secret. What a driver says goes through
# ``without_secrets``, because libpq quotes the connection string that it cannot read.


Database: TypeAlias = URL | Engine | AsyncEngine

HIDDEN = "***"
_SHORT = 3

# Parameters that say which database it is, or how it is opened.
_SHOWN = {
    "postgresql": {"host", "hostaddr", "port", "dbname", "user", "service", "sslmode"}
    | {"target_session_attrs"},
    "sqlite": {"mode", "cache", "immutable", "uri"},
}
# Parameters that libpq does not mark as passwords, and that lead to secrets all the same.
_LEAD_TO_SECRETS = {"passfile", "sslkey", "options", "service", "servicefile"}

# As in "password = 'it''s'", in a keyword string or behind the ? of a URL.
_ASSIGNMENT = re.compile(
    r"""([\w.%-]*(?:pass|pwd|secret|token|key|credential|options)[\w.%-]*\s*=\s*)"""
    r"""('(?:[^'\\]|\\.|'')*'?|"[^"]*"?|[^\s&;,'"]+)""",
    re.IGNORECASE,
)
# As in scheme://user:password@host; a password may hold an @ that was not encoded.
_USERINFO = re.compile(r"(://[^:/@\s'\"]*:).*@", re.DOTALL)
# libpq quotes what it cannot read of a connection string.
_UNREADABLE = re.compile(
    r"connection info string|connection option|percent-encoded|\bURI\b|\bsslmode\b|\bservice\b"
)


def safe_name(database: Database) -> str:
    """Return the URL of a database without its secrets and without its driver."""
    url = _url_of(database)
    kind = url.get_backend_name()
    name, _, parameters = (url.database or "").partition("?")
    pairs = [*parse_qsl(parameters)] if kind == "sqlite" else []
    pairs += [
        (key, value) for key, found in sorted(url.normalized_query.items()) for value in found
    ]
    shown = [
        (key, value)
        for key, value in pairs
        if key in _SHOWN.get(kind, ()) and not _holds_secret(value)
    ]
    user = quote(url.username or "", safe=" +") + (f":{HIDDEN}" if url.password else "")
    # After an @ that was not encoded, the rest of a password is parsed as a host.
    host = (url.host or "").rpartition("@")[2]
    place = f"[{host}]" if ":" in host else host
    place += f":{url.port}" if url.port else ""
    place += "" if url.database is None else f"/{_hide(name)}"
    if _split_password(url):
        place = _hide(name.rpartition("@")[2])
    query = f"?{urlencode(shown)}" if shown else ""
    return f"{kind}://{user and f'{user}@'}{place}{query}"


def without_secrets(text: str, database: Database) -> str:
    """Return what was said about a database without the secrets that are quoted in it."""
    url = _url_of(database)
    facts = {url.username, *url.query, "="}
    if not _split_password(url):
        facts |= {url.host, str(url.port or ""), url.database}
    quoted = re.findall(r'"([^"]*)"', text)
    if _UNREADABLE.search(text) and not facts.issuperset(quoted):
        text = re.sub(r'".*"', f'"{HIDDEN}"', text, flags=re.DOTALL)
    for secret in sorted(set(_secrets(url)) - facts - {""}, key=len, reverse=True):
        for spelled in {secret, quote(secret, safe=""), quote_plus(secret)}:
            text = re.sub(rf"(?<!\w){re.escape(spelled)}(?!\w)", HIDDEN, text)
    return _hide(text)


def _url_of(database: Database) -> URL:
    return database if isinstance(database, URL) else database.url


def _split_password(url: URL) -> bool:
    """Return whether a password with an @ and a / in it went into host, port and database."""
    return url.get_backend_name() != "sqlite" and "@" in (url.database or "")


def _hide(text: str) -> str:
    text = _USERINFO.sub(rf"\g<1>{HIDDEN}@", text)
    return _ASSIGNMENT.sub(rf"\g<1>{HIDDEN}", text)


def _holds_secret(text: str) -> bool:
    return _hide(text) != text


def _secrets(url: URL) -> Iterator[str]:
    """Find the values in a URL that must not be shown."""
    if url.password:
        yield str(url.password)
    if url.host and "@" in url.host:
        yield url.host.rpartition("@")[0]
    if _split_password(url):
        rest = (url.database or "").rpartition("@")[0]
        port = f":{url.port}" if url.port else ""
        yield from (f"{url.host}{port}/{rest}", rest, url.host or "")
    harmless = _SHOWN.get(url.get_backend_name(), set()) | _harmless()
    for name, values in url.normalized_query.items():
        for value in values:
            # Hiding very short values would remove ordinary numbers from a text.
            if (name not in harmless and len(value) > _SHORT) or _holds_secret(value):
                yield value


@cache
def _harmless() -> frozenset[str]:
    """Name the parameters of libpq whose values may stand in an error."""
    found = {
        option.keyword.decode() for option in pq.Conninfo.get_defaults() if option.dispchar == b""
    }
    return frozenset(found - _LEAD_TO_SECRETS)


# ── Driver errors ─────────────────────────────────────────────────────────────────────────────────


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
