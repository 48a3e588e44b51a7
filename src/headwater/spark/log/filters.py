"""Filters that are pushed down: which are understood, and what need not be read because of them.

Spark applies every filter to what is read. Conditions on partition and stream leave out whole
streams, those on offset narrow the range, and a least time narrows it too: no message before the
first one of that time can match. A greatest time cannot, since a writer may give times of its own
in any order. Files of an archive and their parts are also left out by their times and tags.
"""

from __future__ import annotations

import datetime as dt
import operator
from collections.abc import Callable, Iterable
from functools import reduce
from typing import Any, NamedTuple

from pyspark.sql import datasource as spark
from pyspark.sql.datasource import Filter

from headwater.kernel.inputs import MAX_EXACT, to_ms

_COMPARISONS: dict[type[Filter], str] = {
    spark.EqualTo: "equal",
    spark.EqualNullSafe: "equal",
    spark.GreaterThan: "greater",
    spark.GreaterThanOrEqual: "greater_equal",
    spark.LessThan: "less",
    spark.LessThanOrEqual: "less_equal",
    spark.In: "in",
    spark.StringStartsWith: "starts_with",
    spark.StringEndsWith: "ends_with",
    spark.StringContains: "match_substring",
}
_PYTHON: dict[str, Callable[[Any, Any], bool]] = {
    "equal": operator.eq,
    "greater": operator.gt,
    "greater_equal": operator.ge,
    "less": operator.lt,
    "less_equal": operator.le,
    "in": lambda value, among: value in among,
    "starts_with": str.startswith,
    "ends_with": str.endswith,
    "match_substring": operator.contains,
}
_TYPES: dict[str, type] = {
    "stream": str,
    "partition": int,
    "offset": int,
    "tag": str,
    "time": dt.datetime,
}


class Condition(NamedTuple):
    """One comparison of a column with a value, or with several (``in``)."""

    column: str
    comparison: str
    value: Any
    negated: bool = False

    def holds(self, value: Any) -> bool:
        """Return whether a single value meets it."""
        return _PYTHON[self.comparison](value, self.value) != self.negated


def condition_of(found: Filter) -> Condition | None:
    """Return the condition of a filter; None when Spark has to apply it itself."""
    negated = isinstance(found, spark.Not)
    inner = found.child if isinstance(found, spark.Not) else found
    comparison = _COMPARISONS.get(type(inner))
    column = ".".join(getattr(inner, "attribute", ()))
    kind = _TYPES.get(column)
    if comparison is None or kind is None:
        return None
    value: Any = inner.value  # type: ignore[attr-defined]
    values = tuple(value) if comparison == "in" else (value,)
    if any(type(each) is not kind for each in values):
        return None
    if kind is dt.datetime and any(each.tzinfo is None for each in values):
        return None
    return Condition(column, comparison, values if comparison == "in" else value, negated)


def leaves_out(conditions: Iterable[Condition], column: str, value: Any) -> bool:
    """Return whether no row with that value in that column can match: a whole stream is spared."""
    return any(one.column == column and not one.holds(value) for one in conditions)


def offsets_where(conditions: Iterable[Condition]) -> tuple[int, int]:
    """Return the first offset that can match, and the one behind the last."""
    start, stop = 1, MAX_EXACT
    for one in conditions:
        if one.column != "offset" or one.negated:
            continue
        values = one.value if one.comparison == "in" else (one.value,)
        least = {"greater": values[0] + 1}.get(one.comparison, min(values))
        most = {"less": values[0] - 1}.get(one.comparison, max(values))
        if not one.comparison.startswith("less"):
            start = max(start, least)
        if not one.comparison.startswith("greater"):
            stop = min(stop, most + 1)
    return start, stop


def since_ms(conditions: Iterable[Condition]) -> int | None:
    """Return the least time that a matching row can have; None when any time can."""
    bounds = [
        to_ms(min(one.value) if one.comparison == "in" else one.value)
        for one in conditions
        if one.column == "time" and not one.negated and not one.comparison.startswith("less")
    ]
    return max(bounds, default=None)


def until_ms(conditions: Iterable[Condition]) -> int:
    """Return the greatest time that a matching row can have."""
    bounds = [
        to_ms(max(one.value) if one.comparison == "in" else one.value)
        for one in conditions
        if one.column == "time" and not one.negated and not one.comparison.startswith("greater")
    ]
    return min(bounds, default=MAX_EXACT)


def tags_where(conditions: Iterable[Condition]) -> frozenset[str] | None:
    """Return the only tags that a matching row can have; None when there may be others."""
    named = [
        frozenset(one.value if one.comparison == "in" else (one.value,))
        for one in conditions
        if one.column == "tag" and not one.negated and one.comparison in ("equal", "in")
    ]
    return reduce(frozenset.intersection, named) if named else None
