"""How rows get into the outbox, by whatever connection the caller's transaction runs on.

Accepted are SQLAlchemy connections and sessions on any driver, psycopg, sqlite3 and aiosqlite
connections, sync and async, and Django's. Nothing here begins, commits or rolls back: the caller
does. On an async connection the result must be awaited, on others the rows are inserted when it
returns.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Awaitable, Callable, Iterator, Sequence
from inspect import iscoroutinefunction
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


# Stream, tag, value; all rows of a call have headers as well, perhaps empty ones, or none has.
Row: TypeAlias = "tuple[str, str, bytes] | tuple[str, str, bytes, bytes]"
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

# What is inserted, by the number of columns: the headers of rows without any are the default.
_COLUMNS = {3: "stream, tag, value", 4: "stream, tag, value, headers"}
_INSERT = {n: f"INSERT INTO headwater_outbox ({names})" for n, names in _COLUMNS.items()}
_FOR_PSYCOPG = {n: f"{insert} VALUES (%s, %s{', %b' * (n - 2)})" for n, insert in _INSERT.items()}
# One statement and one firing of the trigger, however many rows; the order is that of the arrays.
_MANY_FOR_PSYCOPG = {
    n: f"""
{_INSERT[n]}
SELECT {names}
FROM unnest(%b::text[], %b::text[]{", %b::bytea[]" * (n - 2)})
     WITH ORDINALITY AS e({names}, place)
ORDER BY place
"""
    for n, names in _COLUMNS.items()
}
_FOR_SQLITE = {n: f"{insert} VALUES (?{', ?' * (n - 1)})" for n, insert in _INSERT.items()}
_FOR_DJANGO = {n: f"{insert} VALUES (%s{', %s' * (n - 1)})" for n, insert in _INSERT.items()}
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


def _is_django(kind: type) -> bool:
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
    for place, row in enumerate(rows):
        row_size = len(row[1]) + len(row[2])
        size += row_size
        if place > start and (place - start == _PART_ROWS or size > _PART_BYTES):
            yield rows[start:place]
            start, size = place, row_size
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
    if _is_django(kind):
        return _by_django
    raise InvalidInput(
        f"cannot stage with a {kind.__module__}.{kind.__qualname__}; pass the connection or "
        "session that your transaction runs on, of SQLAlchemy, Django, psycopg, sqlite3 or "
        "aiosqlite"
    )


def _for_psycopg(rows: Rows) -> tuple[str, Any]:
    if len(rows) == 1:
        return _FOR_PSYCOPG[len(rows[0])], rows[0]
    return _MANY_FOR_PSYCOPG[len(rows[0])], tuple(
        list(column) for column in zip(*rows, strict=True)
    )


def _for_driver(dialect: sa.Dialect, rows: Rows) -> tuple[str, Any] | None:
    """Return an insert as the driver takes it, which is quickest; None for unusual drivers."""
    check_dialect(dialect)
    if dialect.driver.startswith("psycopg") and dialect.driver != "psycopg2":
        return _for_psycopg(rows)
    if dialect.name == "sqlite":
        return _FOR_SQLITE[len(rows[0])], list(rows) if len(rows) > 1 else rows[0]
    return None


def _for_core(rows: Rows) -> list[dict[str, Any]]:
    return [dict(zip(("stream", "tag", "value", "headers"), row, strict=False)) for row in rows]


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
        conn.execute(_FOR_SQLITE[len(rows[0])], rows[0])
    else:
        conn.executemany(_FOR_SQLITE[len(rows[0])], rows)


async def _by_aiosqlite(conn: aiosqlite.Connection, rows: Rows) -> None:
    await conn.executemany(_FOR_SQLITE[len(rows[0])], rows)


def _by_django(conn: DjangoConnection, rows: Rows) -> None:
    if conn.vendor not in ("sqlite", "postgresql"):
        raise InvalidInput(
            f"an outbox is on SQLite or Postgres, not on {conn.vendor}; pass the connection of "
            "such a database: django.db.connections[...]"
        )
    # By Django's cursor, so that an error marks the atomic block as failed.
    with conn.cursor() as cursor:
        if len(rows) == 1:
            cursor.execute(_FOR_DJANGO[len(rows[0])], rows[0])
        else:
            cursor.executemany(_FOR_DJANGO[len(rows[0])], rows)
