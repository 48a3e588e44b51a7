"""What the table source asks of a database, and how its columns fit Spark's: exact, or an error.

Names are always quoted and values are always written as literals by the database's own rules, so
that nothing that a user or a filter says is read as SQL, except the query that is meant to be SQL.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import types as t

from headwater.errors import InvalidInput
from headwater.spark.engine.columns import ARROW_TYPES, TIME
from headwater.sql.engines import parse_url
from headwater.sql.schemas import Relation

if TYPE_CHECKING:
    from pyspark.sql.types import DataType


# ── Fitting ───────────────────────────────────────────────────────────────────────────────────────
# From the columns that a driver returns to those that Spark expects: exact, or an error.
#
# Nothing is rounded, cut off or guessed. A point in time without a zone is one of UTC.


_ZONE = r"(?:[zZ]|[+-]\d\d(?::?\d\d)?)$"
# Postgres counts from 4713 BC on; what the driver makes of "infinity" lies far before.
_LEAST_US = -220_000_000_000_000_000
_LEAST_DAY = -2_600_000


def arrow_type(wanted: t.DataType) -> pa.DataType | None:
    """Return the Arrow type of a type of Spark; None for one that no column can have."""
    if isinstance(wanted, t.DecimalType):
        return pa.decimal128(wanted.precision, wanted.scale)
    return ARROW_TYPES.get(type(wanted))


def decimal_type(precision: int | None, scale: int | None) -> t.DecimalType:
    """Return the decimal type of a column; without bounds, or with wider ones, decimal(38, 18)."""
    if precision is not None and 0 < precision <= 38 and 0 <= (scale or 0) <= precision:
        return t.DecimalType(precision, scale or 0)
    return t.DecimalType(38, 18)


def fit(column: pa.Array, wanted: pa.DataType) -> pa.Array:
    """Convert a column to a type, exactly. Raises ValueError (ArrowInvalid is one) otherwise."""
    if isinstance(column, pa.ExtensionArray):
        column = column.storage
    if pa.types.is_timestamp(column.type) or pa.types.is_date(column.type):
        _refuse_infinity(column)
    if column.type == wanted:
        return column
    if pa.types.is_boolean(wanted) and pa.types.is_integer(column.type):
        return _truth(column)
    if pa.types.is_timestamp(wanted) and pa.types.is_string(column.type):
        column = _with_zone(column).cast(TIME)
    if pa.types.is_date(wanted) and pa.types.is_timestamp(column.type):
        raise ValueError("it holds times, not dates")
    return column.cast(wanted)


def _truth(column: pa.Array) -> pa.Array:
    odd = column.filter(pc.invert(pc.is_in(column, pa.array([0, 1, None], column.type))))
    if len(odd):
        raise ValueError(f"{odd[0]} is neither 0 nor 1")
    return pc.equal(column, 1)


def _with_zone(column: pa.Array) -> pa.Array:
    """Write Z behind every text that names no zone."""
    # A date alone ends like a zone of -31 would; only what follows a time of day is a zone.
    zoned = pc.match_substring_regex(column, r"\d:\d\d\S*" + _ZONE)
    timed = pc.match_substring(column, ":")
    with_time = pc.if_else(timed, column, pc.binary_join_element_wise(column, "00:00:00", " "))
    return pc.if_else(zoned, column, pc.binary_join_element_wise(with_time, "Z", ""))


def _refuse_infinity(column: pa.Array) -> None:
    counts = column.cast(pa.int32() if pa.types.is_date32(column.type) else pa.int64())
    least: Any = pc.min(counts).as_py()
    border = _LEAST_DAY if pa.types.is_date(column.type) else _LEAST_US
    if least is not None and least < border:
        raise ValueError("'infinity' is no point in time that Spark knows")


# ── Database ──────────────────────────────────────────────────────────────────────────────────────


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
