"""SQLite for the table source: a column has its declared type, and its values must fit it.

SQLite keeps any value in any column, and its ADBC driver guesses types from the first rows. Here a
first row of our own, which is dropped, decides the types; a value that does not fit then stops the
driver, and is looked up, so that the error can show it.
"""

from __future__ import annotations

import math
import re
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing
from typing import Any

import pyarrow as pa
from pyspark.sql import types as t
from sqlalchemy import URL

from headwater.errors import QueryRefused, ValueMisfit
from headwater.spark.tables.database import Column, decimal_type
from headwater.sql.engines import SqliteFile
from headwater.sql.schemas import Relation, quoted

_LOOK_AHEAD = 1000
_WAIT_S = 30
_INTEGERS = (t.ByteType, t.ShortType, t.IntegerType, t.LongType)
_FLOATS = (t.FloatType, t.DoubleType)
_TIMES = (t.DateType, t.TimestampType, t.TimestampNTZType)
_DECLARED: tuple[tuple[str, t.DataType], ...] = (
    ("BOOL", t.BooleanType()),
    ("DATETIME", t.TimestampType()),
    ("TIMESTAMP", t.TimestampType()),
    ("DATE", t.DateType()),
    ("INT", t.LongType()),
    ("CHAR", t.StringType()),
    ("CLOB", t.StringType()),
    ("TEXT", t.StringType()),
    ("JSON", t.StringType()),
    ("UUID", t.StringType()),
    ("TIME", t.StringType()),
    ("BLOB", t.BinaryType()),
    ("BINARY", t.BinaryType()),
    ("REAL", t.DoubleType()),
    ("FLOA", t.DoubleType()),
    ("DOUB", t.DoubleType()),
)


class SqliteTables:
    """A file of SQLite, opened to read only."""

    def __init__(self, url: URL) -> None:
        self._file = SqliteFile(url)
        self.where = self._file.where

    def columns(self, relation: Relation) -> list[Column]:
        """See TableDatabase; a column without a declared type has that of its first values."""
        with closing(self._connect()) as connection:
            if relation.query is None:
                name, *schema = reversed(relation.parts)
                place = f"{quoted(schema[0])}." if schema else ""
                found = self._run(connection, f"PRAGMA {place}table_xinfo({quoted(name)})")
                # Hidden columns of virtual tables are no data; generated ones (2, 3) are.
                rows = [(row[1], row[2]) for row in found if row[6] != 1]
                if not rows:
                    raise QueryRefused(self.where, f"there is no {relation}")
            else:
                self._run(connection, f"CREATE TEMP VIEW hw_query AS {relation.query}")
                found = self._run(connection, "PRAGMA temp.table_info(hw_query)")
                rows = [(row[1], row[2]) for row in found]
            return [
                Column(name, kind, _type_of(kind) or self._judge(connection, relation, name))
                for name, kind in rows
            ]

    def key(self, relation: Relation) -> str | None:
        """See TableDatabase."""
        if relation.query is not None:
            return None
        name, *schema = reversed(relation.parts)
        place = f"{quoted(schema[0])}." if schema else ""
        with closing(self._connect()) as connection:
            found = self._run(connection, f"PRAGMA {place}table_info({quoted(name)})")
        keys = [row[1] for row in found if row[5]]
        return keys[0] if len(keys) == 1 else None

    def selected(self, column: Column, wanted: t.DataType) -> str:
        """See TableDatabase."""
        name = quoted(column.name)
        if isinstance(wanted, _FLOATS):
            return f"CASE typeof({name}) WHEN 'integer' THEN CAST({name} AS REAL) ELSE {name} END"
        if isinstance(wanted, t.StringType | t.DecimalType):
            return (
                f"CASE WHEN typeof({name}) IN ('integer', 'real') "
                f"THEN CAST({name} AS TEXT) ELSE {name} END"
            )
        if isinstance(wanted, t.BinaryType):
            return f"CASE typeof({name}) WHEN 'text' THEN CAST({name} AS BLOB) ELSE {name} END"
        return name

    def compared(self, column: Column, wanted: t.DataType) -> str | None:
        """See TableDatabase; decimals and times lie there as texts of many spellings."""
        if isinstance(wanted, (t.DecimalType, t.BinaryType, t.FloatType, *_TIMES)):
            return None
        # Texts come as an expression, which has no collation of its own: bytes are compared.
        return self.selected(column, wanted)

    def ordered(self, column: Column) -> str:
        """See TableDatabase."""
        return f"{quoted(column.name)} COLLATE BINARY"

    def literal(self, value: Any) -> str | None:
        """See TableDatabase."""
        if isinstance(value, bool):
            return str(int(value))
        if isinstance(value, int):
            return str(value) if -(2**63) <= value < 2**63 else None
        if isinstance(value, float):
            return repr(value) if math.isfinite(value) else None
        if isinstance(value, str):
            return None if "\0" in value else "'" + value.replace("'", "''") + "'"
        if isinstance(value, bytes):
            return f"x'{value.hex()}'"
        return None

    def rows(self, sql: str) -> list[tuple[Any, ...]]:
        """See TableDatabase."""
        with closing(self._connect()) as connection:
            return self._run(connection, sql)

    def batches(
        self,
        relation: Relation,
        columns: Sequence[tuple[Column, t.DataType]],
        where: str,
        rows: int,
    ) -> Iterator[pa.RecordBatch]:
        """See TableDatabase."""
        from adbc_driver_manager import Error
        from adbc_driver_sqlite import dbapi

        types = [_settled(wanted) for _, wanted in columns]
        first = ", ".join(
            f"{sample} AS {quoted(column.name)}"
            for (_, sample), (column, _) in zip(types, columns, strict=True)
        )
        rest = ", ".join(self.selected(column, wanted) for column, wanted in columns)
        source = f"{rest} FROM {relation.sql}" + (f" WHERE {where}" if where else "")
        self._file.check()
        with dbapi.connect(self._file.read_only_uri) as connection, connection.cursor() as cursor:
            cursor.adbc_statement.set_options(**{"adbc.sqlite.query.batch_rows": str(rows)})
            try:
                cursor.execute(f"SELECT {first} UNION ALL SELECT {source}")
                skip = 1
                for batch in cursor.fetch_record_batch():
                    if [field.type for field in batch.schema] != [arrow for arrow, _ in types]:
                        raise pa.ArrowInvalid("a value is of another type than its column")
                    yield batch.slice(skip)
                    skip = 0
            except (Error, pa.ArrowInvalid, OSError) as error:
                raise self._misfit(relation, columns, where) or QueryRefused(
                    self.where, str(error)
                ) from error

    def _misfit(
        self, relation: Relation, columns: Sequence[tuple[Column, t.DataType]], where: str
    ) -> ValueMisfit | None:
        """Return the error about a value that stopped the driver; None if it was no value."""
        for column, wanted in columns:
            name, held = quoted(column.name), ", ".join(f"'{word}'" for word in _held(wanted))
            found = self.rows(
                f"SELECT typeof({name}), substr(quote({name}), 1, 60) FROM {relation.sql} "
                f"WHERE typeof({name}) NOT IN ('null', {held}) {where and f'AND {where}'} LIMIT 1"
            )
            if found:
                kind, value = found[0]
                why = f"it holds the {kind} {value}"
                return ValueMisfit(str(relation), column.name, wanted.simpleString(), why)
        return None

    def _connect(self) -> sqlite3.Connection:
        return self._file.connect(wait_s=_WAIT_S, read_only=True)

    def _run(self, connection: sqlite3.Connection, sql: str) -> list[tuple[Any, ...]]:
        try:
            return connection.execute(sql).fetchall()
        except (sqlite3.Error, sqlite3.Warning) as error:
            raise QueryRefused(self.where, str(error)) from error

    def _judge(self, connection: sqlite3.Connection, relation: Relation, name: str) -> t.DataType:
        """Return a type for a column that declares none, by its first values."""
        sql = (
            f"SELECT DISTINCT typeof(c) FROM (SELECT {quoted(name)} AS c FROM {relation.sql} "
            f"WHERE c IS NOT NULL LIMIT {_LOOK_AHEAD})"
        )
        kinds = {row[0] for row in self._run(connection, sql)}
        if kinds == {"integer"}:
            return t.LongType()
        if kinds and kinds <= {"integer", "real"}:
            return t.DoubleType()
        return t.BinaryType() if kinds == {"blob"} else t.StringType()


def _type_of(declared: str) -> t.DataType | None:
    """Return the type that a declared type stands for; None for one that stands for nothing."""
    words = declared.upper()
    if "DEC" in words or "NUMERIC" in words or "NUMBER" in words:
        bounds = re.search(r"\(\s*(\d+)\s*(?:,\s*(\d+)\s*)?\)", words)
        if bounds is None:
            return decimal_type(None, None)
        return decimal_type(int(bounds[1]), int(bounds[2] or 0))
    return next((kind for word, kind in _DECLARED if word in words), None)


def _settled(wanted: t.DataType) -> tuple[pa.DataType, str]:
    """Return the type that the driver shall return, and a value that makes it do so."""
    if isinstance(wanted, (*_INTEGERS, t.BooleanType)):
        return pa.int64(), "0"
    if isinstance(wanted, _FLOATS):
        return pa.float64(), "0.5"
    if isinstance(wanted, t.BinaryType):
        return pa.binary(), "x'00'"
    return pa.string(), "'-'"


def _held(wanted: t.DataType) -> tuple[str, ...]:
    """Return the kinds of values that fit a type."""
    if isinstance(wanted, (*_INTEGERS, t.BooleanType)):
        return ("integer",)
    if isinstance(wanted, _FLOATS):
        return ("integer", "real")
    if isinstance(wanted, t.BinaryType):
        return ("blob", "text")
    return ("text",) if isinstance(wanted, _TIMES) else ("text", "integer", "real")
