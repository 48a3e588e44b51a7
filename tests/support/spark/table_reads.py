"""Tables of a database, read by the table source: in this process, or by Spark."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias, cast

from pyspark.sql import DataFrame
from pyspark.sql.datasource import Filter

from headwater.spark.engine.options import SourceOptions
from headwater.spark.tables.source import OPTIONS, FilteringTableReader, TableSource

Read: TypeAlias = Callable[..., DataFrame]


def read_here(url: str, *filters: Filter, **options: object) -> list[list[tuple[Any, ...]]]:
    """Return the rows of each task, without Spark; the database must take every filter."""
    source = TableSource({"url": url} | {key: str(value) for key, value in options.items()})
    reader = FilteringTableReader(SourceOptions(source.options, OPTIONS), source.schema())
    assert list(reader.pushFilters(list(filters))) == []
    parts = []
    for part in reader.partitions():
        columns = [batch.to_pydict().values() for batch in cast(Any, reader.read(part))]
        parts.append([row for batch in columns for row in zip(*batch, strict=True)])
    return parts
