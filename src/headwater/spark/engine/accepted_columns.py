"""The columns that a format has: what a source refuses to be asked for, and a sink to be given."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import pyarrow as pa
from pyspark.sql.types import (
    BinaryType,
    DataType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    ShortType,
    StringType,
    StructType,
)

from headwater.errors import InvalidInput
from headwater.spark.engine.column_names import is_case_sensitive, spelled_columns
from headwater.spark.engine.options import SourceOptions
from headwater.spark.engine.own_scans import without_mark

# What Spark calls the columns of VALUES that have no names.
_OF_VALUES = re.compile(r"col[0-9]+")
BYTES = (StringType, BinaryType)
# Every number but decimals.
SCORE = (DoubleType, FloatType, LongType, IntegerType, ShortType)


def refuse_other_schema(schema: StructType, ours: StructType, what: str) -> None:
    """Refuse a schema of the user's own: columns can be selected and cast afterwards."""
    if without_mark(schema) != ours:
        raise InvalidInput(
            f"{what} has the columns {', '.join(ours.names)}, each in its own type; "
            "leave the schema out, then select and cast the columns"
        )


@dataclass(frozen=True, slots=True)
class AcceptedColumns:
    """The columns that a sink accepts: the types of each, and which are required.

    ``hint`` ends the message for columns that are not accepted. ``named_here`` has the cure for
    names of columns that other systems use.
    """

    what: str
    types: Mapping[str, tuple[type[DataType], ...]]
    required: Sequence[str]
    hint: str = ""
    # What a column is called here that other systems call otherwise.
    named_here: Mapping[str, str] = field(default_factory=dict)

    def accept(self, schema: StructType, options: SourceOptions) -> StructType:
        """Return the columns as they are spelled here; the case of names is ignored, as by Spark.

        Raises InvalidInput for other columns, other types, missing ones and ambiguous ones.
        """
        schema = spelled_columns(schema, self.types, exact=is_case_sensitive(options))
        self.check(schema)
        return schema

    def check(self, schema: StructType) -> None:
        """Refuse other columns, other types and missing ones. Raises InvalidInput."""
        for column in schema.fields:
            wanted = self.types.get(column.name)
            if wanted is None and (meant := self.named_here.get(column.name.lower())):
                raise InvalidInput(f"column {column.name!r} has no place in {self.what}: {meant}")
            if wanted is None and _OF_VALUES.fullmatch(column.name):
                listed = ", ".join(self.required)
                raise InvalidInput(
                    f"the rows have no names for their columns, only {column.name!r}; name the "
                    f"columns: INSERT INTO ... ({listed}, ...) VALUES ..."
                )
            if wanted is None:
                raise InvalidInput(
                    f"column {column.name!r} has no place in {self.what}, which takes "
                    f"{', '.join(self.types)}; choose with .select(...){self.hint}"
                )
            if schema.names.count(column.name) > 1:
                raise InvalidInput(f"column {column.name!r} is there twice; name each once")
            if not isinstance(column.dataType, wanted):
                words = " or ".join(kind.typeName() for kind in wanted)
                raise InvalidInput(
                    f"column {column.name!r} must be {words}, not "
                    f"{column.dataType.simpleString()}; use "
                    f".withColumn({column.name!r}, col({column.name!r}).cast(...)){self.hint}"
                )
        for name in self.required:
            if name not in schema.names:
                raise InvalidInput(
                    f"there is no column {name!r} among {schema.names}; make one, for example by "
                    f".withColumnRenamed(..., {name!r}){self.hint}"
                )

    def refuse_nulls(self, batch: pa.RecordBatch) -> None:
        """Refuse rows in which a required column is null. Raises InvalidInput."""
        for name in self.required:
            if nulls := batch.column(name).null_count:
                raise InvalidInput(
                    f"{nulls} of the rows have a {name} that is null; drop them by "
                    f".where('{name} IS NOT NULL')"
                )


def refuse_overwrite(overwrite: bool, what: str) -> None:
    """Refuse to replace what is there. Raises InvalidInput."""
    if overwrite:
        raise InvalidInput(
            f"{what} is only added to: write with .mode('append'), or .outputMode('append') in a "
            "streaming query"
        )
