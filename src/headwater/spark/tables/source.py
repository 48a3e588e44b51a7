"""``format("headwater_table")``: the source itself, its options, filters, ranges and tasks."""

from __future__ import annotations

import datetime as dt
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import pyarrow as pa
from pyspark.sql import datasource as spark
from pyspark.sql import types as t
from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition
from pyspark.sql.types import DataType, StructField, StructType

from headwater.errors import HeadwaterError, InvalidInput, ValueMisfit
from headwater.spark.engine.columns import takes_filters
from headwater.spark.engine.failures import one_line
from headwater.spark.engine.formats import ReadFormat
from headwater.spark.engine.options import SourceOptions
from headwater.spark.tables.database import (
    Column,
    TableDatabase,
    arrow_type,
    chosen_columns,
    fit,
    no_column,
    open_database,
)
from headwater.sql.schemas import Relation, quoted

# ── Filters ───────────────────────────────────────────────────────────────────────────────────────
# Spark's filters as SQL, where the database compares as Spark does; Spark does the others.


_COMPARISONS: dict[type[spark.Filter], str] = {
    spark.EqualTo: "=",
    spark.GreaterThan: ">",
    spark.GreaterThanOrEqual: ">=",
    spark.LessThan: "<",
    spark.LessThanOrEqual: "<=",
}


class Pushdown:
    """Conditions that a database can decide; ``columns`` are those that they may name."""

    def __init__(
        self, database: TableDatabase, columns: Mapping[str, tuple[Column, DataType]]
    ) -> None:
        self._database = database
        self._columns = columns
        self.conditions: list[str] = []

    def take(self, filters: Iterable[spark.Filter]) -> list[spark.Filter]:
        """Take the filters that can be pushed down; returns the others."""
        rest = []
        for one in filters:
            condition = self._sql(one)
            if condition is None:
                rest.append(one)
            else:
                self.conditions.append(condition)
        return rest

    def _sql(self, one: spark.Filter) -> str | None:
        if isinstance(one, spark.Not):
            inner = self._sql(one.child)
            return None if inner is None else f"NOT ({inner})"
        path: tuple[str, ...] = getattr(one, "attribute", ())
        found = self._columns.get(path[0]) if len(path) == 1 else None
        if found is None:
            return None
        column, wanted = found
        if isinstance(one, spark.IsNull):
            return f"{quoted(column.name)} IS NULL"
        if isinstance(one, spark.IsNotNull):
            return f"{quoted(column.name)} IS NOT NULL"
        expression = self._database.compared(column, wanted)
        return None if expression is None else self._compared(one, expression)

    def _compared(self, one: spark.Filter, expression: str) -> str | None:
        sign = _COMPARISONS.get(type(one))
        value: Any = getattr(one, "value", None)
        if sign is not None:
            literal = self._database.literal(value)
            return None if literal is None else f"{expression} {sign} {literal}"
        if isinstance(one, spark.In):
            literals = [self._database.literal(each) for each in value]
            known = [literal for literal in literals if literal is not None]
            complete = known and len(known) == len(literals)
            return f"{expression} IN ({', '.join(known)})" if complete else None
        if isinstance(one, spark.StringStartsWith):
            literal = self._database.literal(value)
            begin = f"substr({expression}, 1, {len(value)})"
            return None if literal is None else f"{begin} = {literal}"
        return None


# ── Ranges ────────────────────────────────────────────────────────────────────────────────────────
# A table cut into ranges of one column: every row in exactly one of them, nulls in the first.
#
# Whole numbers, dates and (on Postgres) points in time are cut into equal steps between two
# bounds, which are looked up unless they are given; bounds only say where to cut, rows outside of
# them are read too. Anything else that has an order is cut into equal counts of rows, which reads
# the column once.


_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_US = dt.timedelta(microseconds=1)


class _Scale(NamedTuple):
    """How the values of a type lie on a line of whole numbers."""

    read: Callable[[str], Any]
    number: Callable[[Any], int]
    value: Callable[[int], Any]


def _utc(text: str) -> dt.datetime:
    time = dt.datetime.fromisoformat(text)
    return time if time.tzinfo else time.replace(tzinfo=dt.UTC)


_WHOLE = _Scale(int, int, int)
_DAYS = _Scale(dt.date.fromisoformat, dt.date.toordinal, dt.date.fromordinal)
_TIMES = _Scale(_utc, lambda time: (time - _EPOCH) // _US, lambda count: _EPOCH + count * _US)
_SCALES: dict[type[t.DataType], _Scale] = {
    t.ByteType: _WHOLE,
    t.ShortType: _WHOLE,
    t.IntegerType: _WHOLE,
    t.LongType: _WHOLE,
    t.DateType: _DAYS,
    t.TimestampType: _TIMES,
}


def cut(
    database: TableDatabase,
    relation: Relation,
    column: Column,
    count: int,
    bounds: tuple[str | None, str | None] = (None, None),
) -> list[str]:
    """Return the conditions that cut a relation into at most ``count`` ranges.

    Raises InvalidInput for bounds that are none, and for a column that has no order.
    """
    if isinstance(column.type, t.BinaryType | t.BooleanType):
        raise InvalidInput(
            f"option 'partitionColumn' cannot be {column.name!r}, which is "
            f"{column.type.simpleString()}; choose a column of numbers, times or texts"
        )
    # Only Postgres has dates and times; in SQLite they are texts.
    bounded = _SCALES.get(type(column.type))
    if database.literal(_EPOCH) is None and bounded is not _WHOLE:
        bounded = None
    if bounded is None:
        if any(bound is not None for bound in bounds):
            raise InvalidInput(
                f"options 'lowerBound' and 'upperBound' do not go with column {column.name!r} of "
                f"type {column.type.simpleString()}; leave them out, and it is cut by count"
            )
        borders = _by_count(database, relation, column, count)
    else:
        borders = _by_steps(database, relation, column, count, bounds, bounded)
    return _conditions(database, column, borders)


def _by_steps(
    database: TableDatabase,
    relation: Relation,
    column: Column,
    count: int,
    bounds: tuple[str | None, str | None],
    scale: _Scale,
) -> list[Any]:
    expression = database.ordered(column)
    given = [_read_bound(bound, name, scale) for bound, name in zip(bounds, _NAMES, strict=True)]
    if None in given:
        found = database.rows(f"SELECT min({expression}), max({expression}) FROM {relation.sql}")
        given = [
            kept if kept is not None else looked_up
            for kept, looked_up in zip(given, found[0], strict=True)
        ]
    if None in given:
        return []
    low, high = (scale.number(bound) for bound in given)
    if low > high:
        raise InvalidInput(
            f"option 'lowerBound' ({given[0]}) is above 'upperBound' ({given[1]}); exchange them"
        )
    span = high - low + 1
    count = min(count, span)
    return [scale.value(low + span * place // count) for place in range(1, count)]


_NAMES = ("lowerBound", "upperBound")


def _read_bound(text: str | None, name: str, scale: _Scale) -> Any:
    if text is None:
        return None
    try:
        return scale.read(text)
    except ValueError:
        raise InvalidInput(
            f"option {name!r} is {text!r}, which the column of option 'partitionColumn' cannot "
            "hold; write numbers in digits, dates and times as ISO 8601 does"
        ) from None


def _by_count(database: TableDatabase, relation: Relation, column: Column, count: int) -> list[Any]:
    expression = database.ordered(column)
    found = database.rows(
        f"SELECT min(k) FROM (SELECT {expression} AS k, "
        f"ntile({count}) OVER (ORDER BY {expression}) AS part FROM {relation.sql} "
        f"WHERE {quoted(column.name)} IS NOT NULL) AS cut GROUP BY part ORDER BY part"
    )
    borders = [row[0] for row in found][1:]
    return [border for place, border in enumerate(borders) if border not in borders[:place]]


def _conditions(database: TableDatabase, column: Column, borders: list[Any]) -> list[str]:
    """Turn the values at which a new range begins into one condition for each range."""
    expression = database.ordered(column)
    spelled = [literal for border in borders if (literal := database.literal(border)) is not None]
    if not spelled:
        return [""]
    conditions = [f"({expression} < {spelled[0]} OR {quoted(column.name)} IS NULL)"]
    conditions += [
        f"({expression} >= {low} AND {expression} < {high})"
        for low, high in itertools.pairwise(spelled)
    ]
    return [*conditions, f"({expression} >= {spelled[-1]})"]


# ── Source ────────────────────────────────────────────────────────────────────────────────────────


OPTIONS = (
    "url",
    "table",
    "query",
    "columns",
    "partitionColumn",
    "lowerBound",
    "upperBound",
    "numPartitions",
    "fetchSize",
    "snapshot",
)
DEFAULT_PARTITIONS = 8
DEFAULT_FETCH = 65_536
MAX_PARTITIONS = 10_000


class TableSource(ReadFormat):
    """A table or a query of SQLite or Postgres, to read."""

    CALLED = "headwater_table"
    PATHS = ("table", "query")
    READ_OPTIONS = OPTIONS

    def columns(self, options: SourceOptions) -> StructType:
        """Return the columns with their own types; the option ``columns`` chooses among them."""
        database = open_database(options.required("url"), options.text("snapshot"))
        relation = Relation.of(options.text("table"), options.text("query"))
        columns = chosen_columns(database.columns(relation), options.words("columns"), relation)
        return StructType([StructField(column.name, column.type) for column in columns])

    def plan_read(self, options: SourceOptions, schema: StructType) -> DataSourceReader:
        """Plan a read; ``schema`` may be the user's own: other types, or fewer columns."""
        kind = FilteringTableReader if takes_filters(schema) else TableReader
        return kind(options, schema)


class Range(InputPartition):
    """The part of a table that one task reads: a condition, '' for all of it."""

    def __init__(self, condition: str) -> None:
        self.condition = condition


class TableReader(DataSourceReader):
    """One read of a table, on the driver and, pickled, in its tasks."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self._database = open_database(options.required("url"), options.text("snapshot"))
        self._relation = Relation.of(options.text("table"), options.text("query"))
        found = {column.name: column for column in self._database.columns(self._relation)}
        self._columns = [_matched(field, found, self._relation) for field in schema.fields]
        self._rows = options.number("fetchSize", 1, 10**7) or DEFAULT_FETCH
        self._conditions: list[str] = []
        self._ranges = _ranges(options, self._database, self._relation, found)

    def partitions(self) -> Sequence[InputPartition]:
        """Return a task for each range."""
        return [
            Range(" AND ".join(part for part in (*self._conditions, condition) if part))
            for condition in self._ranges
        ]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read one range."""
        assert isinstance(partition, Range)
        with one_line():
            yield from self._read(partition.condition)

    def _read(self, condition: str) -> Iterator[pa.RecordBatch]:
        schema = pa.schema([(column.name, arrow_type(type_)) for column, type_ in self._columns])
        batches = self._database.batches(self._relation, self._columns, condition, self._rows)
        for batch in batches:
            fitted = [self._fit(place, batch.column(place)) for place in range(len(schema))]
            yield pa.RecordBatch.from_arrays(fitted, schema=schema)

    def _fit(self, place: int, values: pa.Array) -> pa.Array:
        column, wanted = self._columns[place]
        try:
            return fit(values, arrow_type(wanted))
        except HeadwaterError:
            raise
        except (ValueError, pa.ArrowNotImplementedError) as error:
            why = str(error).splitlines()[0]
            raise ValueMisfit(
                str(self._relation), column.name, wanted.simpleString(), why
            ) from error


class FilteringTableReader(TableReader):
    """A reader of a scan that is shared with nobody: the database applies its filters."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802  Spark's name
        """Take the filters that the database decides as Spark would; return the others."""
        pushdown = Pushdown(
            self._database, {column.name: (column, wanted) for column, wanted in self._columns}
        )
        rest = pushdown.take(filters)
        self._conditions = pushdown.conditions
        return rest


def _matched(
    field: StructField, found: dict[str, Column], relation: Relation
) -> tuple[Column, DataType]:
    """Return the column of a field. Raises InvalidInput when it cannot be read as that type."""
    if field.name not in found:
        raise no_column(field.name, list(found), relation)
    if arrow_type(field.dataType) is None:
        raise InvalidInput(
            f"column {field.name!r} cannot be read as {field.dataType.simpleString()}; "
            "read it as a string, and take that apart with from_json or the like"
        )
    return found[field.name], field.dataType


def _ranges(
    options: SourceOptions, database: TableDatabase, relation: Relation, found: dict[str, Column]
) -> list[str]:
    """Return the ranges that the options ask for; one when they ask for none."""
    name = options.text("partitionColumn")
    count = options.number("numPartitions", 1, MAX_PARTITIONS)
    bounds = (options.text("lowerBound"), options.text("upperBound"))
    if name is None:
        if any(bounds):
            raise InvalidInput("'lowerBound' and 'upperBound' need the option 'partitionColumn'")
        name = database.key(relation) if count is not None and count > 1 else None
        if name is None:
            if count is not None and count > 1:
                raise InvalidInput(
                    f"{relation} has no primary key of one column to be cut by; "
                    "name a column by the option 'partitionColumn'"
                )
            return [""]
    if name not in found:
        raise no_column(name, list(found), relation)
    return cut(database, relation, found[name], count or DEFAULT_PARTITIONS, bounds)
