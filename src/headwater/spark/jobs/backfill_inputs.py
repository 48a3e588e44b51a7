"""What a backfill reads: a table, a query or files, cut into chunks that stay the same.

A chunk is a range of a key, or some files. The cuts are found once and then kept in the plan, so
that a run that goes on after a crash cuts as the first one did. Facts that show whether the input
has changed are kept with them.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import unquote

import msgspec
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  as everybody calls it
from pyspark.sql import types as t

from headwater.errors import InputChanged, InvalidInput
from headwater.spark.jobs.tasks import tasks_at_once
from headwater.spark.tables.database import open_database
from headwater.sql.schemas import Relation

FORMATS = ("parquet", "csv", "json", "orc")
_ORDERED = (t.IntegralType, t.DecimalType, t.StringType, t.DateType, t.TimestampType)
_EVEN = (t.IntegralType, t.DateType, t.TimestampType)


class Chunk(msgspec.Struct, frozen=True, omit_defaults=True):
    """A part of the input: a range of the key, ``low`` included, or files.

    ``high`` is included in the last chunk only. No ``low`` is from the beginning, nulls included.
    """

    rows: int
    low: int | str | None = None
    high: int | str | None = None
    last: bool = False
    files: tuple[str, ...] = ()


class BackfillInput(Protocol):
    """An input of a backfill."""

    def describe(self) -> str:
        """Return what it is called, for people."""

    def facts(self) -> dict[str, Any]:
        """Return what must be the same when a backfill goes on."""

    def columns(self) -> list[str]:
        """Return the names of its columns."""

    def cut(self, rows: int) -> list[Chunk]:
        """Cut it into chunks of about so many rows, in order; reads the input once."""

    def read(self, chunk: Chunk) -> DataFrame:
        """Return the rows of a chunk, in order. Raises InputChanged when they are others by now."""


@dataclass(slots=True)
class TableInput:
    """A table or query of SQLite or Postgres, in the order of a column."""

    spark: SparkSession
    job: str
    url: str = field(repr=False)
    table: str | None = None
    query: str | None = None
    order_by: str | None = None
    _schema: t.StructType = field(init=False)
    _key: str = field(init=False)

    def __post_init__(self) -> None:
        self._key, _ = key_and_columns(self.url, self.table, self.query, self.order_by)
        self._schema = self._load().schema

    def describe(self) -> str:
        """See BackfillInput."""
        return str(Relation.of(self.table, self.query))

    def facts(self) -> dict[str, Any]:
        """See BackfillInput."""
        return {
            "database": open_database(self.url).where,
            "table": self.table,
            "query": self.query,
            "order_by": self._key,
            "columns": self._schema.simpleString(),
        }

    def columns(self) -> list[str]:
        """See BackfillInput."""
        return self._schema.names

    def cut(self, rows: int) -> list[Chunk]:
        """See BackfillInput."""
        return cut_by_key(self._load(self._keys(), **self._spread({})), self._key, rows)

    def read(self, chunk: Chunk) -> DataFrame:
        """See BackfillInput."""
        within = within_chunk(chunk, self._key, self._schema[self._key].dataType)
        found = self._load(self._keys()).where(within).count()
        if found != chunk.rows:
            begins = "its beginning" if chunk.low is None else repr(chunk.low)
            raise InputChanged(
                self.job,
                f"{self.describe()} has {found} rows from {begins} on where it had {chunk.rows}",
            )
        cut = {"lowerBound": chunk.low, "upperBound": chunk.high}
        frame = self._load(self._schema, **self._spread(cut)).where(within)
        # The parts of the table are in order of the key, and each is sorted: so is the whole.
        return frame.sortWithinPartitions(F.col(quoted(self._key)))

    def _load(self, schema: t.StructType | None = None, **options: str) -> DataFrame:
        named = {"table": self.table, "query": self.query}
        options |= {name: text for name, text in named.items() if text is not None}
        reader = self.spark.read.format("headwater_table").options(url=self.url, **options)
        return (reader if schema is None else reader.schema(schema)).load()

    def _keys(self) -> t.StructType:
        return t.StructType([self._schema[self._key]])

    def _spread(self, bounds: Mapping[str, int | str | None]) -> dict[str, str]:
        """Let several tasks read, where a key can be cut into even steps."""
        kind = self._schema[self._key].dataType
        if not isinstance(kind, _EVEN):
            return {}
        known = {name: bound for name, bound in bounds.items() if bound is not None}
        if isinstance(kind, t.TimestampType) or len(known) < 2:
            known = {}
        tasks = str(tasks_at_once(self.spark))
        return {"partitionColumn": self._key, "numPartitions": tasks} | {
            name: str(bound) for name, bound in known.items()
        }


def key_and_columns(
    url: str, table: str | None, query: str | None, order_by: str | None
) -> tuple[str, list[str]]:
    """Return the column that a table is cut and ordered by, and all its columns, without Spark.

    Raises InvalidInput, QueryRefused, DatabaseUnreachable.
    """
    database, relation = open_database(url), Relation.of(table, query)
    columns = database.columns(relation)
    key = order_by or database.key(relation)
    if key is None:
        raise InvalidInput(
            f"{relation} has no primary key of one column; name a column by order_by, which "
            "its rows are cut and ordered by"
        )
    schema = t.StructType([t.StructField(column.name, column.type) for column in columns])
    return _checked_key(key, schema), schema.names


@dataclass(slots=True)
class FilesInput:
    """Files of a kind that Spark reads; in the order of a column if that is asked for."""

    spark: SparkSession
    job: str
    kind: str
    paths: Sequence[str]
    order_by: str | None = None
    schema: str | None = None
    options: Mapping[str, str] = field(default_factory=dict)
    _found: t.StructType = field(init=False)
    _files: list[tuple[str, int, int]] = field(init=False)

    def __post_init__(self) -> None:
        if self.kind not in FORMATS:
            raise InvalidInput(f"files must be one of {', '.join(FORMATS)}, not {self.kind!r}")
        # Those of this machine first, without Spark.
        self._files = self._list() if any(map(_may_exist, self.paths)) else []
        if not self._files:
            raise InvalidInput(f"there are no files at {', '.join(self.paths)}; check the paths")
        self._found = self._load(self.paths, self.schema).schema
        if self.order_by is not None:
            _checked_key(self.order_by, self._found)

    def describe(self) -> str:
        """See BackfillInput."""
        return f"{len(self._files)} {self.kind} files"

    def facts(self) -> dict[str, Any]:
        """See BackfillInput; files are known by path, size and time."""
        digest = hashlib.sha256(json.dumps(self._files).encode()).hexdigest()
        return {
            "format": self.kind,
            "files": len(self._files),
            "bytes": sum(size for _, size, _ in self._files),
            "digest": digest,
            "order_by": self.order_by,
            "columns": self._found.simpleString(),
        }

    def columns(self) -> list[str]:
        """See BackfillInput."""
        return self._found.names

    def cut(self, rows: int) -> list[Chunk]:
        """See BackfillInput; without an order files are taken as they are, each whole."""
        frame = self._load(self.paths, self._found)
        if self.order_by is not None:
            return cut_by_key(frame.select(quoted(self.order_by)), self.order_by, rows)
        counted = frame.groupBy(F.col("_metadata.file_path").alias("path")).count().collect()
        chunks: list[Chunk] = []
        files: list[str] = []
        gathered = 0
        for row in sorted(counted, key=lambda row: str(row["path"])):
            if files and gathered + row["count"] > rows:
                chunks.append(Chunk(gathered, files=tuple(files)))
                files, gathered = [], 0
            # Spark returns the path as in a URI, and takes it unquoted.
            files.append(unquote(row["path"]))
            gathered += row["count"]
        return [*chunks, Chunk(gathered, files=tuple(files))] if files else chunks

    def read(self, chunk: Chunk) -> DataFrame:
        """See BackfillInput."""
        if chunk.files:
            return self._load(chunk.files, self._found)
        assert self.order_by is not None
        frame = self._load(self.paths, self._found)
        within = within_chunk(chunk, self.order_by, self._found[self.order_by].dataType)
        return frame.where(within).orderBy(quoted(self.order_by))

    def _load(self, paths: Sequence[str], schema: t.StructType | str | None) -> DataFrame:
        reader = self.spark.read.format(self.kind).options(**self.options)
        if len(self.paths) == 1 and not self.paths[0].count("*"):
            # For columns whose values are in the names of folders.
            root = self._root()
            reader = reader.option("basePath", root) if root else reader
        return (reader.schema(schema) if schema is not None else reader).load(list(paths))

    def _root(self) -> str | None:
        """Return the folder that holds all files, when a folder was named."""
        root = self.paths[0].rstrip("/")
        inside = any(path.endswith(root) for path, _, _ in self._files)
        return None if inside else root

    def _list(self) -> list[tuple[str, int, int]]:
        try:
            found = self.spark.read.format("binaryFile").option("recursiveFileLookup", "true")
            rows = (
                found.load(list(self.paths))
                .select("path", "length", F.unix_micros("modificationTime").alias("time"))
                .collect()
            )
        except Exception as error:
            if "PATH_NOT_FOUND" not in str(error):
                raise
            return []
        return sorted((row.path, row.length, row.time) for row in rows)


def cut_by_key(keys: DataFrame, key: str, rows: int) -> list[Chunk]:
    """Return chunks by key, cut so that equal keys stay together."""
    kind = keys.schema[key].dataType
    column = F.col(quoted(key))
    total = keys.count()
    parts = -(-total // rows)
    if not parts:
        return []
    found = (
        keys.repartitionByRange(parts, column)
        .groupBy(F.spark_partition_id().alias("part"))
        .agg(
            _spelled(F.min(column), kind).alias("low"),
            _spelled(F.max(column), kind).alias("high"),
            F.count(F.lit(1)).alias("rows"),
        )
        .orderBy("part")
        .collect()
    )
    chunks = []
    for place, row in enumerate(found):
        ends = place == len(found) - 1
        high = row.high if ends else found[place + 1].low
        chunks.append(Chunk(row.rows, row.low if place else None, high, ends))
    return chunks


def within_chunk(chunk: Chunk, key: str, kind: t.DataType) -> Column:
    """Return the condition that rows of a chunk fulfil."""
    column = F.col(quoted(key))
    if chunk.high is None:
        # Nothing but nulls.
        return column.isNull()
    high = _literal(chunk.high, kind)
    below = column <= high if chunk.last else column < high
    if chunk.low is None:
        return below | column.isNull()
    return (column >= _literal(chunk.low, kind)) & below


def _spelled(column: Column, kind: t.DataType) -> Column:
    """Return a key in a form that can be stored and read back exactly."""
    if isinstance(kind, t.TimestampType):
        return F.unix_micros(column)
    return column.cast("long") if isinstance(kind, t.IntegralType) else column.cast("string")


def _literal(value: int | str, kind: t.DataType) -> Column:
    if isinstance(kind, t.TimestampType):
        return F.timestamp_micros(F.lit(value))
    return F.lit(value).cast(kind)


def _checked_key(key: str, schema: t.StructType) -> str:
    if key not in schema.names:
        raise InvalidInput(f"there is no column {key!r}; there are {', '.join(schema.names)}")
    if not isinstance(schema[key].dataType, _ORDERED):
        raise InvalidInput(
            f"rows cannot be ordered by {key!r}, which is {schema[key].dataType.simpleString()}; "
            "choose a column of whole numbers, decimals, texts, dates or times"
        )
    return key


def _may_exist(path: str) -> bool:
    """Return whether there may be files at a path; only a plain one of this machine tells."""
    plain = path.removeprefix("file://") if path.startswith("file:///") else path
    return "://" in plain or any(sign in plain for sign in "*?[{") or Path(plain).exists()


def quoted(name: str) -> str:
    """Return the name of a column as Spark reads it, whatever signs it holds."""
    return "`" + name.replace("`", "``") + "`"
