"""How rows get into the outbox, by whatever connection the caller's transaction runs on.

Accepted are SQLAlchemy connections and sessions on any driver, psycopg, sqlite3 and aiosqlite
connections, sync and async, and Django's. Nothing here begins, commits or rolls back: the caller
does. On an async connection the result must be awaited, on others the rows are inserted when it
returns.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Awaitable, Callable, Iterator, Sequence
from inspect import isawaitable, iscoroutinefunction
from itertools import groupby
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import psycopg
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, async_scoped_session
from sqlalchemy.orm import Session, scoped_session

from headwater.errors import InvalidInput
from headwater.outbox.schema import check_dialect, outbox_table

if TYPE_CHECKING:
    import aiosqlite


class DjangoConnection(Protocol):
    """What staging needs of ``django.db.connection``."""

    vendor: str

    def cursor(self) -> Any:
        """Return a cursor in the transaction of the connection."""


Row: TypeAlias = tuple[str, str, bytes]
Rows: TypeAlias = Sequence[Row]
Way: TypeAlias = Callable[[Any, Rows], Any]
SyncConnection: TypeAlias = (
    "sa.Connection | Session | scoped_session[Any] | psycopg.Connection[Any] | sqlite3.Connection "
    "| DjangoConnection"
)
AnyAsyncConnection: TypeAlias = (
    "AsyncConnection | AsyncSession | async_scoped_session[Any] | psycopg.AsyncConnection[Any] "
    "| aiosqlite.Connection"
)

# What one statement carries at most: enough to be quick, and far below the limits of drivers.
_PART_ROWS = 1000
_PART_BYTES = 8 * 1024 * 1024

_INSERT = "INSERT INTO headwater_outbox (stream, tag, value)"
_FOR_PSYCOPG = f"{_INSERT} VALUES (%s, %s, %b)"
# One statement and one firing of the trigger, however many rows; the order is that of the arrays.
_MANY_FOR_PSYCOPG = f"""
{_INSERT}
SELECT stream, tag, value
FROM unnest(%b::text[], %b::text[], %b::bytea[]) WITH ORDINALITY AS e(stream, tag, value, place)
ORDER BY place
"""
_FOR_SQLITE = f"{_INSERT} VALUES (?, ?, ?)"
_FOR_DJANGO = f"{_INSERT} VALUES (%s, %s, %s)"
_FOR_OTHERS = sa.insert(outbox_table).inline()

_DJANGO = ("django.db.backends.base.base", "django.utils.connection")

# How to insert by every kind of connection met so far, and whether that must be awaited.
_known: dict[type, tuple[Way, bool]] = {}


def write_rows(conn: Any, rows: Rows) -> Awaitable[None] | None:
    """Insert rows in their order; raises InvalidInput when ``conn`` is not a known connection."""
    way, awaited = _known.get(type(conn)) or _find_way(type(conn))
    if awaited:
        return _write_in_turn(way, conn, rows)
    if len(rows) == 1:
        way(conn, rows)
        return None
    for part in _parts(rows):
        way(conn, part)
    return None


def is_async(conn: Any) -> bool:
    """Return whether what is done on a connection must be awaited; raises InvalidInput."""
    return (_known.get(type(conn)) or _find_way(type(conn)))[1]


def is_django(kind: type) -> bool:
    """Return whether a connection is one of Django's."""
    # django.db.connection is a proxy; connections["name"] is the wrapper itself.
    return any(above.__module__ in _DJANGO for above in kind.__mro__)


def _find_way(kind: type) -> tuple[Way, bool]:
    way = _way_of(kind)
    _known[kind] = way, iscoroutinefunction(way)
    return _known[kind]


async def _write_in_turn(way: Way, conn: Any, rows: Rows) -> None:
    for part in _parts(rows):
        await way(conn, part)


def _parts(rows: Rows) -> Iterator[Rows]:
    """Split rows into parts that each fit one statement."""
    start = size = 0
    for place, (_, tag, value) in enumerate(rows):
        size += len(tag) + len(value)
        if place > start and (place - start == _PART_ROWS or size > _PART_BYTES):
            yield rows[start:place]
            start, size = place, len(tag) + len(value)
    if start < len(rows):
        yield rows[start:]


def _way_of(kind: type) -> Way:
    """Return the function that inserts by a kind of connection; raises InvalidInput."""
    ways: list[tuple[Any, Way]] = [
        (sa.Connection, _by_connection),
        ((Session, scoped_session), _by_session),
        (AsyncConnection, _by_async_connection),
        ((AsyncSession, async_scoped_session), _by_async_session),
        (psycopg.Connection, _by_psycopg),
        (psycopg.AsyncConnection, _by_async_psycopg),
        (sqlite3.Connection, _by_sqlite3),
    ]
    for kinds, way in ways:
        if issubclass(kind, kinds):
            return way
    if any(above.__module__.startswith("aiosqlite") for above in kind.__mro__):
        return _by_aiosqlite
    if is_django(kind):
        return _by_django
    raise InvalidInput(
        f"cannot stage with a {kind.__module__}.{kind.__qualname__}; pass the connection or "
        "session that your transaction runs on, of SQLAlchemy, Django, psycopg, sqlite3 or "
        "aiosqlite"
    )


def _for_psycopg(rows: Rows) -> tuple[str, Any]:
    if len(rows) == 1:
        return _FOR_PSYCOPG, rows[0]
    return _MANY_FOR_PSYCOPG, tuple(list(column) for column in zip(*rows, strict=True))


def _for_driver(dialect: sa.Dialect, rows: Rows) -> tuple[str, Any] | None:
    """Return an insert as the driver takes it, which is quickest; None for unusual drivers."""
    check_dialect(dialect)
    if dialect.driver.startswith("psycopg") and dialect.driver != "psycopg2":
        return _for_psycopg(rows)
    if dialect.name == "sqlite":
        return _FOR_SQLITE, list(rows) if len(rows) > 1 else rows[0]
    return None


def _for_core(rows: Rows) -> list[dict[str, Any]]:
    return [{"stream": stream, "tag": tag, "value": value} for stream, tag, value in rows]


def _by_connection(conn: sa.Connection, rows: Rows) -> None:
    if spelled := _for_driver(conn.dialect, rows):
        conn.exec_driver_sql(*spelled)
    else:
        conn.execute(_FOR_OTHERS, _for_core(rows))


async def _by_async_connection(conn: AsyncConnection, rows: Rows) -> None:
    if spelled := _for_driver(conn.dialect, rows):
        await conn.exec_driver_sql(*spelled)
    else:
        await conn.execute(_FOR_OTHERS, _for_core(rows))


def _by_session(session: Session, rows: Rows) -> None:
    _by_connection(session.connection(bind_arguments={"clause": outbox_table}), rows)


async def _by_async_session(session: AsyncSession, rows: Rows) -> None:
    conn = await session.connection(bind_arguments={"clause": outbox_table})
    await _by_async_connection(conn, rows)


def _by_psycopg(conn: psycopg.Connection[Any], rows: Rows) -> None:
    # A cursor of our own: that of the connection may not know binary parameters.
    with psycopg.Cursor(conn) as cursor:
        cursor.execute(*_for_psycopg(rows))


async def _by_async_psycopg(conn: psycopg.AsyncConnection[Any], rows: Rows) -> None:
    async with psycopg.AsyncCursor(conn) as cursor:
        await cursor.execute(*_for_psycopg(rows))


def _by_sqlite3(conn: sqlite3.Connection, rows: Rows) -> None:
    if len(rows) == 1:
        conn.execute(_FOR_SQLITE, rows[0])
    else:
        conn.executemany(_FOR_SQLITE, rows)


async def _by_aiosqlite(conn: aiosqlite.Connection, rows: Rows) -> None:
    await conn.executemany(_FOR_SQLITE, rows)


def _by_django(conn: DjangoConnection, rows: Rows) -> None:
    if conn.vendor not in ("sqlite", "postgresql"):
        raise InvalidInput(
            f"an outbox is on SQLite or Postgres, not on {conn.vendor}; pass the connection of "
            "such a database: django.db.connections[...]"
        )
    # By Django's cursor, so that an error marks the atomic block as failed.
    with conn.cursor() as cursor:
        if len(rows) == 1:
            cursor.execute(_FOR_DJANGO, rows[0])
        else:
            cursor.executemany(_FOR_DJANGO, rows)


# ── Staged headers ────────────────────────────────────────────────────────────────────────────────
# How rows that have headers get into the outbox: the row, and its headers in a table beside it.
#
# Rows without headers are inserted by headwater.outbox.staging, and this is not reached.


HeadedRow: TypeAlias = tuple[str, str, bytes, bytes]

_ROW = "INSERT INTO headwater_outbox (stream, tag, value) VALUES (:stream, :tag, :value)"
_HEADERS = "INSERT INTO headwater_outbox_headers (id, headers)"
_STATEMENTS = {
    "sqlite": (_ROW, f"{_HEADERS} VALUES (last_insert_rowid(), :headers)"),
    "postgresql": (
        f"WITH staged AS ({_ROW} RETURNING id) "
        f"{_HEADERS} SELECT id, CAST(:headers AS bytea) FROM staged",
    ),
}
_NAME = re.compile(r":(\w+)")


def write_mixed(conn: Any, rows: Sequence[Row | HeadedRow]) -> Awaitable[None] | None:
    """Insert rows, some of which have headers, in their order; as write_rows does."""
    parts = [list(part) for _, part in groupby(rows, key=len)]
    if is_async(conn):
        return _write_parts_in_turn(conn, parts)
    for part in parts:
        _write_part(conn, part)
    return None


async def _write_parts_in_turn(conn: Any, parts: list[list[Any]]) -> None:
    for part in parts:
        if len(part[0]) == len(_FIELDS):
            for row in part:
                await _insert_async(conn, dict(zip(_FIELDS, row, strict=True)))
        else:
            waiting = write_rows(conn, part)
            if waiting is not None:
                await waiting


def _write_part(conn: Any, part: list[Any]) -> None:
    if len(part[0]) < len(_FIELDS):
        write_rows(conn, part)
        return
    for row in part:
        _insert(conn, dict(zip(_FIELDS, row, strict=True)))


_FIELDS = ("stream", "tag", "value", "headers")


def _insert(conn: Any, row: dict[str, Any]) -> None:
    if isinstance(conn, Session | scoped_session):
        conn = conn.connection(bind_arguments={"clause": outbox_table})
    if isinstance(conn, sa.Connection):
        for statement in _STATEMENTS[check_dialect(conn.dialect)]:
            conn.execute(sa.text(statement), _used(statement, row))
    elif isinstance(conn, psycopg.Connection):
        with psycopg.Cursor(conn) as cursor:
            for statement in _STATEMENTS["postgresql"]:
                cursor.execute(_NAME.sub(r"%(\1)s", statement), row)
    elif is_django(type(conn)):
        with conn.cursor() as cursor:
            for statement in _STATEMENTS[conn.vendor]:
                values = [row[name] for name in _NAME.findall(statement)]
                cursor.execute(_NAME.sub("%s", statement), values)
    else:
        assert isinstance(conn, sqlite3.Connection)
        for statement in _STATEMENTS["sqlite"]:
            conn.execute(statement, _used(statement, row))


async def _insert_async(conn: Any, row: dict[str, Any]) -> None:
    if isinstance(conn, AsyncSession | async_scoped_session):
        conn = await conn.connection(bind_arguments={"clause": outbox_table})
    if isinstance(conn, AsyncConnection):
        for statement in _STATEMENTS[check_dialect(conn.dialect)]:
            await conn.execute(sa.text(statement), _used(statement, row))
    elif isinstance(conn, psycopg.AsyncConnection):
        async with psycopg.AsyncCursor(conn) as cursor:
            for statement in _STATEMENTS["postgresql"]:
                await cursor.execute(_NAME.sub(r"%(\1)s", statement), row)
    else:
        for statement in _STATEMENTS["sqlite"]:
            made = conn.execute(statement, _used(statement, row))
            if isawaitable(made):
                await made


def _used(statement: str, row: dict[str, Any]) -> dict[str, Any]:
    return {name: row[name] for name in _NAME.findall(statement)}
