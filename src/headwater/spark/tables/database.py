"""What the table source asks of a database; SQLite and Postgres answer in modules of their own.

Names are always quoted and values always spelled as literals by the database's own rules, so that
nothing that a user or a filter says is read as SQL, except the query that is meant to be SQL.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from sqlalchemy import URL, exc, make_url

from headwater.errors import InvalidInput

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import DataType

_PART = re.compile(r'"((?:[^"]|"")+)"|([^."]+)')
_SECRET = "password"


class Column(NamedTuple):
    """A column as the database has it; ``kind`` is its type in the database's words."""

    name: str
    kind: str
    type: DataType


class Relation(NamedTuple):
    """What is read: a table, by its name or schema and name, or a query."""

    parts: tuple[str, ...]
    query: str | None = None

    @classmethod
    def of(cls, table: str | None, query: str | None) -> Relation:
        """Understand the options ``table`` and ``query``; names are taken as they are written."""
        if (table is None) == (query is None):
            raise InvalidInput("name what to read by one of the options 'table' and 'query'")
        if query is not None:
            return cls((), query.strip().rstrip(";"))
        assert table is not None
        parts, at = [], 0
        while match := _PART.match(table, at):
            parts.append(match[1].replace('""', '"') if match[1] else match[2])
            at = match.end() + 1
            if at > len(table):
                break
            if table[at - 1] != ".":
                parts.clear()
                break
        if at <= len(table) or not 1 <= len(parts) <= 2:
            raise InvalidInput(
                f"option 'table' must be a name or schema.name, not {table!r}; a name that holds "
                'dots is written in double quotes: "a.b"'
            )
        return cls(tuple(parts))

    @property
    def sql(self) -> str:
        """Give what stands after FROM."""
        if self.query is not None:
            return f"(\n{self.query}\n) AS q"
        return ".".join(quoted(part) for part in self.parts)

    def __str__(self) -> str:
        return "the query" if self.query is not None else f"table {'.'.join(self.parts)}"


class Database(Protocol):
    """A database that can be read; pickled into tasks, it holds no connection."""

    where: str

    def columns(self, relation: Relation) -> list[Column]:
        """Give the columns, from a dry query. Raises DatabaseUnreachable, QueryRefused."""

    def key(self, relation: Relation) -> str | None:
        """Give the name of the one column that is the primary key, if that is so."""

    def selected(self, column: Column, wanted: DataType) -> str:
        """Give the expression that brings a column in a form that fits a type of Spark."""

    def compared(self, column: Column, wanted: DataType) -> str | None:
        """Give the expression that compares as Spark does with literals; None if none does."""

    def ordered(self, column: Column) -> str:
        """Give the expression by whose order the column is cut into ranges."""

    def literal(self, value: Any) -> str | None:
        """Spell a value; None when the database cannot take it."""

    def rows(self, sql: str) -> list[tuple[Any, ...]]:
        """Run a small query. Raises DatabaseUnreachable, QueryRefused."""

    def batches(
        self, relation: Relation, columns: Sequence[tuple[Column, DataType]], where: str, rows: int
    ) -> Iterator[pa.RecordBatch]:
        """Read columns of the rows that fulfil a condition ('' for all), as Arrow."""


def quoted(name: str) -> str:
    """Quote a name, whatever it holds."""
    return '"' + name.replace('"', '""') + '"'


def open_database(url: str, snapshot: str | None = None) -> Database:
    """Give the database of a URL: ``sqlite:///file``, ``postgresql://…``; drivers may be named.

    Raises InvalidInput, which never shows the URL: a password may be in it.
    """
    from headwater.spark.tables.postgres import PostgresTables
    from headwater.spark.tables.sqlite import SqliteTables

    try:
        parsed = make_url(url)
        kind = parsed.get_backend_name()
    except (exc.ArgumentError, ValueError):
        kind = ""
    if kind == "sqlite":
        if snapshot is not None:
            raise InvalidInput("option 'snapshot' is for Postgres; SQLite has none to share")
        return SqliteTables(parsed)
    if kind in ("postgresql", "postgres"):
        return PostgresTables(parsed, snapshot)
    raise InvalidInput(
        "option 'url' does not name a database that is known here; "
        "use sqlite:///file or postgresql://user:password@host/database"
    )


def safe_name(url: URL) -> str:
    """Give the URL of a database without its password, wherever in it that stands."""
    plain = url.set(drivername=url.get_backend_name()).difference_update_query([_SECRET])
    return plain.render_as_string(hide_password=True)
