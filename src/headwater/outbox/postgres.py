"""The streamer's side of the outbox on Postgres: its SQL, the lock of the leader, LISTEN."""

from __future__ import annotations

import select
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import psycopg
from psycopg.rows import tuple_row

from headwater.errors import NotCreated
from headwater.outbox.database import Control, Row, Runs
from headwater.outbox.schema import CHANNEL, CONTROL, streamer_table

# This session only. The table is short-lived rows, so its statistics are always wrong, and an
# index scan is always right. A leader whose host is gone is noticed within ten seconds.
_SETTINGS = """
SELECT set_config('enable_seqscan', 'off', false), set_config('enable_bitmapscan', 'off', false),
       set_config('jit', 'off', false), set_config('tcp_keepalives_idle', '4', false),
       set_config('tcp_keepalives_interval', '2', false),
       set_config('tcp_keepalives_count', '3', false)
"""
_CLOCK = "(extract(epoch FROM clock_timestamp()) * 1000)::bigint"
_CONTROL = """
SELECT producer, batch, claimed FROM headwater_streamer WHERE name = %s
"""
_MARK = f"""
UPDATE headwater_streamer SET producer = %s, batch = %s, claimed = %s, claimed_ms = {_CLOCK}
WHERE name = %s AND producer = %s AND batch = %s
"""
_LISTED = """
SELECT id, octet_length(tag) + octet_length(value) FROM headwater_outbox ORDER BY id LIMIT %s
"""
_ROWS = """
SELECT stream, tag, value
FROM unnest(%s::bigint[], %s::bigint[]) AS run(first, last)
JOIN headwater_outbox ON id BETWEEN first AND last
ORDER BY id
"""
_DELETE = """
DELETE FROM headwater_outbox USING unnest(%s::bigint[], %s::bigint[]) AS run(first, last)
WHERE id BETWEEN first AND last
"""
_NOW = f"SELECT {_CLOCK}"
_CLAIMED_MS = "SELECT claimed_ms FROM headwater_streamer WHERE name = %s"
_STAGED = """
SELECT (SELECT count(*) FROM (SELECT FROM headwater_outbox LIMIT %s) AS counted),
       (SELECT max(id) - min(id) + 1 FROM headwater_outbox),
       (SELECT staged_ms FROM headwater_outbox ORDER BY id LIMIT 1)
"""
_CHECKPOINTS = """
SELECT consumer, stream, next_offset, updated_ms FROM headwater_checkpoints ORDER BY 1, 2
"""
# The lock is that of this very table, so that outboxes in several schemas do not share one.
_LEAD = "SELECT pg_try_advisory_lock(1751344739, 'headwater_streamer'::regclass::oid::int)"
_GIVE_UP = "SELECT pg_advisory_unlock(1751344739, 'headwater_streamer'::regclass::oid::int)"
_LEADER_LIVES = """
SELECT EXISTS (
    SELECT FROM pg_locks WHERE locktype = 'advisory' AND classid = 1751344739 AND granted
    AND objid = 'headwater_streamer'::regclass AND objsubid = 2
    AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
)
"""


class PostgresDatabase:
    """A Postgres session in which the streamer works."""

    def __init__(self, connection: psycopg.Connection[Any], where: str) -> None:
        self.where = where
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

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """See OutboxDatabase."""
        with self._connection.transaction():
            yield

    def control(self) -> Control:
        """See OutboxDatabase."""
        if not (found := self._ask(_CONTROL, CONTROL)):
            raise NotCreated(streamer_table.name)
        return Control(*found[0])

    def mark(self, old: Control, new: Control) -> bool:
        """See OutboxDatabase."""
        self._cursor.execute(_MARK, (*new, CONTROL, old.producer, old.batch))
        return self._cursor.rowcount == 1

    def listed(self, limit: int) -> Sequence[tuple[int, int]]:
        """See OutboxDatabase."""
        return self._ask(_LISTED, limit)

    def rows(self, runs: Runs) -> list[Row]:
        """See OutboxDatabase."""
        return self._ask(_ROWS, *_arrays(runs))

    def delete(self, runs: Runs) -> None:
        """See OutboxDatabase."""
        self._cursor.execute(_DELETE, _arrays(runs))

    def claimed_ms(self) -> int:
        """See OutboxDatabase."""
        ((time,),) = self._ask(_CLAIMED_MS, CONTROL)
        return int(time)

    def now_ms(self) -> int:
        """See OutboxDatabase."""
        ((now,),) = self._ask(_NOW)
        return int(now)

    def staged(self, limit: int) -> tuple[int, int, int | None]:
        """See OutboxDatabase."""
        ((count, span, oldest),) = self._ask(_STAGED, limit)
        return count, span or 0, oldest

    def checkpoints(self) -> Sequence[tuple[str, str, int, int]]:
        """See OutboxDatabase."""
        return self._ask(_CHECKPOINTS)

    def lead(self) -> bool:
        """See OutboxDatabase."""
        if not self._leads:
            ((self._leads,),) = self._ask(_LEAD)
        return self._leads

    def leader_lives(self) -> bool:
        """See OutboxDatabase."""
        ((lives,),) = self._ask(_LEADER_LIVES)
        return bool(lives)

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
        # What is there to be read is read by the next statement, also that the server is gone.
        poll.register(self._connection.fileno(), select.POLLIN)
        poll.poll(seconds * 1000)

    def close(self) -> None:
        """See OutboxDatabase."""
        # The server gives the lead up by itself when the connection is no more.
        with suppress(psycopg.Error):
            if self._leads:
                self._cursor.execute(_GIVE_UP)
            if self._watches:
                self._connection.remove_notify_handler(self._hear)
                self._cursor.execute("UNLISTEN *")
        self._cursor.close()

    def _hear(self, _: psycopg.Notify) -> None:
        self._news = True

    def _ask(self, statement: str, *words: Any) -> list[Any]:
        self._cursor.execute(statement, words, binary=True)
        return self._cursor.fetchall()


def _arrays(runs: Runs) -> list[str]:
    """Spell the first and the last ids as arrays; quicker than to let the driver do it."""
    return ["{" + ",".join(map(str, ends)) + "}" for ends in zip(*runs, strict=True)]
