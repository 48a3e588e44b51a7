"""The streamer's side of the database: its connections, its SQL, and which rows it claims.

The streamer works on a driver's connection, not on the application's pool: it holds a lock and
listens for as long as it runs, and decides by itself where transactions begin. Its connections are
made as the engine makes them, with the same arguments and listeners.
"""

from __future__ import annotations

import os
import socket
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from itertools import accumulate, takewhile
from typing import Any, ClassVar, Final, NamedTuple, TypeAlias
from weakref import WeakKeyDictionary

import psycopg
from sqlalchemy import Engine, Pool, create_engine
from sqlalchemy.ext.asyncio import AsyncEngine
from sqlalchemy.pool import StaticPool

from headwater.errors import InvalidInput, NotCreated
from headwater.outbox.batches import (
    AppendedPart,
    Runs,
    StagedRow,
    StreamedBatch,
    count_ids,
    note_batch,
    read_runs,
    runs_of,
    spell_runs,
)
from headwater.outbox.schema import (
    CONTROL,
    SCHEMA,
    check_dialect,
    outbox_table,
    streamer_table,
)
from headwater.sql.driver_errors import safe_name, translating_errors
from headwater.sql.engines import is_in_memory, sqlite_file
from headwater.sql.schemas import HAS_VERSIONS, VERSION

# ── Streamer sql ──────────────────────────────────────────────────────────────────────────────────
# The SQL of the streamer that is the same on every database except for parameters and clock.


# A role of Postgres without rights on this table streams without the ledger.
_HAS_BATCHES: Final = {
    "sqlite": "SELECT 1",
    "postgresql": "SELECT 1 WHERE has_table_privilege(to_regclass('headwater_batches'), 'SELECT') "
    "AND has_table_privilege(to_regclass('headwater_batches'), 'INSERT') "
    "AND has_table_privilege(to_regclass('headwater_batches'), 'UPDATE') "
    "AND has_table_privilege(to_regclass('headwater_batches'), 'DELETE')",
}


# A parameter is ?, {clock} reads the time in ms, and {row_bytes} is at least the size of a row.
_HEADED: Final = (
    "SELECT 1 FROM headwater_outbox WHERE id BETWEEN ? AND ? AND length(headers) > 0 LIMIT 1"
)
_CONTROL: Final = "SELECT producer, batch, claimed FROM headwater_streamer WHERE name = ?"
_MARK: Final = (
    "UPDATE headwater_streamer "
    "SET producer = ?, batch = ?, claimed = ?, claimed_ms = {clock} "
    "WHERE name = ? AND producer = ? AND batch = ?"
)
_LISTED: Final = "SELECT id, {row_bytes} FROM headwater_outbox ORDER BY id LIMIT ?"
_CLAIMED_MS: Final = "SELECT claimed_ms FROM headwater_streamer WHERE name = ?"
_NOW_MS: Final = "SELECT {clock}"
# Each end by itself: SQLite finds only one of them in an index at a time.
_STAGED: Final = (
    "SELECT (SELECT count(*) FROM (SELECT 1 FROM headwater_outbox LIMIT ?) AS counted), "
    "(SELECT max(id) FROM headwater_outbox) - (SELECT min(id) FROM headwater_outbox) + 1, "
    "(SELECT staged_ms FROM headwater_outbox ORDER BY id LIMIT 1)"
)
_CHECKPOINTS: Final = (
    "SELECT consumer, stream, next_offset, updated_ms FROM headwater_checkpoints ORDER BY 1, 2"
)
# Of rows that are about to go, all streams of a batch at once.
_STAGED_TIMES: Final = (
    "SELECT stream, min(staged_ms), max(staged_ms) FROM headwater_outbox "
    "WHERE id BETWEEN ? AND ? GROUP BY stream"
)
_NOTE_BATCH: Final = (
    "INSERT INTO headwater_batches VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, "
    "(SELECT claimed_ms FROM headwater_streamer WHERE name = ?)) "
    "ON CONFLICT (batch, stream) DO UPDATE SET producer = excluded.producer, "
    "first_offset = excluded.first_offset, last_offset = excluded.last_offset, "
    "first_id = excluded.first_id, last_id = excluded.last_id, ids = excluded.ids, "
    "staged_first_ms = excluded.staged_first_ms, staged_last_ms = excluded.staged_last_ms, "
    "claimed_ms = excluded.claimed_ms"
)
_PRUNE_BATCHES: Final = "DELETE FROM headwater_batches WHERE batch <= ?"
_BATCH_OF_OFFSET: Final = (
    "SELECT * FROM headwater_batches WHERE stream = ? "
    "AND first_offset <= ? AND last_offset >= ? ORDER BY batch DESC LIMIT 1"
)
_BATCHES_OF_ROW: Final = (
    "SELECT * FROM headwater_batches WHERE first_id <= ? AND last_id >= ? "
    "ORDER BY batch DESC LIMIT 100"
)
_STAGED_ROW: Final = "SELECT stream, staged_ms FROM headwater_outbox WHERE id = ?"
_RATE: Final = (
    "SELECT sum(last_offset - first_offset + 1), min(claimed_ms), count(DISTINCT batch) "
    "FROM headwater_batches WHERE batch > ? AND claimed_ms >= ?"
)


# ── Database ──────────────────────────────────────────────────────────────────────────────────────


# Stream, tag, value; where a row of the batch has headers, or ids are asked for, also its headers
# as they are stored, and its id.
Row: TypeAlias = "tuple[str, str, bytes] | tuple[str, str, bytes, bytes, int]"

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
    where: str = ""
    _has_batches: bool = False

    def control(self) -> Control:
        """Read the control row. Raises NotCreated; FormatTooNew for tables of a newer release."""
        if self.fetch(HAS_VERSIONS[self.dialect]):
            found = self.fetch(VERSION.replace(":package", "?"), SCHEMA.name)
            SCHEMA.check_version(found[0][0] if found else None, self.dialect, self.where)
        if not (found := self.fetch(_CONTROL, CONTROL)):
            raise NotCreated(streamer_table.name)
        return Control(*found[0])

    def mark(self, old: Control, new: Control) -> bool:
        """Write the control row if it still names the old batch; returns whether it did."""
        values = (*new, CONTROL, old.producer, old.batch)
        return self.change(_MARK, *values) == 1

    def batch_rows(self, runs: Runs, with_ids: bool = False) -> list[Row]:
        """Read rows in order; with headers and ids if one has headers, or if asked."""
        headed = with_ids or self.fetch(_HEADED, runs[0][0], runs[-1][1])
        return self.rows(runs, headed=bool(headed))

    def note_batch(self, lines: Sequence[StreamedBatch]) -> None:
        """Write the lines of a batch, with the times of its rows, which are still there.

        The rows are looked at once, however many streams they went to.
        """
        if not lines or not self._keeps_batches():
            return
        first, last = min(one.first_id for one in lines), max(one.last_id for one in lines)
        found = self.fetch(_STAGED_TIMES, first, last)
        times = {stream: (earliest, latest) for stream, earliest, latest in found}
        for line in lines:
            staged = times.get(line.stream, (None, None))
            self.change(_NOTE_BATCH, *line[:8], *staged, CONTROL)

    def prune_batches(self, up_to: int) -> None:
        """Remove the oldest lines of the ledger."""
        if self._keeps_batches():
            self.change(_PRUNE_BATCHES, up_to)

    def batch_of_offset(self, stream: str, offset: int) -> StreamedBatch | None:
        """Return the batch that brought a message; None when the ledger does not have it."""
        if not self._keeps_batches():
            return None
        found = self.fetch(_BATCH_OF_OFFSET, stream, offset, offset)
        return StreamedBatch(*found[0]) if found else None

    def batches_of_row(self, row: int) -> list[StreamedBatch]:
        """Return the batches that may have brought a row, the newest first."""
        if not self._keeps_batches():
            return []
        return [StreamedBatch(*one) for one in self.fetch(_BATCHES_OF_ROW, row, row)]

    def rows_per_s(self, now_ms: int, newest: int) -> float | None:
        """Return how many rows a second went to the log lately; None without a ledger."""
        if not self._keeps_batches():
            return None
        since_ms, after = now_ms - _RATE_MS, newest - _RATE_BATCHES
        ((rows, first_ms, batches),) = self.fetch(_RATE, after, since_ms)
        # Of many small batches the oldest were not looked at.
        span_ms = now_ms - first_ms if batches and batches >= _RATE_BATCHES else _RATE_MS
        return float(rows or 0) * 1000 / max(span_ms, 1)

    def staged_row(self, row: int) -> StagedRow | None:
        """Return a row that is in the outbox still."""
        found = self.fetch(_STAGED_ROW, row)
        return StagedRow(*found[0]) if found else None

    def _keeps_batches(self) -> bool:
        # The rights may be granted at any time.
        if not self._has_batches:
            self._has_batches = bool(self.fetch(_HAS_BATCHES[self.dialect]))
        return self._has_batches

    def listed(self, limit: int) -> Sequence[tuple[int, int]]:
        """Return the ids of the visible rows, up to a limit, with their sizes in bytes."""
        return self.fetch(_LISTED, limit)

    def claimed_ms(self) -> int:
        """Return when the control row was written last."""
        ((time,),) = self.fetch(_CLAIMED_MS, CONTROL)
        return int(time)

    def now_ms(self) -> int:
        """Read the database's clock."""
        ((now,),) = self.fetch(_NOW_MS)
        return int(now)

    def staged(self, limit: int) -> tuple[int, int, int | None]:
        """Count rows up to a limit; with the span of their ids, and when the oldest was staged."""
        ((count, span, oldest),) = self.fetch(_STAGED, limit)
        return count, span or 0, oldest

    def checkpoints(self) -> Sequence[tuple[str, str, int, int]]:
        """List the consumers: name, stream, next offset, time of the last move."""
        return self.fetch(_CHECKPOINTS)

    @abstractmethod
    def fetch(self, statement: str, *values: Any) -> list[Any]:
        """Run a statement, spelled as those above; returns its rows."""

    @abstractmethod
    def change(self, statement: str, *values: Any) -> int:
        """Run a statement, spelled as those above; returns how many rows it changed."""

    @abstractmethod
    def transaction(self) -> AbstractContextManager[None]:
        """Do all that happens within, or nothing; no other streamer claims what it reads."""

    @abstractmethod
    def rows(self, runs: Runs, *, headed: bool) -> list[Row]:
        """Read rows in the order of their ids; those that are gone are left out."""

    @abstractmethod
    def delete(self, runs: Runs) -> None:
        """Delete exactly these rows."""

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


# ── Claims ────────────────────────────────────────────────────────────────────────────────────────
# Which rows are on their way to the log, and how the next ones follow: the database's side.
#
# A claim is the control row: a producer, a batch number, and the exact ids of the batch. It is
# written before the batch is appended and replaced after, so that a streamer that finds it knows
# that these rows, and no others, may be in the log under that producer and number already. One
# transaction does a whole turn: it deletes the rows of the last claim and writes the next one. A
# streamer that lost the lead without knowing it fails in that turn, because the control row no
# longer names its batch.
#
# Rows are taken in the order of their ids out of one snapshot at a time. That keeps the order of
# every transaction: a snapshot has all rows of a transaction or none. Ids decide nothing else; a
# row with a low id that commits late is in a later snapshot. A snapshot lists the ids of many
# batches, because to find the first row behind a million deleted ones takes time.


Steps: TypeAlias = Callable[[str], None]

# One append may carry 64 MB, and one value 16 MB.
_BATCH_BYTES = 32 * 1024 * 1024
_LISTED_BATCHES = 20


# The end of the name of a producer whose batches carry the ids of their rows as a header. A claim
# keeps the name, so whoever repeats the batch does so in the same manner.
ID_HEADER = "+id"


class LostLead(Exception):
    """Another streamer has moved the control row."""


class ClaimedBatch(NamedTuple):
    """What is to be appended: its producer and number, and its rows in order."""

    producer: str
    number: int
    rows: list[Row]

    @property
    def has_ids(self) -> bool:
        """Whether its messages have the ids of their rows as a header."""
        return _has_ids(self.producer)


class _Ahead(NamedTuple):
    """What the next batch will be."""

    runs: Runs
    rows: list[Row]


_NOTHING = _Ahead([], [])


class Claims:
    """The claims of one leader, from the first one it finds to the last one it makes."""

    def __init__(self, database: OutboxDatabase, producer: str, most: int, steps: Steps) -> None:
        self._database = database
        self._producer = producer
        self._most = most
        self._steps = steps
        self._listed: Sequence[tuple[int, int]] = ()
        self._at = 0
        self._ahead = _NOTHING
        self._control = database.control()
        self._runs = read_runs(self._control.claimed)
        self._parts: Sequence[AppendedPart] = ()

    @property
    def claimed(self) -> int:
        """How many rows the last claim names that may still be there."""
        return count_ids(self._runs)

    @property
    def age_ms(self) -> int:
        """How long ago the last claim was made, by the database's clock."""
        return self._database.now_ms() - self._database.claimed_ms()

    def unfinished(self) -> ClaimedBatch | None:
        """Return the batch that the last leader may have left half-way, to be appended again."""
        if not self._runs:
            return None
        with_ids = _has_ids(self._control.producer)
        rows = self._database.batch_rows(self._runs, with_ids)
        return ClaimedBatch(self._control.producer, self._control.batch, rows)

    def appended(self, parts: Sequence[AppendedPart]) -> None:
        """Take note of where the rows of the last batch are in the log, for the ledger."""
        self._parts = parts

    def next(self, *, more: bool = True) -> ClaimedBatch | None:
        """Delete what the last batch carried, which must be in the log, and claim the next one.

        Returns None when nothing is staged, or when no ``more`` is wanted. Raises LostLead when
        another streamer continued meanwhile; then nothing was changed.
        """
        if not self._runs and not (more and self._look()):
            return None
        with self._database.transaction():
            if self._runs:
                producer, batch, _ = self._control
                note_batch(self._database, producer, batch, self._runs, self._parts)
                self._database.delete(self._runs)
                self._steps("deleted")
            if more and not self._ahead.runs and self._look():
                self.read_ahead()
            runs, rows = self._ahead if more else _NOTHING
            old = self._control
            new = old._replace(claimed="")
            if runs:
                new = Control(self._producer, old.batch + 1, spell_runs(runs))
            if not self._database.mark(old, new):
                raise LostLead
            self._steps("marked")
            self._steps("committing")
        self._control, self._runs, self._ahead, self._parts = new, runs, _NOTHING, ()
        self._steps("claimed" if runs else "cleared")
        return ClaimedBatch(new.producer, new.batch, rows) if runs else None

    def read_ahead(self) -> None:
        """Read the rows of the next batch, if it is listed already; they do not change any more."""
        runs = self._take()
        self._ahead = _NOTHING
        if runs:
            rows = self._database.batch_rows(runs, _has_ids(self._producer))
            self._ahead = _Ahead(runs, rows)

    def _look(self) -> bool:
        if self._at == len(self._listed):
            self._listed = self._database.listed(self._most * _LISTED_BATCHES)
            self._at = 0
        return bool(self._listed)

    def _take(self) -> Runs:
        part = self._listed[self._at : self._at + self._most]
        if sum(size for _, size in part) > _BATCH_BYTES:
            within = takewhile(lambda total: total <= _BATCH_BYTES, accumulate(s for _, s in part))
            part = part[: max(sum(1 for _ in within), 1)]
        self._at += len(part)
        return runs_of([number for number, _ in part])


def _has_ids(producer: str) -> bool:
    return producer.endswith(ID_HEADER)
