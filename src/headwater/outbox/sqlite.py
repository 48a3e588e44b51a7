"""The streamer's side of the outbox on SQLite: its SQL, a lock file, a short poll."""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

from headwater.outbox.batches import Runs
from headwater.outbox.database import OutboxDatabase, Row, process_name

_CLOCK = "CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER)"
# A character has four bytes at most.
_ROW_BYTES = "4 * length(tag) + length(value) + length(headers)"
# Of a run of ids; there is one run, unless transactions took turns or rolled back.
_ROWS = """
SELECT stream, tag, value FROM headwater_outbox WHERE id BETWEEN ? AND ? ORDER BY id
"""
_HEADED_ROWS = _ROWS.replace("value", "value, headers, id")
_DELETE = "DELETE FROM headwater_outbox WHERE id BETWEEN ? AND ?"

# To look whether anything was committed costs a few microseconds: while there is traffic it is done
# often, and less often after a second without.
_BUSY_POLL_S = 0.003
_IDLE_POLL_S = 0.015
_IDLE_AFTER_S = 1.0

# A process that asks whether a streamer leads holds its lock for a moment.
_MOMENT_S = 0.002
_NAME_CHARS = 200


@cache
def _spelled(statement: str) -> str:
    return statement.replace("{clock}", _CLOCK).replace("{row_bytes}", _ROW_BYTES)


class SqliteDatabase(OutboxDatabase):
    """A SQLite connection on which the streamer works.

    ``lock`` is the path of the leader's lock, or, for a database in memory, a lock in memory.
    """

    dialect = "sqlite"

    def __init__(self, connection: sqlite3.Connection, lock: str | threading.Lock) -> None:
        self._connection = connection
        self._before: Any = connection.isolation_level
        # Transactions begin where we say so.
        connection.isolation_level = None
        self._cursor = connection.cursor()
        self._cursor.row_factory = None
        self._lock = lock
        self._held: int | None = None
        self._leads = False
        self._version = 0
        self._changed = 0.0

    def fetch(self, statement: str, *values: Any) -> list[Any]:
        """See OutboxDatabase."""
        return self._cursor.execute(_spelled(statement), values).fetchall()

    def change(self, statement: str, *values: Any) -> int:
        """See OutboxDatabase."""
        return self._cursor.execute(_spelled(statement), values).rowcount

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """See OutboxDatabase."""
        self._cursor.execute("BEGIN IMMEDIATE")
        try:
            yield
            self._cursor.execute("COMMIT")
        except BaseException:
            # After some errors SQLite has rolled back by itself.
            if self._connection.in_transaction:
                self._cursor.execute("ROLLBACK")
            raise

    def rows(self, runs: Runs, *, headed: bool) -> list[Row]:
        """See OutboxDatabase."""
        statement = _HEADED_ROWS if headed else _ROWS
        return [row for run in runs for row in self._cursor.execute(statement, run)]

    def delete(self, runs: Runs) -> None:
        """See OutboxDatabase."""
        self._cursor.executemany(_DELETE, runs)

    def lead(self) -> bool:
        """See OutboxDatabase; a lock file is free when the process that held it is gone."""
        for _ in range(3):
            if not self._leads and self._try():
                self._leads = True
                if self._held is not None:
                    os.ftruncate(self._held, 0)
                    os.pwrite(self._held, process_name().encode(), 0)
            if self._leads or not isinstance(self._lock, str):
                break
            time.sleep(_MOMENT_S)
        return self._leads

    def leader(self) -> str | None:
        """See OutboxDatabase; the leader writes its name into the file of its lock."""
        if not self._leads and self._try():
            self._give_up()
            return None
        if not isinstance(self._lock, str):
            return process_name()  # a database in memory is of this process alone
        with Path(self._lock).open(encoding="utf-8", errors="replace") as lock:
            return lock.read(_NAME_CHARS) or "a process"

    def watch(self) -> None:
        """See OutboxDatabase."""
        ((self._version,),) = self.fetch("PRAGMA data_version")

    def wait(self, seconds: float, stop: int) -> None:
        """See OutboxDatabase: returns when another connection has committed anything."""
        poll = select.poll()
        poll.register(stop, select.POLLIN)
        if not isinstance(self._lock, str):
            # It may change by this very connection, which data_version does not show.
            poll.poll(min(seconds, _BUSY_POLL_S) * 1000)
            return
        until = time.monotonic() + seconds
        while (now := time.monotonic()) < until:
            ((version,),) = self.fetch("PRAGMA data_version")
            if version != self._version:
                self._version, self._changed = version, now
                return
            idle = now - self._changed > _IDLE_AFTER_S
            if poll.poll((_IDLE_POLL_S if idle else _BUSY_POLL_S) * 1000):
                return

    def close(self) -> None:
        """See OutboxDatabase."""
        if self._leads:
            self._give_up()
        self._cursor.close()
        with contextlib.suppress(sqlite3.Error):
            self._connection.isolation_level = self._before

    def _try(self) -> bool:
        if isinstance(self._lock, str):
            self._held = _try_lock(self._lock)
            return self._held is not None
        return self._lock.acquire(blocking=False)

    def _give_up(self) -> None:
        self._leads = False
        if self._held is not None:
            os.close(self._held)
            self._held = None
        elif not isinstance(self._lock, str):
            self._lock.release()


def _try_lock(path: str) -> int | None:
    """Take the lock of a file; None when another open file has it."""
    lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        return None
    except BaseException:
        os.close(lock)
        raise
    return lock
