"""Connections of the streamer's own to the application's database.

The streamer works on a driver's connection, not on the application's pool: it holds a lock and
listens for as long as it runs, and decides itself where transactions begin. Its connections are
made as the engine makes them, with the same arguments and listeners.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, NamedTuple, Protocol, TypeAlias
from weakref import WeakKeyDictionary

import psycopg
from sqlalchemy import Engine, Pool, create_engine
from sqlalchemy.ext.asyncio import AsyncEngine

from headwater.errors import InvalidInput
from headwater.outbox.schema import check_dialect, outbox_table
from headwater.sql.driver_errors import translating_errors
from headwater.sql.engines import is_in_memory, sqlite_file
from headwater.sql.safe_names import safe_name

Row: TypeAlias = tuple[str, str, bytes]
# Ids without a gap between the first and the last of each, both included; ascending.
Runs: TypeAlias = list[tuple[int, int]]

# The drivers that the streamer speaks to; an engine on another gets a twin that uses these.
_DRIVERS = {"sqlite": "pysqlite", "postgresql": "psycopg"}

# Who leads where the database is in the memory of this process.
_locks: WeakKeyDictionary[Engine, threading.Lock] = WeakKeyDictionary()


class Control(NamedTuple):
    """The control row: the last batch, and which rows of it may still be in the outbox."""

    producer: str
    batch: int
    claimed: str


class OutboxDatabase(Protocol):
    """What the streamer asks of a database; one implementation for each kind.

    Outside ``transaction`` every statement stands for itself.
    """

    where: str

    def transaction(self) -> AbstractContextManager[None]:
        """Do all that happens within, or none; what it reads cannot be claimed by others."""

    def control(self) -> Control:
        """Read the control row."""

    def mark(self, old: Control, new: Control) -> bool:
        """Write the control row if it still names the old batch; says whether it did."""

    def listed(self, limit: int) -> Sequence[tuple[int, int]]:
        """Name the visible rows by id, up to a limit, with their sizes in bytes."""

    def rows(self, runs: Runs) -> list[Row]:
        """Read rows in the order of their ids; those that are gone are left out."""

    def delete(self, runs: Runs) -> None:
        """Delete exactly these rows."""

    def claimed_ms(self) -> int:
        """Say when the control row was written last."""

    def now_ms(self) -> int:
        """Read the database's clock."""

    def staged(self, limit: int) -> tuple[int, int, int | None]:
        """Count rows up to a limit; with the span of their ids, and when the oldest came."""

    def checkpoints(self) -> Sequence[tuple[str, str, int, int]]:
        """List the consumers: name, stream, next offset, time of the last move."""

    def lead(self) -> bool:
        """Try to become the one streamer of this outbox; keeps it until ``close``."""

    def leader_lives(self) -> bool:
        """Say whether some streamer leads now."""

    def watch(self) -> None:
        """Begin to take note of commits; what was committed before may go unnoticed."""

    def wait(self, seconds: float, stop: int) -> None:
        """Return when something may have been staged, or ``stop`` is readable, or time is up."""

    def close(self) -> None:
        """Give up the lead; the connection goes back to where it came from."""


class ConnectionSource:
    """Gives connections of its own to the database of an engine; ``close`` ends idle ones."""

    def __init__(self, engine: Engine | AsyncEngine) -> None:
        self.engine = _within_reach(engine)
        self.where = safe_name(self.engine)
        # A database in memory is only there on the engine's own connections.
        self._shared = is_in_memory(self.engine.url)
        self._pool: Pool = self.engine.pool if self._shared else self.engine.pool.recreate()

    @contextmanager
    def open(self) -> Iterator[OutboxDatabase]:
        """Connect for a while; an error of a driver leaves as one of the OutboxError tree."""
        with translating_errors(self.engine, table=outbox_table.name):
            pooled = self._pool.connect()
            try:
                database = self._database(pooled.driver_connection)
                try:
                    yield database
                finally:
                    database.close()
            except psycopg.Error:
                # It may be in the middle of something.
                pooled.invalidate()
                raise
            finally:
                pooled.close()

    def close(self) -> None:
        """End the connections that are kept for the next time."""
        if not self._shared:
            self._pool.dispose()

    def _database(self, connection: Any) -> OutboxDatabase:
        if self.engine.dialect.name == "sqlite":
            from headwater.outbox.sqlite import SqliteDatabase

            lock = _locks.setdefault(self.engine, threading.Lock()) if self._shared else self._lock
            return SqliteDatabase(connection, self.where, lock)
        from headwater.outbox.postgres import PostgresDatabase

        return PostgresDatabase(connection, self.where)

    @property
    def _lock(self) -> str:
        file = sqlite_file(self.engine.url)
        assert file is not None
        return f"{file.resolve()}.streamer.lock"


@contextmanager
def open_database(engine: Engine | AsyncEngine) -> Iterator[OutboxDatabase]:
    """Connect once."""
    source = ConnectionSource(engine)
    try:
        with source.open() as database:
            yield database
    finally:
        source.close()


def _within_reach(engine: Engine | AsyncEngine) -> Engine:
    """Give an engine on a driver that we know: the same, or a twin for the same database."""
    name = check_dialect(engine.dialect)
    if isinstance(engine, Engine) and engine.dialect.driver == _DRIVERS[name]:
        return engine
    if is_in_memory(engine.url):
        raise InvalidInput(
            "a database in memory cannot be reached from outside an AsyncEngine; use a file"
        )
    url = engine.url.set(drivername=f"{name}+{_DRIVERS[name]}")
    if mode := url.query.get("ssl"):  # as asyncpg spells it
        url = url.difference_update_query(["ssl"]).update_query_pairs([("sslmode", str(mode))])
    return create_engine(url)
