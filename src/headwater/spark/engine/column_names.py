"""Which of a sink's columns each column of a DataFrame is: names are compared as Spark does it.

Spark ignores the case of names unless ``spark.sql.caseSensitive`` is true. It does not tell a
Python sink, so our Java adds the setting to the options of a write (``jvm/NodeWrites.java``); a
session without our Java ignores the case, unless the write has the option.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import pyarrow as pa
from pyspark.sql.types import StructField, StructType

from headwater.errors import InvalidInput
from headwater.spark.engine.options import SourceOptions

CASE_SENSITIVE = "spark.sql.caseSensitive"


def is_case_sensitive(options: SourceOptions) -> bool:
    """Return whether names of columns that differ by case are names of different columns."""
    return options.flag(CASE_SENSITIVE, False)


def spelled(name: str, known: Sequence[str], *, exact: bool) -> str:
    """Return a name as it is among those that are known, else as it is.

    Raises InvalidInput when it is spelled as none of them, and two differ from it by case only.
    """
    if exact or name in known:
        return name
    alike = [one for one in known if one.lower() == name.lower()]
    if len(alike) > 1:
        raise InvalidInput(
            f"column {name!r} may be any of {', '.join(map(repr, alike))}; rename it to one of them"
        )
    return alike[0] if alike else name


def spelled_columns(schema: StructType, known: Iterable[str], *, exact: bool) -> StructType:
    """Return the columns of a write under the names that a sink knows them by.

    Raises InvalidInput for two columns that differ by case only and mean the same one.
    """
    known = [*known]
    fields: dict[str, StructField] = {}
    found = []
    for field in schema.fields:
        name = spelled(field.name, known, exact=exact)
        other = fields.setdefault(name, field)
        if other.name != field.name:
            raise InvalidInput(
                f"columns {other.name!r} and {field.name!r} differ by case only, and both are "
                f"{name!r}; drop or rename one of them"
            )
        found.append(StructField(name, field.dataType, field.nullable, field.metadata))
    return StructType(found)


def renamed(
    batches: Iterable[pa.RecordBatch], names: Sequence[str] | None
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a task under other names of their columns; None: as they are."""
    for batch in batches:
        yield batch if names is None else batch.rename_columns([*names])
