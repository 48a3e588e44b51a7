"""What the SQL sink asks of a database; SQLite and Postgres answer in modules of their own.

The commit is the same on both and is here: one transaction with the epoch, the rows and the end of
what the tasks have staged. Names are always quoted.
"""

from __future__ import annotations

import re
import secrets
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from sqlalchemy import URL, NullPool, create_engine

from headwater.errors import StaleSequence
from headwater.sql.driver_errors import translating_errors
from headwater.sql.engines import parse_url
from headwater.sql.relations import Relation, quoted
from headwater.sql.schemas import Schema

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import DataType

    from headwater.spark.sql_sink.plan import Epoch, SinkPlan

SCHEMA: Final = Schema(__package__)
EPOCHS: Final = "headwater_epochs"
STAGED: Final = "headwater_staged_"
# How many of a producer's latest epochs are remembered, as in the log.
REMEMBERED: Final = 128
# A table of a task that nobody has committed for so long is forgotten.
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
        """Give the next row of its answer."""


class SinkDatabase(Protocol):
    """A database that can be written to; pickled into tasks, it holds no connection."""

    url: URL
    where: str
    # What stands for a parameter in a statement.
    mark: str

    def describe(self, relation: Relation) -> Described:
        """Describe a table. Raises DatabaseUnreachable, QueryRefused."""

    def staged(self, relation: Relation) -> list[str]:
        """Name the tables that tasks have left where the target lies."""

    def cast(self, given: DataType, kind: str) -> str | None:
        """Give the cast that brings a type of Spark into a column: '' if none is needed.

        None when values would not stay what they are.
        """

    def stage(self, relation: Relation, name: str, batches: Iterator[pa.RecordBatch]) -> None:
        """Make a table beside the target, and ingest rows into it."""

    def insert(self, plan: SinkPlan, staged: str) -> str:
        """Give the statement that brings the rows of a staged table into the target."""

    def transaction(self, relation: Relation) -> AbstractContextManager[SinkCursor]:
        """Begin a transaction, and commit it unless there is an error."""


def open_sink(url: str) -> SinkDatabase:
    """Return the database of a URL. Raises InvalidInput, which shows no password."""
    from headwater.spark.sql_sink.postgres import PostgresSink
    from headwater.spark.sql_sink.sqlite import SqliteSink

    parsed = parse_url(url)
    return PostgresSink(parsed) if parsed.get_backend_name() == "postgresql" else SqliteSink(parsed)


def fresh_staged() -> str:
    """Name the table of one attempt of one task; it tells when it was made."""
    return f"{STAGED}{int(time.time())}_{secrets.token_hex(8)}"


def is_forgotten(staged: str) -> bool:
    """Say whether a table was staged so long ago that nobody will commit it."""
    made = re.fullmatch(rf"{STAGED}(\d+)_[0-9a-f]+", staged)
    return made is not None and int(made[1]) < time.time() - STAGED_S


def beside(relation: Relation, name: str) -> str:
    """Spell a table that lies where the target does."""
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
    StaleSequence for one that is older than what is remembered, and WriteRefused.
    """
    names = list(staged)
    with plan.database.transaction(plan.relation) as cursor:
        fresh = epoch is None or _note(cursor, plan, epoch)
        for name in names if fresh else ():
            cursor.execute(plan.database.insert(plan, name))
        drop_tables(cursor, plan.relation, names)
    return fresh


def drop(plan: SinkPlan, staged: Iterable[str]) -> None:
    """Forget what tasks have staged."""
    with plan.database.transaction(plan.relation) as cursor:
        drop_tables(cursor, plan.relation, staged)


def last_epoch(database: SinkDatabase, relation: Relation, producer: str) -> Epoch | None:
    """Give the newest epoch of a producer in a table, with the state that was kept with it."""
    from headwater.spark.sql_sink.plan import Epoch

    prepare(database, relation)
    mark = database.mark
    with database.transaction(relation) as cursor:
        cursor.execute(
            f"SELECT sequence, state FROM {EPOCHS} WHERE target = {mark} AND producer = {mark} "
            "ORDER BY sequence DESC LIMIT 1",
            (target_name(relation), producer),
        )
        found = cursor.fetchone()
    return None if found is None else Epoch(producer, found[0], found[1])


def target_name(relation: Relation) -> str:
    """Name a target as its epochs do."""
    return ".".join(relation.parts)


def _note(cursor: SinkCursor, plan: SinkPlan, epoch: Epoch) -> bool:
    """Note an epoch; says whether it is new. Whoever comes at the same time waits here."""
    mark, target = plan.database.mark, target_name(plan.relation)
    cursor.execute(
        f"INSERT INTO {EPOCHS} (target, producer, sequence, state) "
        f"VALUES ({mark}, {mark}, {mark}, {mark}) ON CONFLICT DO NOTHING",
        (target, epoch.producer, epoch.sequence, epoch.state),
    )
    if cursor.rowcount != 1:
        return False
    cursor.execute(
        f"SELECT max(sequence) FROM {EPOCHS} WHERE target = {mark} AND producer = {mark}",
        (target, epoch.producer),
    )
    (newest,) = cursor.fetchone()
    if newest > epoch.sequence:
        raise StaleSequence(target, epoch.producer, epoch.sequence, newest)
    cursor.execute(
        f"DELETE FROM {EPOCHS} WHERE target = {mark} AND producer = {mark} AND sequence <= {mark}",
        (target, epoch.producer, epoch.sequence - REMEMBERED),
    )
    return True
