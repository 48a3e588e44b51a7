"""Which filters a source may use: only those that our rule of the optimizer pushes down.

Spark itself lets all uses of a DataFrame share what a source was last planned with, filters
included, so that filters of one query would decide what another one reads. A scan that our rule
planned is shared with nobody (``jvm/OwnScans.java``); its schema carries a mark. All others leave
filters to Spark, in whatever session, and whatever its settings are.

Filters are used to read less, never instead of Spark's: it applies every filter again.
"""

from __future__ import annotations

import sys

from pyspark.sql.types import StructField, StructType

# In the metadata of the last column; jvm/ColumnScan.java puts it there.
_MARK = "headwater.own_scan"
_PUSHDOWN_PROCESS = "pyspark.sql.worker.data_source_pushdown_filters"


def takes_filters(schema: StructType) -> bool:
    """Return whether a reader of this schema may have the method ``pushFilters``.

    So it is in a process that Spark started to push filters down for a scan of its own. Everywhere
    else Spark may refuse such a reader, depending on its settings.
    """
    return is_own_scan(schema) and _is_pushing_down()


def is_own_scan(schema: StructType) -> bool:
    """Return whether our rule asks for the columns, for a scan that is shared with nobody."""
    return bool(schema.fields) and schema.fields[-1].metadata.get(_MARK) is True


def without_mark(schema: StructType) -> StructType:
    """Return the columns as a query sees them."""
    if not is_own_scan(schema):
        return schema
    *others, last = schema.fields
    metadata = {key: value for key, value in last.metadata.items() if key != _MARK}
    return StructType(
        [*others, StructField(last.name, last.dataType, last.nullable, metadata or None)]
    )


def with_mark(schema: StructType) -> StructType:
    """Return the columns as our rule asks for them."""
    *others, last = schema.fields
    metadata = {**last.metadata, _MARK: True}
    return StructType([*others, StructField(last.name, last.dataType, last.nullable, metadata)])


def _is_pushing_down() -> bool:
    main = getattr(sys.modules.get("__main__"), "__spec__", None)
    return _PUSHDOWN_PROCESS in sys.modules or getattr(main, "name", "") == _PUSHDOWN_PROCESS
