"""Transactions by every kind of connection that can stage, sync and async."""

from __future__ import annotations

import asyncio
import inspect
import sqlite3
from collections.abc import Callable
from typing import Any, TypeAlias

import aiosqlite
import django
import psycopg
import sqlalchemy as sa
from django.conf import settings
from django.db import ConnectionHandler
from sqlalchemy.ext.asyncio import (
    AsyncSession,
    async_scoped_session,
    async_sessionmaker,
    create_async_engine,
)
from sqlalchemy.orm import Session, scoped_session, sessionmaker
from sqlalchemy.pool import NullPool

Work: TypeAlias = Callable[[Any], Any]

ANYWHERE = [
    "connection",
    "other driver",
    "session",
    "scoped session",
    "async connection",
    "async session",
    "async scoped session",
    "django",
]
WAYS = {
    "sqlite": [*ANYWHERE, "sqlite3", "aiosqlite"],
    "postgres": [*ANYWHERE, "psycopg", "psycopg client cursor", "async psycopg"],
}


def transact(way: str, engine: sa.Engine, *works: Work, commit: bool = True) -> None:
    """Do the works one after the other in one transaction on a connection of that kind."""
    if way.startswith("a"):
        asyncio.run(_transact_async(way, engine.url, works, commit))
        return
    other: sa.Engine | None = None
    conn: Any
    if way == "django":
        _transact_by_django(engine.url, works, commit)
        return
    if way == "sqlite3":
        conn = sqlite3.connect(str(engine.url.database))
    elif way.startswith("psycopg"):
        conn = psycopg.connect(_conninfo(engine.url))
        if way == "psycopg client cursor":
            conn.cursor_factory = psycopg.ClientCursor
    elif way == "session":
        conn = Session(engine)
    elif way == "scoped session":
        conn = scoped_session(sessionmaker(engine))
    else:
        other = sa.create_engine(engine.url, poolclass=NullPool)
        if way == "other driver":
            # One that the outbox has no words of its own for.
            other.dialect.driver = "another"
        conn = other.connect()
    try:
        for work in works:
            assert not inspect.isawaitable(work(conn))
        (conn.commit if commit else conn.rollback)()
    finally:
        conn.close()


async def _transact_async(way: str, url: sa.URL, works: tuple[Work, ...], commit: bool) -> None:
    engine = create_async_engine(async_url(url), poolclass=NullPool)
    conn: Any
    if way == "async connection":
        conn = await engine.connect().start()
    elif way == "async session":
        conn = AsyncSession(engine)
    elif way == "async scoped session":
        conn = async_scoped_session(async_sessionmaker(engine), asyncio.current_task)
    elif way == "aiosqlite":
        conn = await aiosqlite.connect(str(url.database))
    else:
        conn = await psycopg.AsyncConnection.connect(_conninfo(url))
    try:
        for work in works:
            await work(conn)
        await (conn.commit if commit else conn.rollback)()
    finally:
        await conn.close()
        await engine.dispose()


def async_url(url: sa.URL) -> sa.URL:
    """Name the same database for an async engine."""
    return url.set(drivername="sqlite+aiosqlite") if url.get_backend_name() == "sqlite" else url


def _conninfo(url: sa.URL) -> str:
    return f"host={url.query['host']} user={url.username} dbname={url.database}"


def _transact_by_django(url: sa.URL, works: tuple[Work, ...], commit: bool) -> None:
    _set_up_django()
    kind = "sqlite3" if url.get_backend_name() == "sqlite" else "postgresql"
    named = {"ENGINE": f"django.db.backends.{kind}", "NAME": str(url.database)}
    if kind == "postgresql":
        named |= {"HOST": str(url.query["host"]), "USER": str(url.username)}
    conn = ConnectionHandler({"default": named})["default"]
    conn.set_autocommit(False)
    try:
        for work in works:
            assert not inspect.isawaitable(work(conn))
        (conn.commit if commit else conn.rollback)()
    finally:
        conn.close()


def _set_up_django() -> None:
    # A page of the documentation may have done it in this process, or undone it.
    if not settings.configured:
        settings.configure()
    django.setup()
