"""Postgres for the table source: binary copies through ADBC, each task in a connection of its own.

What has no type of its own in Spark (json, uuid, enums, arrays, intervals, networks) comes as the
text that Postgres shows. Every task reads one statement and so sees one moment; tasks see the same
moment when they are given a ``snapshot`` that somebody holds open.
"""

from __future__ import annotations

import datetime as dt
import decimal
import math
from collections.abc import Iterator, Sequence
from contextlib import closing
from typing import Any

import psycopg
import pyarrow as pa
from pyspark.sql import types as t
from sqlalchemy import URL

from headwater.errors import QueryRefused
from headwater.spark.tables.database import Column, decimal_type
from headwater.sql.engines import PostgresServer
from headwater.sql.schemas import Relation, quoted

_BATCH_BYTES = 16 * 1024 * 1024
_SAME: dict[str, t.DataType] = {
    "int2": t.ShortType(),
    "int4": t.IntegerType(),
    "int8": t.LongType(),
    "oid": t.LongType(),
    "float4": t.FloatType(),
    "float8": t.DoubleType(),
    "bool": t.BooleanType(),
    "bytea": t.BinaryType(),
    "date": t.DateType(),
    "timestamp": t.TimestampType(),
    "timestamptz": t.TimestampType(),
}
_CASTS: dict[type[t.DataType], str] = {
    t.ByteType: "int2",
    t.ShortType: "int2",
    t.IntegerType: "int4",
    t.LongType: "int8",
    t.FloatType: "float4",
    t.DoubleType: "float8",
    t.BooleanType: "bool",
    t.BinaryType: "bytea",
    t.DateType: "date",
    t.TimestampType: "timestamptz",
    t.TimestampNTZType: "timestamp",
    t.DecimalType: "numeric",
    t.StringType: "text",
}


class PostgresTables:
    """A database of Postgres."""

    def __init__(self, url: URL, snapshot: str | None) -> None:
        self._server = PostgresServer(url)
        self._snapshot = snapshot
        self.where = self._server.where

    def columns(self, relation: Relation) -> list[Column]:
        """See TableDatabase."""
        with closing(self._connect()) as connection:
            cursor = self._run(connection, f"SELECT * FROM {relation.sql} LIMIT 0")
            found = cursor.description or []
            codes = sorted({column.type_code for column in found})
            names = dict(
                self._run(
                    connection,
                    "SELECT oid::int8, typname FROM pg_type WHERE oid IN "
                    f"({', '.join(map(str, codes)) or '0'})",
                )
            )
        columns = []
        for column in found:
            kind = names.get(column.type_code, "text")
            numeric = kind == "numeric"
            same = _SAME.get(kind, t.StringType())
            wanted = decimal_type(column.precision, column.scale) if numeric else same
            columns.append(Column(column.name, kind, wanted))
        return columns

    def key(self, relation: Relation) -> str | None:
        """See TableDatabase."""
        if relation.query is not None:
            return None
        table = self.literal(relation.sql)
        rows = self.rows(
            "SELECT a.attname FROM pg_index i JOIN pg_attribute a ON a.attrelid = i.indrelid "
            f"AND a.attnum = ANY(i.indkey) WHERE i.indisprimary AND i.indrelid = {table}::regclass"
        )
        return rows[0][0] if len(rows) == 1 else None

    def selected(self, column: Column, wanted: t.DataType) -> str:
        """See TableDatabase."""
        name, cast = quoted(column.name), _CASTS[type(wanted)]
        if cast == column.kind:
            return name
        if {cast, column.kind} == {"timestamp", "timestamptz"}:
            # Both ways: a time without a zone is one of UTC.
            return f"({name} AT TIME ZONE 'UTC')"
        return f"{name}::{cast}"

    def compared(self, column: Column, wanted: t.DataType) -> str | None:
        """See TableDatabase."""
        if isinstance(wanted, t.FloatType | t.TimestampNTZType):
            return None
        expression = self.selected(column, wanted)
        return f'{expression} COLLATE "C"' if isinstance(wanted, t.StringType) else expression

    def ordered(self, column: Column) -> str:
        """See TableDatabase."""
        if isinstance(column.type, t.StringType):
            return f'{quoted(column.name)}::text COLLATE "C"'
        return self.selected(column, column.type)

    def literal(self, value: Any) -> str | None:
        """See TableDatabase."""
        if isinstance(value, bool):
            return str(value).upper()
        if isinstance(value, int):
            return f"({value})"
        if isinstance(value, float):
            return f"'{value!r}'::float8" if not math.isnan(value) else None
        if isinstance(value, decimal.Decimal):
            return f"'{value}'::numeric" if value.is_finite() else None
        if isinstance(value, str):
            return None if "\0" in value else "'" + value.replace("'", "''") + "'"
        if isinstance(value, bytes):
            return f"'\\x{value.hex()}'::bytea"
        if isinstance(value, dt.datetime):
            return f"'{value.isoformat()}'::timestamptz" if value.tzinfo else None
        if isinstance(value, dt.date):
            return f"'{value.isoformat()}'::date"
        return None

    def rows(self, sql: str) -> list[tuple[Any, ...]]:
        """See TableDatabase."""
        with closing(self._connect()) as connection:
            return self._run(connection, sql).fetchall()

    def batches(
        self,
        relation: Relation,
        columns: Sequence[tuple[Column, t.DataType]],
        where: str,
        rows: int,
    ) -> Iterator[pa.RecordBatch]:
        """See TableDatabase."""
        from adbc_driver_manager import Error

        selected = ", ".join(
            f"{self.selected(column, wanted)} AS {quoted(column.name)}"
            for column, wanted in columns
        )
        sql = f"SELECT {selected} FROM {relation.sql}" + (f" WHERE {where}" if where else "")
        with self._server.connect_adbc() as connection, connection.cursor() as cursor:
            cursor.adbc_statement.set_options(
                **{"adbc.postgresql.batch_size_hint_bytes": str(_BATCH_BYTES)}
            )
            try:
                for setting in self._settings():
                    cursor.execute(setting)
                cursor.execute(sql)
                for batch in cursor.fetch_record_batch():
                    for at in range(0, batch.num_rows, rows):
                        yield batch.slice(at, rows)
            except (Error, OSError) as error:
                raise QueryRefused(self.where, self._server.reason(error)) from None

    def _settings(self) -> list[str]:
        """Return what makes our literals mean what we mean, and the snapshot to read from."""
        settings = ["SET standard_conforming_strings = on", "SET datestyle = 'ISO'"]
        if self._snapshot is not None:
            settings += [
                "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY",
                f"SET TRANSACTION SNAPSHOT {self.literal(self._snapshot)}",
            ]
        return settings

    def _connect(self) -> psycopg.Connection[tuple[Any, ...]]:
        connection = self._server.connect()
        for setting in self._settings():
            self._run(connection, setting)
        return connection

    def _run(
        self, connection: psycopg.Connection[tuple[Any, ...]], sql: str
    ) -> psycopg.Cursor[tuple[Any, ...]]:
        try:
            return connection.execute(sql.encode())
        except psycopg.Error as error:
            raise QueryRefused(self.where, self._server.reason(error)) from None
