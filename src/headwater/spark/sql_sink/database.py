"""What the SQL sink asks of a database; SQLite and Postgres implement it in their own modules.

The commit is the same on both and is here: one transaction that notes the epoch, inserts the rows
and drops what the tasks have staged. Names are always quoted.
"""

from __future__ import annotations

import re
import secrets
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from sqlalchemy import URL, NullPool, create_engine

from headwater.errors import ReusedSequence, StaleSequence
from headwater.sql.driver_errors import translating_errors
from headwater.sql.engines import parse_url
from headwater.sql.schemas import Relation, Schema, quoted

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import DataType

    from headwater.spark.sql_sink.source import Epoch, SinkPlan

SCHEMA: Final = Schema(__package__)
EPOCHS: Final = "headwater_epochs"
STAGED: Final = "headwater_staged_"
# How many of a producer's latest epochs are remembered, as in the log.
REMEMBERED: Final = 128
# A table of a task that nobody has committed for so long is dropped.
STAGED_S: Final = 24 * 3600


class Described(NamedTuple):
    """A table: its columns with their types, what is unique in it, and its primary key."""

    columns: dict[str, str]
    unique: frozenset[frozenset[str]]
    key: tuple[str, ...]


class SinkCursor(Protocol):
    """What the commit needs of a cursor of either driver."""

    @property
    def rowcount(self) -> int:
        """How many rows the last statement changed."""

    def execute(self, sql: Any, parameters: Sequence[Any] = (), /) -> Any:
        """Run a statement."""

    def fetchone(self) -> Any:
        """Return the next row of its result."""


class SinkDatabase(Protocol):
    """A database that can be written to; pickled into tasks, it holds no connection."""

    url: URL
    where: str
    # What stands for a parameter in a statement.
    mark: str

    def describe(self, relation: Relation) -> Described:
        """Describe a table. Raises DatabaseUnreachable, QueryRefused."""

    def staged(self, relation: Relation) -> list[str]:
        """Return the names of the tables that tasks have left where the target lies."""

    def cast(self, given: DataType, kind: str) -> str | None:
        """Return the cast that a type of Spark needs to go into a column: '' if it needs none.

        None when values would not stay what they are.
        """

    def stage(self, relation: Relation, name: str, batches: Iterator[pa.RecordBatch]) -> None:
        """Create a table where the target lies, and ingest rows into it."""

    def column(self, name: str, cast: str) -> str:
        """Return the expression that reads a staged column as the target's column takes it."""

    def all_rows(self, columns: str, source: str) -> str:
        """Return the query for all rows of a staged table, in the order they came in."""

    def last_rows(self, columns: str, source: str, key: str) -> str:
        """Return the query for rows of a staged table of which the last one of each key stays."""

    def sum_with(self, column: str) -> str:
        """Return the sum of a column of the target (t) and of what is inserted (excluded)."""

    def transaction(self, relation: Relation) -> AbstractContextManager[SinkCursor]:
        """Begin a transaction, and commit it unless there is an error."""


def open_sink(url: str) -> SinkDatabase:
    """Return the database of a URL. Raises InvalidInput, which shows no password."""
    from headwater.spark.sql_sink.postgres import PostgresSink
    from headwater.spark.sql_sink.sqlite import SqliteSink

    parsed = parse_url(url)
    return PostgresSink(parsed) if parsed.get_backend_name() == "postgresql" else SqliteSink(parsed)


def fresh_staged() -> str:
    """Return a name for the table of one attempt of one task; it holds the time."""
    return f"{STAGED}{int(time.time())}_{secrets.token_hex(8)}"


def is_forgotten(staged: str) -> bool:
    """Return whether a table was staged so long ago that nobody will commit it."""
    made = re.fullmatch(rf"{STAGED}(\d+)_[0-9a-f]+", staged)
    return made is not None and int(made[1]) < time.time() - STAGED_S


def beside(relation: Relation, name: str) -> str:
    """Return the quoted name of a table that lies where the target does."""
    return ".".join(quoted(part) for part in (*relation.parts[:-1], name))


def prepare(database: SinkDatabase, relation: Relation) -> None:
    """Create the table of epochs if it is missing, and drop what tasks have left long ago."""
    engine = create_engine(database.url, poolclass=NullPool)
    with translating_errors(database.url):
        SCHEMA.ensure(engine)
    forgotten = [name for name in database.staged(relation) if is_forgotten(name)]
    if forgotten:
        with database.transaction(relation) as cursor:
            drop_tables(cursor, relation, forgotten)


def drop_tables(cursor: SinkCursor, relation: Relation, names: Iterable[str]) -> None:
    """Drop staged tables that are still there."""
    for name in names:
        cursor.execute(f"DROP TABLE IF EXISTS {beside(relation, name)}")


def commit(plan: SinkPlan, epoch: Epoch | None, staged: Iterable[str]) -> bool:
    """Bring staged tables into the target, with their epoch, in one transaction.

    Returns False for an epoch that was committed before; then only the staged tables go. Raises
    ReusedSequence when it had other content, StaleSequence when it is older than what is
    remembered, and WriteRefused.
    """
    names = list(staged)
    with plan.database.transaction(plan.relation) as cursor:
        fresh = epoch is None or _note(cursor, plan, epoch)
        for name in names if fresh else ():
            cursor.execute(_insert(plan, name))
        drop_tables(cursor, plan.relation, names)
    return fresh


def _insert(plan: SinkPlan, staged: str) -> str:
    """Return the statement that brings the rows of a staged table into the target."""
    database, source = plan.database, beside(plan.relation, staged)
    read = {name: database.column(name, cast) for name, cast in plan.columns.items()}
    into = f"INSERT INTO {plan.relation.sql} AS t ({', '.join(map(quoted, plan.columns))})"
    if plan.mode == "append":
        return f"{into} {database.all_rows(', '.join(read.values()), source)}"
    key = ", ".join(read[name] for name in plan.keys)
    conflict = f"ON CONFLICT ({', '.join(map(quoted, plan.keys))}) DO"
    others = [quoted(name) for name in plan.others]
    if plan.mode == "upsert":
        rows = database.last_rows(", ".join(read.values()), source, key)
        sets = ", ".join(f"{name} = excluded.{name}" for name in others)
        return f"{into} {rows} {conflict} {f'UPDATE SET {sets}' if sets else 'NOTHING'}"
    summed = ", ".join(
        read[name] if name in plan.keys else f"sum({read[name]})" for name in plan.columns
    )
    sets = ", ".join(f"{name} = {database.sum_with(name)}" for name in others)
    # WHERE true lets SQLite tell the ON of a conflict from that of a join.
    rows = f"SELECT {summed} FROM {source} WHERE true GROUP BY {key}"
    return f"{into} {rows} {conflict} UPDATE SET {sets}"


def drop(plan: SinkPlan, staged: Iterable[str]) -> None:
    """Drop what tasks have staged."""
    with plan.database.transaction(plan.relation) as cursor:
        drop_tables(cursor, plan.relation, staged)


def target_name(relation: Relation) -> str:
    """Return the name of a target in the table of epochs."""
    return ".".join(relation.parts)


def _note(cursor: SinkCursor, plan: SinkPlan, epoch: Epoch) -> bool:
    """Note an epoch; returns whether it is new. A commit at the same time waits here."""
    mark, target = plan.database.mark, target_name(plan.relation)
    this = f"target = {mark} AND producer = {mark}"
    cursor.execute(
        f"INSERT INTO {EPOCHS} (target, producer, sequence, state, content) "
        f"VALUES ({mark}, {mark}, {mark}, {mark}, {mark}) ON CONFLICT DO NOTHING",
        (target, epoch.producer, epoch.sequence, epoch.state, epoch.content),
    )
    if cursor.rowcount != 1:
        names = (target, epoch.producer, epoch.sequence)
        cursor.execute(f"SELECT content FROM {EPOCHS} WHERE {this} AND sequence = {mark}", names)
        (known,) = cursor.fetchone()
        if not set(known.split(".")) & set(epoch.content.split(".")):
            raise ReusedSequence(*names)
        return False
    cursor.execute(f"SELECT max(sequence) FROM {EPOCHS} WHERE {this}", (target, epoch.producer))
    (newest,) = cursor.fetchone()
    if newest > epoch.sequence:
        raise StaleSequence(target, epoch.producer, epoch.sequence, newest)
    cursor.execute(
        f"DELETE FROM {EPOCHS} WHERE {this} AND sequence <= {mark}",
        (target, epoch.producer, epoch.sequence - REMEMBERED),
    )
    return True
