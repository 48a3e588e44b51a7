"""The streamer's side of the outbox on Postgres: its SQL, the lock of the leader, LISTEN."""

from __future__ import annotations

import select
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from typing import Any

import psycopg
from psycopg.rows import tuple_row

from headwater.outbox.batches import Runs
from headwater.outbox.database import OutboxDatabase, Row, process_name
from headwater.outbox.schema import CHANNEL

# For this session only. The rows of the table are short-lived, so its statistics are always wrong,
# and an index scan is always right. A leader whose host is gone is noticed within ten seconds.
_SETTINGS = """
SELECT set_config('enable_seqscan', 'off', false), set_config('enable_bitmapscan', 'off', false),
       set_config('jit', 'off', false), set_config('tcp_keepalives_idle', '4', false),
       set_config('tcp_keepalives_interval', '2', false),
       set_config('tcp_keepalives_count', '3', false)
"""
_CLOCK = "(extract(epoch FROM clock_timestamp()) * 1000)::bigint"
_ROW_BYTES = "octet_length(tag) + octet_length(value) + octet_length(headers)"
_ROWS = """
SELECT stream, tag, value
FROM unnest(%s::bigint[], %s::bigint[]) AS run(first, last)
JOIN headwater_outbox ON id BETWEEN first AND last
ORDER BY id
"""
_HEADED_ROWS = _ROWS.replace("value", "value, headers, id")
_DELETE = """
DELETE FROM headwater_outbox USING unnest(%s::bigint[], %s::bigint[]) AS run(first, last)
WHERE id BETWEEN first AND last
"""
# The lock is that of this very table, so that outboxes in several schemas do not share one.
_LEAD = "SELECT pg_try_advisory_lock(1751344739, 'headwater_streamer'::regclass::oid::int)"
_GIVE_UP = "SELECT pg_advisory_unlock(1751344739, 'headwater_streamer'::regclass::oid::int)"
# What a session is called is shown to others of the same role.
_NAME = "SELECT set_config('application_name', %s, false)"
_NAMED = "headwater streamer "
_LEADER = """
SELECT pid, application_name FROM pg_locks LEFT JOIN pg_stat_activity USING (pid)
WHERE locktype = 'advisory' AND classid = 1751344739 AND granted
AND objid = 'headwater_streamer'::regclass AND objsubid = 2
AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
"""


@cache
def _spelled(statement: str) -> str:
    text = statement.replace("{clock}", _CLOCK).replace("{row_bytes}", _ROW_BYTES)
    return text.replace("?", "%s")


class PostgresDatabase(OutboxDatabase):
    """A Postgres session in which the streamer works."""

    dialect = "postgresql"

    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        self._connection = connection
        self._leads = False
        self._watches = False
        self._news = False
        if connection.info.transaction_status != psycopg.pq.TransactionStatus.IDLE:
            connection.rollback()
        connection.autocommit = True
        connection.isolation_level = psycopg.IsolationLevel.READ_COMMITTED
        self._cursor = psycopg.Cursor(connection, row_factory=tuple_row)
        self._cursor.execute(_SETTINGS)

    def fetch(self, statement: str, *values: Any) -> list[Any]:
        """See OutboxDatabase."""
        return self._cursor.execute(_spelled(statement), values, binary=True).fetchall()

    def change(self, statement: str, *values: Any) -> int:
        """See OutboxDatabase."""
        return self._cursor.execute(_spelled(statement), values).rowcount

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """See OutboxDatabase."""
        with self._connection.transaction():
            yield

    def rows(self, runs: Runs, *, headed: bool) -> list[Row]:
        """See OutboxDatabase."""
        return self.fetch(_HEADED_ROWS if headed else _ROWS, *_arrays(runs))

    def delete(self, runs: Runs) -> None:
        """See OutboxDatabase."""
        self._cursor.execute(_DELETE, _arrays(runs))

    def lead(self) -> bool:
        """See OutboxDatabase."""
        if not self._leads:
            ((self._leads,),) = self.fetch(_LEAD)
            if self._leads:
                self.fetch(_NAME, f"{_NAMED}{process_name()}")
        return self._leads

    def leader(self) -> str | None:
        """See OutboxDatabase; one that names itself to its own role only is a session here."""
        for session, name in self.fetch(_LEADER):
            known = (name or "").startswith(_NAMED)
            return str(name).removeprefix(_NAMED) if known else f"session {session} of Postgres"
        return None

    def watch(self) -> None:
        """See OutboxDatabase."""
        self._watches = True
        self._connection.add_notify_handler(self._hear)
        self._cursor.execute(f"LISTEN {CHANNEL}")

    def wait(self, seconds: float, stop: int) -> None:
        """See OutboxDatabase."""
        if self._news:
            self._news = False
            return
        poll = select.poll()
        poll.register(stop, select.POLLIN)
        # The next statement reads what has arrived, also that the server is gone.
        poll.register(self._connection.fileno(), select.POLLIN)
        poll.poll(seconds * 1000)

    def close(self) -> None:
        """See OutboxDatabase."""
        # When the connection is gone, the server has given up the lead by itself.
        with suppress(psycopg.Error):
            if self._leads:
                self._cursor.execute(_GIVE_UP)
            if self._watches:
                self._connection.remove_notify_handler(self._hear)
                self._cursor.execute("UNLISTEN *")
        self._cursor.close()

    def _hear(self, _: psycopg.Notify) -> None:
        self._news = True


def _arrays(runs: Runs) -> list[str]:
    """Spell the first and the last ids as arrays; quicker than to let the driver do it."""
    return ["{" + ",".join(map(str, ends)) + "}" for ends in zip(*runs, strict=True)]
