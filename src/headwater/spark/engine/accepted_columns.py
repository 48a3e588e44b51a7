"""The columns that a format has, and what it says about others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pyspark.sql.types import DataType, StructType

from headwater.errors import InvalidInput


def refuse_other_schema(schema: StructType, ours: StructType, what: str) -> None:
    """Refuse a schema of the user's own: what comes can be selected and cast afterwards."""
    if schema != ours:
        raise InvalidInput(
            f"{what} has the columns {', '.join(ours.names)}, each in its own type; "
            "leave the schema out, and select and cast what comes"
        )


@dataclass(frozen=True, slots=True)
class AcceptedColumns:
    """The columns that a sink takes: the types of each, and which must be there."""

    what: str
    kinds: Mapping[str, tuple[type[DataType], ...]]
    needed: Sequence[str]

    def check(self, schema: StructType) -> None:
        """Refuse other columns, other types and missing ones. Raises InvalidInput."""
        for column in schema.fields:
            wanted = self.kinds.get(column.name)
            if wanted is None:
                raise InvalidInput(
                    f"column {column.name!r} has no place in {self.what}, which takes "
                    f"{', '.join(self.kinds)}; choose with .select(...)"
                )
            if schema.names.count(column.name) > 1:
                raise InvalidInput(f"column {column.name!r} is there twice; name each once")
            if not isinstance(column.dataType, wanted):
                words = " or ".join(kind.typeName() for kind in wanted)
                raise InvalidInput(
                    f"column {column.name!r} must be {words}, not "
                    f"{column.dataType.simpleString()}; use "
                    f".withColumn({column.name!r}, col({column.name!r}).cast(...))"
                )
        for name in self.needed:
            if name not in schema.names:
                raise InvalidInput(
                    f"there is no column {name!r} among {schema.names}; make one, for example by "
                    f".withColumnRenamed(..., {name!r})"
                )


def refuse_overwrite(overwrite: bool, what: str) -> None:
    """Refuse to write over what is there."""
    if overwrite:
        raise InvalidInput(
            f"{what} is only added to: write with .mode('append'), or .outputMode('append') in a "
            "streaming query"
        )
