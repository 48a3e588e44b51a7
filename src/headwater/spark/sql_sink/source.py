"""The sink itself: what Spark calls, and what is checked against the table before it runs."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql import types as t
from pyspark.sql.datasource import WriterCommitMessage
from pyspark.sql.types import StructType

from headwater.errors import InvalidInput
from headwater.spark.engine.columns import is_case_sensitive, renamed, spelled, spelled_columns
from headwater.spark.engine.formats import WriteFormat
from headwater.spark.engine.options import SourceOptions
from headwater.spark.engine.writes import (
    Content,
    FromTask,
    SparkWrite,
    content_of,
    content_of_tasks,
)
from headwater.spark.sql_sink import database
from headwater.spark.sql_sink.database import Described, SinkDatabase, open_sink, prepare
from headwater.sql.schemas import Relation

# ── Plan ──────────────────────────────────────────────────────────────────────────────────────────
# What is to be written where, checked against the table before anything runs.


WRITE_OPTIONS = ("url", "table", "mode", "keys", "producer", "sequence", "state")
MODES = ("append", "upsert", "add")
NUMBERS = (
    t.ByteType,
    t.ShortType,
    t.IntegerType,
    t.LongType,
    t.FloatType,
    t.DoubleType,
    t.DecimalType,
)


@dataclass(frozen=True, slots=True)
class Epoch:
    """What makes a write known: a repeat of (producer, sequence) changes nothing.

    ``content`` is a digest of its rows, see ``spark/engine/writes.py``.
    """

    producer: str
    sequence: int
    state: str | None = None
    content: str = ""


@dataclass(frozen=True)
class StagedTable(FromTask):
    """What a task has staged: its table, if it had rows."""

    table: str | None


@dataclass(frozen=True, slots=True)
class SinkPlan(SparkWrite):
    """A write to a table.

    ``columns`` maps the names in the table to how the database casts them, in their order.
    """

    database: SinkDatabase
    relation: Relation
    mode: str
    keys: tuple[str, ...]
    columns: dict[str, str]
    state: str | None
    checkpoint: str

    @property
    def name(self) -> str:
        """See SparkWrite."""
        return str(self.relation)

    @property
    def others(self) -> tuple[str, ...]:
        """The columns that are no keys."""
        return tuple(name for name in self.columns if name not in self.keys)

    def stage(
        self,
        batches: Iterator[pa.RecordBatch],
        query: str | None,
        producer: str,  # noqa: ARG002  a table has a name of its own
        repeatable: bool,
    ) -> StagedTable:
        """See SparkWrite: in a table of its own."""
        contents: list[Content] = []

        def filled() -> Iterator[pa.RecordBatch]:
            for batch in renamed(batches, [*self.columns]):
                if batch.num_rows:
                    if repeatable:
                        contents.append(content_of(batch))
                    yield batch

        rows = filled()
        first = next(rows, None)
        if first is None:
            return StagedTable(query, Content(), None)
        table = database.fresh_staged()
        self.database.stage(self.relation, table, itertools.chain([first], rows))
        return StagedTable(query, Content.of_all(contents), table)

    def commit(
        self,
        messages: Sequence[WriterCommitMessage | None],
        producer: str,
        sequence: int,
        repeatable: bool,
        plan: str = "",
    ) -> None:
        """See SparkWrite: rows and epoch in one transaction."""
        content = content_of_tasks(messages).digest(plan)
        epoch = Epoch(producer, sequence, self.state, content) if repeatable else None
        database.commit(self, epoch, tables(messages))

    def abort(self, messages: Sequence[WriterCommitMessage | None], producer: str) -> None:  # noqa: ARG002
        """See SparkWrite."""
        database.drop(self, tables(messages))


def tables(messages: Iterable[WriterCommitMessage | None]) -> list[str]:
    """Return the tables that tasks have staged, in their order."""
    return [m.table for m in messages if isinstance(m, StagedTable) and m.table is not None]


def _check_columns(
    database: SinkDatabase, relation: Relation, found: Described, schema: t.StructType
) -> dict[str, str]:
    if not schema.fields:
        raise InvalidInput("the rows have no columns; select some")
    casts = {}
    for column in schema.fields:
        if column.name in casts:
            raise InvalidInput(f"column {column.name!r} is there twice; name each once")
        kind = found.columns.get(column.name)
        if kind is None:
            raise InvalidInput(
                f"{relation} has no column {column.name!r}, but {', '.join(found.columns)}; choose "
                "with .select(...), or rename with .withColumnRenamed(...)"
            )
        cast = database.cast(column.dataType, kind)
        if cast is None:
            is_text = isinstance(column.dataType, t.StringType)
            raise InvalidInput(
                f"column {column.name!r} is {column.dataType.simpleString()}, which does not go "
                f"into {kind or 'a column without a type'} of {relation} unchanged; "
                f"{'declare it TEXT in the table, or cast it' if is_text else 'cast it'}: "
                f".withColumn({column.name!r}, col({column.name!r}).cast(...))"
            )
        casts[column.name] = cast
    return casts


def _check_keys(
    options: SourceOptions, mode: str, relation: Relation, found: Described, schema: t.StructType
) -> tuple[str, ...]:
    if mode == "append":
        if "keys" in options:
            raise InvalidInput("option 'keys' is for the modes upsert and add; leave it out")
        return ()
    exact = is_case_sensitive(options)
    named = (spelled(name, schema.names, exact=exact) for name in options.words("keys"))
    keys = tuple(named) or found.key
    if not keys:
        raise InvalidInput(
            f"{relation} has no primary key; name the columns that tell rows apart by the option "
            "'keys', and give the table a unique index over them"
        )
    for name in keys:
        if name not in schema.names:
            raise InvalidInput(f"the key {name!r} is not among the columns {schema.names}; add it")
    if frozenset(keys) not in found.unique:
        listed = ", ".join(keys)
        raise InvalidInput(
            f"{relation} has no primary key or unique index over exactly ({listed}), which mode "
            f"{mode!r} needs to find rows; CREATE UNIQUE INDEX ON it, or choose other 'keys'"
        )
    return keys


def _check_numbers(relation: Relation, schema: t.StructType, keys: tuple[str, ...]) -> None:
    others = [column for column in schema.fields if column.name not in keys]
    if not others:
        raise InvalidInput(f"all columns are keys of {relation}; there is nothing to add")
    for column in others:
        if not isinstance(column.dataType, NUMBERS):
            raise InvalidInput(
                f"column {column.name!r} is {column.dataType.simpleString()}, and mode 'add' adds "
                "numbers; make it a key, leave it out, or use mode 'upsert'"
            )


# ── Source ────────────────────────────────────────────────────────────────────────────────────────


class SqlSink(WriteFormat):
    """A table of SQLite or Postgres, to write to."""

    CALLED = "headwater_sql"
    PATHS = ("table",)
    WRITE_OPTIONS = WRITE_OPTIONS

    def check(self, options: SourceOptions, *, overwrite: bool, streaming: bool) -> None:
        """Refuse to replace a table, but by an upsert of all rows. Raises InvalidInput."""
        if not streaming and "state" in options and "producer" not in options:
            raise InvalidInput(
                "option 'state' is kept with an epoch; give 'producer' and 'sequence', too"
            )
        if overwrite and not streaming:
            raise InvalidInput(
                "a table is not overwritten: write with .mode('append'), and say by the option "
                "'mode' whether rows are appended, upserted or added; to begin anew, empty the "
                "table first"
            )
        if overwrite and options.choice("mode", MODES, "append") != "upsert":
            raise InvalidInput(
                ".outputMode('complete') brings all rows with every epoch, which only the option "
                "'mode' = 'upsert' can take; use that, or .outputMode('append')"
            )

    def plan_write(self, options: SourceOptions, schema: StructType) -> SinkPlan:
        """Plan a write. Raises InvalidInput, DatabaseUnreachable, QueryRefused."""
        mode = options.choice("mode", MODES, "append")
        database = open_sink(options.required("url"))
        relation = Relation.of(options.required("table"))
        found = database.describe(relation)
        schema = spelled_columns(schema, found.columns, exact=is_case_sensitive(options))
        columns = _check_columns(database, relation, found, schema)
        keys = _check_keys(options, mode, relation, found, schema)
        if mode == "add":
            _check_numbers(relation, schema, keys)
        prepare(database, relation)
        state, checkpoint = options.text("state"), options.text("checkpointLocation") or ""
        return SinkPlan(database, relation, mode, keys, columns, state, checkpoint)
