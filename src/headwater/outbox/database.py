"""Connections of the streamer's own to the application's database.

The streamer works on a driver's connection, not on the application's pool: it holds a lock and
listens for as long as it runs, and decides by itself where transactions begin. Its connections are
made as the engine makes them, with the same arguments and listeners.
"""

from __future__ import annotations

import os
import socket
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, ClassVar, Final, NamedTuple, TypeAlias
from weakref import WeakKeyDictionary

import psycopg
from sqlalchemy import Engine, Pool, create_engine
from sqlalchemy.ext.asyncio import AsyncEngine
from sqlalchemy.pool import StaticPool

from headwater.errors import InvalidInput, NotCreated
from headwater.outbox.batches import StagedRow, StreamedBatch
from headwater.outbox.runs import Runs
from headwater.outbox.schema import (
    CONTROL,
    SCHEMA,
    check_dialect,
    headers_table,
    outbox_table,
    streamer_table,
)
from headwater.outbox.streamer_sql import Statements
from headwater.sql.driver_errors import translating_errors
from headwater.sql.engines import is_in_memory, sqlite_file
from headwater.sql.safe_names import safe_name

# Stream, tag, value; where a row of the batch has headers, or ids are asked for, also its headers
# as they are stored, and its id.
Row: TypeAlias = "tuple[str, str, bytes] | tuple[str, str, bytes, bytes | None, int]"

# The drivers that the streamer speaks to; an engine on another gets a twin that uses these.
_DRIVERS = {"sqlite": "pysqlite", "postgresql": "psycopg"}

# Rates are those of so long, by so many batches at most.
_RATE_MS: Final = 60_000
_RATE_BATCHES: Final = 1000
_HOST_CHARS: Final = 30
# The locks of leaders whose database is in the memory of this process.
_locks: WeakKeyDictionary[Engine, threading.Lock] = WeakKeyDictionary()


class Control(NamedTuple):
    """The control row: the last batch, and which rows of it may still be in the outbox."""

    producer: str
    batch: int
    claimed: str


class OutboxDatabase(ABC):
    """A connection on which the streamer works; one subclass for each kind of database.

    Outside ``transaction`` every statement is a transaction of its own.
    """

    dialect: ClassVar[str]
    statements: ClassVar[Statements]
    where: str = ""
    _has_headers: bool = False
    _has_batches: bool = False

    def control(self) -> Control:
        """Read the control row. Raises NotCreated; FormatTooNew for tables of a newer release."""
        if self.fetch(self.statements.has_versions):
            found = self.fetch(self.statements.version, SCHEMA.name)
            SCHEMA.check_version(found[0][0] if found else None, self.dialect, self.where)
        if not (found := self.fetch(self.statements.control, CONTROL)):
            raise NotCreated(streamer_table.name)
        return Control(*found[0])

    def mark(self, old: Control, new: Control) -> bool:
        """Write the control row if it still names the old batch; returns whether it did."""
        values = (*new, CONTROL, old.producer, old.batch)
        return self.change(self.statements.mark, *values) == 1

    def batch_rows(self, runs: Runs, with_ids: bool = False) -> list[Row]:
        """Read rows as ``rows`` does; with headers and ids if one has headers, or if asked."""
        if not (self._headed(runs) or with_ids):
            return self.rows(runs)
        if not self._has_headers:
            raise NotCreated(headers_table.name)
        return self.rows_with_headers(runs)

    def delete_batch(self, runs: Runs) -> None:
        """Delete exactly these rows, with their headers."""
        if self._headed(runs):
            self.delete_headers(runs)
        self.delete(runs)

    def note_batch(self, lines: Sequence[StreamedBatch]) -> None:
        """Write the lines of a batch, with the times of its rows, which are still there.

        The rows are looked at once, however many streams they went to.
        """
        if not lines or not self._keeps_batches():
            return
        first, last = min(one.first_id for one in lines), max(one.last_id for one in lines)
        found = self.fetch(self.statements.staged_times, first, last)
        times = {stream: (earliest, latest) for stream, earliest, latest in found}
        for line in lines:
            staged = times.get(line.stream, (None, None))
            self.change(self.statements.note_batch, *line[:8], *staged, CONTROL)

    def prune_batches(self, up_to: int) -> None:
        """Remove the oldest lines of the ledger."""
        if self._keeps_batches():
            self.change(self.statements.prune_batches, up_to)

    def batch_of_offset(self, stream: str, offset: int) -> StreamedBatch | None:
        """Return the batch that brought a message; None when the ledger does not have it."""
        if not self._keeps_batches():
            return None
        found = self.fetch(self.statements.batch_of_offset, stream, offset, offset)
        return StreamedBatch(*found[0]) if found else None

    def batches_of_row(self, row: int) -> list[StreamedBatch]:
        """Return the batches that may have brought a row, the newest first."""
        if not self._keeps_batches():
            return []
        return [StreamedBatch(*one) for one in self.fetch(self.statements.batches_of_row, row, row)]

    def rows_per_s(self, now_ms: int, newest: int) -> float | None:
        """Return how many rows a second went to the log lately; None without a ledger."""
        if not self._keeps_batches():
            return None
        since_ms, after = now_ms - _RATE_MS, newest - _RATE_BATCHES
        ((rows, first_ms, batches),) = self.fetch(self.statements.rate, after, since_ms)
        # Of many small batches the oldest were not looked at.
        span_ms = now_ms - first_ms if batches and batches >= _RATE_BATCHES else _RATE_MS
        return float(rows or 0) * 1000 / max(span_ms, 1)

    def staged_row(self, row: int) -> StagedRow | None:
        """Return a row that is in the outbox still."""
        found = self.fetch(self.statements.staged_row, row)
        return StagedRow(*found[0]) if found else None

    def _keeps_batches(self) -> bool:
        # An older release may have created the tables, and this one adds to them at any time.
        if not self._has_batches:
            self._has_batches = bool(self.fetch(self.statements.has_batches))
        return self._has_batches

    def _headed(self, runs: Runs) -> bool:
        """Return whether rows between the first and the last have headers."""
        # An older release may have created the tables, and this one adds to them at any time.
        if not self._has_headers:
            self._has_headers = bool(self.fetch(self.statements.has_headers))
        return self._has_headers and bool(
            self.fetch(self.statements.headed, runs[0][0], runs[-1][1])
        )

    def listed(self, limit: int) -> Sequence[tuple[int, int]]:
        """Return the ids of the visible rows, up to a limit, with their sizes in bytes."""
        return self.fetch(self.statements.listed, limit)

    def claimed_ms(self) -> int:
        """Return when the control row was written last."""
        ((time,),) = self.fetch(self.statements.claimed_ms, CONTROL)
        return int(time)

    def now_ms(self) -> int:
        """Read the database's clock."""
        ((now,),) = self.fetch(self.statements.now_ms)
        return int(now)

    def staged(self, limit: int) -> tuple[int, int, int | None]:
        """Count rows up to a limit; with the span of their ids, and when the oldest was staged."""
        ((count, span, oldest),) = self.fetch(self.statements.staged, limit)
        return count, span or 0, oldest

    def checkpoints(self) -> Sequence[tuple[str, str, int, int]]:
        """List the consumers: name, stream, next offset, time of the last move."""
        return self.fetch(self.statements.checkpoints)

    @abstractmethod
    def fetch(self, statement: str, *values: Any) -> list[Any]:
        """Run a statement; returns its rows."""

    @abstractmethod
    def change(self, statement: str, *values: Any) -> int:
        """Run a statement; returns how many rows it changed."""

    @abstractmethod
    def transaction(self) -> AbstractContextManager[None]:
        """Do all that happens within, or nothing; no other streamer claims what it reads."""

    @abstractmethod
    def rows(self, runs: Runs) -> list[Row]:
        """Read rows in the order of their ids; those that are gone are left out."""

    @abstractmethod
    def rows_with_headers(self, runs: Runs) -> list[Row]:
        """Read rows as ``rows`` does, each with its headers, or None, and its id."""

    @abstractmethod
    def delete(self, runs: Runs) -> None:
        """Delete exactly these rows."""

    @abstractmethod
    def delete_headers(self, runs: Runs) -> None:
        """Delete the headers of exactly these rows."""

    @abstractmethod
    def lead(self) -> bool:
        """Try to become the one streamer of this outbox, until ``close``; returns whether it is."""

    @abstractmethod
    def leader(self) -> str | None:
        """Return which process holds the lock of the streamer; None when nobody leads."""

    @abstractmethod
    def watch(self) -> None:
        """Begin to take note of commits; what was committed before may go unnoticed."""

    @abstractmethod
    def wait(self, seconds: float, stop: int) -> None:
        """Return when something may have been staged, or ``stop`` is readable, or time is up."""

    @abstractmethod
    def close(self) -> None:
        """Give up the lead; the connection goes back to where it came from."""


def process_name() -> str:
    """Return how a leader names itself to those who look: where it runs, and which process."""
    return f"{socket.gethostname()[:_HOST_CHARS]} pid {os.getpid()}"


class ConnectionSource:
    """Makes connections of the streamer's own to the database of an engine."""

    def __init__(self, engine: Engine | AsyncEngine) -> None:
        self.engine = _within_reach(engine)
        self.where = safe_name(self.engine)
        # A database in memory is only there on the engine's own connections.
        self._shared = is_in_memory(self.engine.url)
        self._pool: Pool = self.engine.pool if self._shared else self.engine.pool.recreate()

    def check_own(self) -> None:
        """Raise InvalidInput unless whoever opens a connection has it for itself.

        A driver that is used by two threads on one connection mixes up their transactions, and may
        crash the process.
        """
        if isinstance(self._pool, StaticPool):
            raise InvalidInput(
                f"the engine of {self.where} has one connection for all threads (StaticPool), "
                "which a streamer that runs would use at the same time as those who stage; call "
                "run_once where you stage, or use a database in a file"
            )

    @contextmanager
    def open(self) -> Iterator[OutboxDatabase]:
        """Connect for a while. An error of a driver is raised as one of the OutboxError tree."""
        with translating_errors(self.engine, table=outbox_table.name):
            pooled = self._pool.connect()
            try:
                database = self._database(pooled.driver_connection)
                database.where = self.where
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
        """Close the connections that are kept for the next time."""
        if not self._shared:
            self._pool.dispose()

    def _database(self, connection: Any) -> OutboxDatabase:
        if self.engine.dialect.name == "sqlite":
            from headwater.outbox.sqlite import SqliteDatabase

            lock = _locks.setdefault(self.engine, threading.Lock()) if self._shared else self._lock
            return SqliteDatabase(connection, lock)
        from headwater.outbox.postgres import PostgresDatabase

        return PostgresDatabase(connection)

    @property
    def _lock(self) -> str:
        file = sqlite_file(self.engine.url)
        assert file is not None
        return f"{file.resolve()}.streamer.lock"


@contextmanager
def open_database(engine: Engine | AsyncEngine) -> Iterator[OutboxDatabase]:
    """Connect for a while, without keeping the connection."""
    source = ConnectionSource(engine)
    try:
        with source.open() as database:
            yield database
    finally:
        source.close()


def _within_reach(engine: Engine | AsyncEngine) -> Engine:
    """Return an engine on a driver that we know: the same, or a twin for the same database."""
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
