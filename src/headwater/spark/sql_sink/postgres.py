"""Postgres for the SQL sink: tasks ingest by binary COPY, the commit is SQL of one transaction."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from itertools import chain
from typing import Any

import psycopg
import pyarrow as pa
from pyspark.sql import types as t
from sqlalchemy import URL

from headwater.errors import DatabaseUnreachable, HeadwaterError, QueryRefused, WriteRefused
from headwater.spark.sql_sink.database import STAGED, Described
from headwater.sql.engines import PostgresServer
from headwater.sql.schemas import Relation, quoted

_INTEGERS = ("smallint", "integer", "bigint", "numeric")
# Doubles hold all whole numbers of 32 bits, and round longer ones.
_UP_TO_32_BITS = (*_INTEGERS, "double precision")
_TAKES: dict[type[t.DataType], tuple[str, ...]] = {
    t.ByteType: _UP_TO_32_BITS,
    t.ShortType: _UP_TO_32_BITS,
    t.IntegerType: _UP_TO_32_BITS,
    t.LongType: _INTEGERS,
    t.FloatType: ("real", "double precision"),
    t.DoubleType: ("double precision",),
    t.BooleanType: ("boolean",),
    t.BinaryType: ("bytea",),
    t.DateType: ("date", "timestamp without time zone", "timestamp with time zone"),
    t.TimestampType: ("timestamp with time zone", "timestamp without time zone"),
    t.TimestampNTZType: ("timestamp without time zone",),
}
# Everything else that Postgres can read from text takes a string, by an explicit cast.
_NOT_FROM_TEXT = {kind for kinds in _TAKES.values() for kind in kinds}
_TEXTS = ("text", "character varying", "character")
_COLUMNS = """
SELECT a.attname, format_type(a.atttypid, a.atttypmod)
FROM pg_attribute a WHERE a.attrelid = %s::regclass AND a.attnum > 0 AND NOT a.attisdropped
ORDER BY a.attnum
"""
_UNIQUE = """
SELECT i.indisprimary, array_agg(a.attname ORDER BY k.place)
FROM pg_index i
CROSS JOIN LATERAL unnest(i.indkey::int2[]) WITH ORDINALITY AS k (attnum, place)
LEFT JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.attnum AND k.attnum > 0
WHERE i.indrelid = %s::regclass AND i.indisunique AND i.indisvalid AND i.indimmediate
  AND i.indpred IS NULL AND k.place <= i.indnkeyatts
GROUP BY i.indexrelid, i.indisprimary
"""
_STAGED_BESIDE = """
SELECT c.relname FROM pg_class c
WHERE c.relkind = 'r' AND c.relname LIKE %s
  AND c.relnamespace = (SELECT relnamespace FROM pg_class WHERE oid = %s::regclass)
"""


class PostgresSink:
    """A database of Postgres."""

    mark = "%s"

    def __init__(self, url: URL) -> None:
        self.url = url.set(drivername="postgresql+psycopg")
        self._server = PostgresServer(url)
        self.where = self._server.where

    def describe(self, relation: Relation) -> Described:
        """See SinkDatabase."""
        with self._reading() as connection:
            columns = dict(connection.execute(_COLUMNS, (relation.sql,)).fetchall())
            key: tuple[str, ...] = ()
            unique = set()
            for primary, names in connection.execute(_UNIQUE, (relation.sql,)):
                # A part without a name is an expression, which no column can stand for.
                if None not in names:
                    unique.add(frozenset(names))
                    key = tuple(names) if primary else key
        return Described(columns, frozenset(unique), key)

    def staged(self, relation: Relation) -> list[str]:
        """See SinkDatabase."""
        pattern = STAGED.replace("_", r"\_") + "%"
        with self._reading() as connection:
            found = connection.execute(_STAGED_BESIDE, (pattern, relation.sql)).fetchall()
        return [name for (name,) in found]

    def cast(self, given: t.DataType, kind: str) -> str | None:
        """See SinkDatabase."""
        bare = re.sub(r"\(.*?\)", "", kind)
        if isinstance(given, t.DecimalType):
            scale = re.fullmatch(r"numeric\((\d+),(\d+)\)", kind)
            fits = scale is None or given.scale <= int(scale[2])
            return "" if bare == "numeric" and fits else None
        if isinstance(given, t.StringType):
            if bare in _TEXTS:
                return ""
            return None if bare in _NOT_FROM_TEXT else f"::{kind}"
        return "" if bare in _TAKES.get(type(given), ()) else None

    def stage(self, relation: Relation, name: str, batches: Iterator[pa.RecordBatch]) -> None:
        """See SinkDatabase; one COPY takes in all of a task."""
        from adbc_driver_manager import Error

        first = next(batches)
        reader = pa.RecordBatchReader.from_batches(first.schema, chain([first], batches))
        schema = relation.parts[0] if len(relation.parts) > 1 else None
        with self._server.connect_adbc() as connection, connection.cursor() as cursor:
            try:
                cursor.adbc_ingest(name, reader, mode="create", db_schema_name=schema)
            except Error as error:
                why = self._server.reason(error)
                raise WriteRefused(self.where, str(relation), why) from None

    def column(self, name: str, cast: str) -> str:
        """See SinkDatabase."""
        return quoted(name) + cast

    def all_rows(self, columns: str, source: str) -> str:
        """See SinkDatabase; a table without an order of its own keeps none."""
        return f"SELECT {columns} FROM {source}"

    def last_rows(self, columns: str, source: str, key: str) -> str:
        """See SinkDatabase; Postgres refuses to update a row twice in one statement."""
        return f"SELECT DISTINCT ON ({key}) {columns} FROM {source} ORDER BY {key}, ctid DESC"

    def sum_with(self, column: str) -> str:
        """See SinkDatabase."""
        return f"coalesce(t.{column} + excluded.{column}, t.{column}, excluded.{column})"

    @contextmanager
    def transaction(self, relation: Relation) -> Iterator[Any]:
        """See SinkDatabase."""
        with (
            self._session(lambda why: WriteRefused(self.where, str(relation), why)) as connection,
            connection.transaction(),
        ):
            yield _Cursor(connection)

    def _reading(self) -> AbstractContextManager[psycopg.Connection[tuple[Any, ...]]]:
        return self._session(lambda why: QueryRefused(self.where, why))

    @contextmanager
    def _session(
        self, refusal: Callable[[str], HeadwaterError]
    ) -> Iterator[psycopg.Connection[tuple[Any, ...]]]:
        with closing(self._server.connect()) as connection:
            try:
                # Between times with a zone and without one, Postgres converts by the session's.
                connection.execute("SET TIME ZONE 'UTC'")
                yield connection
            except psycopg.OperationalError as error:
                raise DatabaseUnreachable(self.where, self._server.reason(error)) from None
            except psycopg.Error as error:
                raise refusal(self._server.reason(error)) from None


class _Cursor(psycopg.ClientCursor[tuple[Any, ...]]):
    """A cursor that takes a statement without parameters as it is, whatever signs it holds."""

    def execute(self, query: Any, params: Any = None, **options: Any) -> Any:
        return super().execute(query, params or None, **options)
