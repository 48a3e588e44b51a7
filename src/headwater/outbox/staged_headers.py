"""How rows that have headers get into the outbox: the row, and its headers in a table beside it.

Rows without headers are inserted by headwater.outbox.staging, and this is not reached.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Awaitable, Sequence
from inspect import isawaitable
from itertools import groupby
from typing import Any, TypeAlias

import psycopg
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, async_scoped_session
from sqlalchemy.orm import Session, scoped_session

from headwater.outbox.schema import check_dialect, outbox_table
from headwater.outbox.staging import Row, is_async, is_django, write_rows

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
        return _write_in_turn(conn, parts)
    for part in parts:
        _write_part(conn, part)
    return None


async def _write_in_turn(conn: Any, parts: list[list[Any]]) -> None:
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
