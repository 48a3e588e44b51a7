"""What the table source asks of a database; SQLite and Postgres implement it in their own modules.

Names are always quoted and values are always written as literals by the database's own rules, so
that nothing that a user or a filter says is read as SQL, except the query that is meant to be SQL.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from headwater.errors import InvalidInput
from headwater.sql.engines import parse_url
from headwater.sql.relations import Relation

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import DataType


class Column(NamedTuple):
    """A column as the database has it; ``kind`` is the database's name of its type."""

    name: str
    kind: str
    type: DataType


class TableDatabase(Protocol):
    """A database that can be read; pickled into tasks, it holds no connection."""

    where: str

    def columns(self, relation: Relation) -> list[Column]:
        """Return the columns, by a query without rows. Raises DatabaseUnreachable, QueryRefused."""

    def key(self, relation: Relation) -> str | None:
        """Return the column that is the primary key; None when there is none, or several are."""

    def selected(self, column: Column, wanted: DataType) -> str:
        """Return the expression that reads a column in a form that fits a type of Spark."""

    def compared(self, column: Column, wanted: DataType) -> str | None:
        """Return the expression that compares with literals as Spark does; None if none does."""

    def ordered(self, column: Column) -> str:
        """Return the expression by whose order the column is cut into ranges."""

    def literal(self, value: Any) -> str | None:
        """Return a value as a literal; None when the database has none for it."""

    def rows(self, sql: str) -> list[tuple[Any, ...]]:
        """Run a small query. Raises DatabaseUnreachable, QueryRefused."""

    def batches(
        self, relation: Relation, columns: Sequence[tuple[Column, DataType]], where: str, rows: int
    ) -> Iterator[pa.RecordBatch]:
        """Read columns of the rows that fulfil a condition ('' for all), as Arrow."""


def open_database(url: str, snapshot: str | None = None) -> TableDatabase:
    """Return the database of a URL. Raises InvalidInput, which shows no password."""
    from headwater.spark.tables.postgres import PostgresTables
    from headwater.spark.tables.sqlite import SqliteTables

    parsed = parse_url(url)
    if parsed.get_backend_name() == "postgresql":
        return PostgresTables(parsed, snapshot)
    if snapshot is not None:
        raise InvalidInput("option 'snapshot' is for Postgres; SQLite has none to share")
    return SqliteTables(parsed)


def chosen_columns(
    columns: list[Column], wanted: Sequence[str], relation: Relation
) -> list[Column]:
    """Return columns by name, in the order asked for; all when none is named."""
    names = [column.name for column in columns]
    for name in wanted:
        if name not in names:
            raise no_column(name, names, relation)
    return [columns[names.index(name)] for name in wanted] or columns


def no_column(name: str, names: Sequence[str], relation: Relation) -> InvalidInput:
    """Return the error for a column that is not there."""
    return InvalidInput(f"{relation} has no column {name!r}; it has {', '.join(names)}")
