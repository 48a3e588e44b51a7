"""From the URL of a database to an engine, or to a connection that shares no engine."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, unquote, urlsplit

import psycopg
from psycopg.conninfo import make_conninfo
from sqlalchemy import URL, Engine, create_engine, exc, make_url

from headwater.errors import DatabaseUnreachable, InvalidInput
from headwater.sql.driver_errors import reason_of, safe_name

if TYPE_CHECKING:
    from adbc_driver_manager.dbapi import Connection as ArrowConnection


# ── Engines ───────────────────────────────────────────────────────────────────────────────────────


# The dialects of SQLAlchemy that are known here, and the folder that holds SQL for each.
DIALECTS = {"sqlite": "sqlite", "postgresql": "postgres"}

_POSTGRES = {"postgres", "postgresql"}
_FILE = "file:"


def parse_url(text: str) -> URL:
    """Return the parts of ``sqlite:///file`` or ``postgresql://user@host/database``.

    Postgres is reached by psycopg unless the URL names a driver. Raises InvalidInput, which does
    not show the text: what is wrong with it may be in the middle of a password.
    """
    try:
        url = make_url(text)
    except (exc.ArgumentError, ValueError):
        raise _unknown(text) from None
    if url.drivername in _POSTGRES:
        url = url.set(drivername="postgresql+psycopg")
    if url.get_backend_name() not in DIALECTS:
        raise _unknown(text)
    return url


@contextmanager
def open_engine(text: str, *, new: bool = False) -> Iterator[Engine]:
    """Yield an engine for a URL; its connections are closed at the end.

    A SQLite file must exist unless ``new``: a typing error must not create an empty one; its folder
    must exist anyway. Raises InvalidInput and DatabaseUnreachable, which never show a password.
    """
    url = parse_url(text)
    try:
        engine = create_engine(url)
    except (exc.ArgumentError, exc.NoSuchModuleError, ValueError, TypeError, ImportError):
        raise _unknown(text) from None
    file = sqlite_file(url)
    if file is not None and not new and not file.exists():
        raise DatabaseUnreachable(safe_name(url), "there is no such file")
    if file is not None and not file.parent.is_dir():
        raise DatabaseUnreachable(safe_name(url), f"there is no folder {file.parent}")
    try:
        yield engine
    finally:
        engine.dispose()


def is_in_memory(url: URL) -> bool:
    """Return whether a database is in memory only."""
    return url.get_backend_name() == "sqlite" and (
        not url.database
        or ":memory:" in url.database
        or "mode=memory" in url.database
        or "memory" in url.normalized_query.get("mode", ())
    )


def sqlite_file(url: URL) -> Path | None:
    """Return the file of a SQLite database; None when it has none, or is no SQLite database."""
    if url.get_backend_name() != "sqlite" or is_in_memory(url):
        return None
    name = url.database or ""
    return Path(unquote(urlsplit(name).path) if name.startswith(_FILE) else name)


def _unknown(text: str) -> InvalidInput:
    scheme = re.match(r"([a-z][a-z0-9+.-]*)://", text)
    if not scheme and re.fullmatch(r"[\w./~-]+\.(db|sqlite3?)", text):
        # The name of a file: it holds no password.
        return InvalidInput(
            f"{text!r} is not the URL of a database; did you mean sqlite:///{text}?"
        )
    what = f"{scheme[1]}://" if scheme else "this text"
    return InvalidInput(
        f"{what} is not the URL of a database that is known here; "
        "use sqlite:///file or postgresql://user:password@host/database"
    )


# ── Postgres ──────────────────────────────────────────────────────────────────────────────────────
# A Postgres database, by psycopg and ADBC: for processes that share no engine.


class PostgresServer:
    """A Postgres database; it holds no connection, so that it can be pickled."""

    def __init__(self, url: URL) -> None:
        self._url = url
        self.where = safe_name(url)
        words: dict[str, Any] = url.translate_connect_args(username="user", database="dbname")
        words |= {name: ",".join(values) for name, values in url.normalized_query.items()}
        try:
            self._conninfo = make_conninfo(**words)
        except psycopg.ProgrammingError as error:
            raise InvalidInput(
                f"the URL of the database at {self.where} cannot be used: {self.reason(error)}; "
                "correct its parameters"
            ) from None

    def reason(self, error: BaseException) -> str:
        """Return what a driver says, on one line and without secrets."""
        return reason_of(error, self._url)

    def connect(self) -> psycopg.Connection[tuple[Any, ...]]:
        """Connect in autocommit mode. Raises DatabaseUnreachable."""
        try:
            return psycopg.connect(self._conninfo, autocommit=True)
        except psycopg.OperationalError as error:
            raise DatabaseUnreachable(self.where, self.reason(error)) from None

    def connect_adbc(self) -> ArrowConnection:
        """Connect by ADBC, which brings and takes Arrow. Raises DatabaseUnreachable."""
        from adbc_driver_manager import OperationalError
        from adbc_driver_postgresql import dbapi

        try:
            connection: ArrowConnection = dbapi.connect(self._conninfo, autocommit=True)
        except OperationalError as error:
            raise DatabaseUnreachable(self.where, self.reason(error)) from None
        return connection


# ── Sqlite ────────────────────────────────────────────────────────────────────────────────────────
# A SQLite file, by Python's own driver: for processes that share the file and no engine.


class SqliteFile:
    """A SQLite file; it holds no connection, so that it can be pickled."""

    def __init__(self, url: URL) -> None:
        file = sqlite_file(url)
        if file is None:
            raise InvalidInput(
                "a database in memory exists for one process only; use one in a file: "
                "sqlite:///file"
            )
        self.path = file.resolve()
        self.where = f"sqlite:///{self.path}"

    @property
    def read_only_uri(self) -> str:
        """What opens the file to read only."""
        return f"file:{quote(str(self.path))}?mode=ro"

    def check(self) -> None:
        """Raise DatabaseUnreachable when the file is missing; SQLite would create it."""
        if not self.path.is_file():
            raise DatabaseUnreachable(self.where, "there is no such file")

    def connect(self, *, wait_s: float, read_only: bool = False) -> sqlite3.Connection:
        """Connect in autocommit mode; ``wait_s`` is how long it waits for other writers.

        Raises DatabaseUnreachable.
        """
        self.check()
        try:
            return sqlite3.connect(
                self.read_only_uri if read_only else self.path,
                uri=read_only,
                timeout=wait_s,
                isolation_level=None,
            )
        except sqlite3.Error as error:
            raise DatabaseUnreachable(self.where, str(error)) from error
