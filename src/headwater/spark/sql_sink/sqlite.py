"""SQLite for the SQL sink.

One process writes at a time; others wait for it, up to a minute. So tasks ingest in portions, each
a transaction of its own, and the file is in WAL mode, in which readers do not wait.

Tasks use ADBC's SQLite and the driver Python's, and no process both: POSIX locks do not hold
between two copies of SQLite in one process.
"""

from __future__ import annotations

import itertools
import re
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager

import pyarrow as pa
from pyspark.sql import types as t
from sqlalchemy import URL

from headwater.errors import InvalidInput, QueryRefused, WriteRefused
from headwater.spark.sql_sink.database import STAGED, Described
from headwater.sql.driver_errors import reason_of
from headwater.sql.engines import SqliteFile
from headwater.sql.schemas import Relation, quoted

_WAIT_S = 60
_PORTION = 100_000
_INTEGERS = (t.ByteType, t.ShortType, t.IntegerType, t.LongType, t.BooleanType)
_FLOATS = (t.FloatType, t.DoubleType)
_TIMES = (t.DateType, t.TimestampType, t.TimestampNTZType)
# A time does not become a number in any column, but does not belong in a column of numbers.
_NUMERIC_NAMES = re.compile("DEC|NUM|BOOL", re.IGNORECASE)


class SqliteSink:
    """A file of SQLite."""

    mark = "?"

    def __init__(self, url: URL) -> None:
        self._file = SqliteFile(url)
        self.where = self._file.where
        name = str(self._file.path)
        self.url = URL.create("sqlite", database=name, query={"timeout": str(_WAIT_S)})

    def describe(self, relation: Relation) -> Described:
        """See SinkDatabase."""
        if relation.parts[:-1] not in ((), ("main",)):
            raise InvalidInput(f"SQLite has no schemas; name the table alone, not as {relation}")
        name = quoted(relation.parts[-1])
        with self._reading() as connection:
            rows = connection.execute(f"PRAGMA table_info({name})").fetchall()
            if not rows:
                raise QueryRefused(self.where, f"there is no {relation}")
            keyed = sorted((row[5], row[1]) for row in rows if row[5])
            key = tuple(column for _, column in keyed)
            unique = {frozenset(key)} if key else set()
            # A partial index (the fifth column) is not about all rows.
            for _, index, is_unique, _, partial in connection.execute(f"PRAGMA index_list({name})"):
                found = connection.execute(f"PRAGMA index_info({quoted(index)})").fetchall()
                columns = [row[2] for row in found]
                if is_unique and not partial and None not in columns:
                    unique.add(frozenset(columns))
        return Described({row[1]: row[2] for row in rows}, frozenset(unique), key)

    def staged(self, relation: Relation) -> list[str]:  # noqa: ARG002  there is one place only
        """See SinkDatabase."""
        with self._reading() as connection:
            found = connection.execute("SELECT name FROM sqlite_master").fetchall()
        return [name for (name,) in found if name.startswith(STAGED)]

    def cast(self, given: t.DataType, kind: str) -> str | None:
        """See SinkDatabase; a cast of "time" is what ``column`` understands."""
        affinity = _affinity(kind)
        if isinstance(given, _INTEGERS):
            # The affinity REAL turns a whole number into a float, which rounds long ones.
            rounded = affinity == "real" and isinstance(given, t.LongType)
            return "" if affinity != "text" and not rounded else None
        if isinstance(given, _FLOATS):
            return "" if affinity in ("real", "numeric", "any") else None
        if isinstance(given, t.BinaryType):
            return "" if affinity == "any" else None
        if isinstance(given, t.StringType):
            # Elsewhere a text that looks like a number becomes one.
            return "" if affinity in ("text", "any") else None
        if isinstance(given, _TIMES):
            if affinity in ("integer", "real") or _NUMERIC_NAMES.match(kind):
                return None
            return "" if isinstance(given, t.DateType) else "time"
        return None

    def stage(self, relation: Relation, name: str, batches: Iterator[pa.RecordBatch]) -> None:
        """See SinkDatabase."""
        from adbc_driver_manager import Error
        from adbc_driver_sqlite import dbapi

        self._file.check()
        with (
            dbapi.connect(str(self._file.path), autocommit=True) as connection,
            connection.cursor() as cursor,
        ):
            cursor.execute(f"PRAGMA busy_timeout = {_WAIT_S * 1000}")
            cursor.fetchall()
            for portion in _portions(batches):
                try:
                    cursor.adbc_ingest(name, portion, mode="create_append")
                except Error as error:
                    raise WriteRefused(
                        self.where, str(relation), reason_of(error, self.url)
                    ) from None

    def column(self, name: str, cast: str) -> str:
        """See SinkDatabase; a time is written with a space, as SQLite's own functions do."""
        return f"replace({quoted(name)}, 'T', ' ')" if cast else quoted(name)

    def all_rows(self, columns: str, source: str) -> str:
        """See SinkDatabase."""
        return f"SELECT {columns} FROM {source} ORDER BY rowid"

    def last_rows(self, columns: str, source: str, key: str) -> str:  # noqa: ARG002  not needed
        """See SinkDatabase; rows are inserted one after the other, so the last of a key stays."""
        # WHERE true lets SQLite tell the ON of a conflict from that of a join.
        return f"SELECT {columns} FROM {source} WHERE true ORDER BY rowid"

    def sum_with(self, column: str) -> str:
        """See SinkDatabase."""
        # The function sum() refuses what does not fit an integer; + would turn it into a float.
        return f"(SELECT sum(v) FROM (SELECT t.{column} AS v UNION ALL SELECT excluded.{column}))"

    @contextmanager
    def transaction(self, relation: Relation) -> Iterator[sqlite3.Cursor]:
        """See SinkDatabase."""
        with closing(self._file.connect(wait_s=_WAIT_S)) as connection:
            cursor = connection.cursor()
            try:
                cursor.execute("BEGIN IMMEDIATE")
                yield cursor
                cursor.execute("COMMIT")
            except sqlite3.Error as error:
                raise WriteRefused(self.where, str(relation), str(error)) from None

    @contextmanager
    def _reading(self) -> Iterator[sqlite3.Connection]:
        with closing(self._file.connect(wait_s=_WAIT_S)) as connection:
            try:
                yield connection
            except sqlite3.Error as error:
                raise QueryRefused(self.where, str(error)) from None


def _affinity(kind: str) -> str:
    """Return the affinity of a column of a declared type, by SQLite's rules."""
    kind = kind.upper()
    if "INT" in kind:
        return "integer"
    if any(word in kind for word in ("CHAR", "CLOB", "TEXT")):
        return "text"
    if not kind or "BLOB" in kind:
        return "any"
    if any(word in kind for word in ("REAL", "FLOA", "DOUB")):
        return "real"
    return "numeric"


def _portions(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.Table]:
    """Gather batches into portions; times are in UTC."""
    rows, gathered = 0, []
    for batch in itertools.chain(batches, [None]):
        if batch is not None:
            gathered.append(_in_utc(batch))
            rows += batch.num_rows
        if rows >= _PORTION or (batch is None and rows):
            yield pa.Table.from_batches(gathered)
            rows, gathered = 0, []


def _in_utc(batch: pa.RecordBatch) -> pa.RecordBatch:
    columns = [
        column.cast(pa.timestamp("us", "UTC"))
        if pa.types.is_timestamp(column.type) and column.type.tz
        else column
        for column in batch.columns
    ]
    return pa.RecordBatch.from_arrays(columns, names=batch.schema.names)
