"""A table cut into ranges of one column: every row in exactly one of them, nulls in the first.

Whole numbers, dates and (on Postgres) points in time are cut into equal steps between two bounds,
which are looked up unless they are given; bounds only say where to cut, rows outside of them are
read too. Anything else that has an order is cut into equal counts of rows, which reads the column
once.
"""

from __future__ import annotations

import datetime as dt
import itertools
from collections.abc import Callable
from typing import Any, NamedTuple

from pyspark.sql import types as t

from headwater.errors import InvalidInput
from headwater.spark.tables.database import Column, TableDatabase
from headwater.sql.relations import Relation, quoted

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
