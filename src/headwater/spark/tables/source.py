"""``format("headwater_table")``: the source itself, its options and its tasks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, Filter, InputPartition
from pyspark.sql.types import DataType, StructField, StructType

from headwater.errors import HeadwaterError, InvalidInput, ValueMisfit
from headwater.spark.engine.failures import one_line
from headwater.spark.engine.options import SourceOptions
from headwater.spark.engine.own_scans import takes_filters
from headwater.spark.engine.table_options import LostReader, are_lost
from headwater.spark.tables.database import (
    Column,
    TableDatabase,
    chosen_columns,
    no_column,
    open_database,
)
from headwater.spark.tables.filters import Pushdown
from headwater.spark.tables.fitting import arrow_type, fit
from headwater.spark.tables.ranges import cut
from headwater.sql.relations import Relation

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


class TableSource(DataSource):
    """A table or a query of SQLite or Postgres, to read."""

    @classmethod
    def name(cls) -> str:
        """Return the name for ``format``."""
        return "headwater_table"

    @one_line()
    def schema(self) -> StructType:
        """Return the columns with their own types; the option ``columns`` chooses among them."""
        options = self._options()
        database = open_database(options.required("url"), options.text("snapshot"))
        relation = Relation.of(options.text("table"), options.text("query"))
        columns = chosen_columns(database.columns(relation), options.words("columns"), relation)
        return StructType([StructField(column.name, column.type) for column in columns])

    @one_line()
    def reader(self, schema: StructType) -> DataSourceReader:
        """Plan a read; ``schema`` may be the user's own: other types, or fewer columns."""
        if are_lost(self.options):
            return LostReader()
        kind = FilteringTableReader if takes_filters(schema) else TableReader
        return kind(self._options(), schema)

    def _options(self) -> SourceOptions:
        return SourceOptions(self.options, OPTIONS, "table", ["query"])


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
