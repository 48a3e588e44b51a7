"""Spark's filters as SQL, where the database compares as Spark does; Spark does the others."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from pyspark.sql import datasource as spark
from pyspark.sql.types import DataType

from headwater.spark.tables.database import Column, TableDatabase
from headwater.sql.relations import quoted

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
