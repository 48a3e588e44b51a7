"""The columns of the source: what the log holds, in the types that Spark takes over as they are.

    stream     string      the stream, or the topic's stream that holds this partition
    partition  int         the partition of a topic; 0 in a stream
    offset     long
    tag        string
    value      binary
    time       timestamp   UTC; the log counts milliseconds

``select`` gives fewer of them, in the order asked for: what a query does not need is then neither
made nor moved, for Spark does not tell a Python source which columns a query uses.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
from pyspark.sql.types import (
    BinaryType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from headwater.errors import InvalidInput

TIME = pa.timestamp("us", "UTC")
_COLUMNS = {
    "stream": (StringType(), pa.string()),
    "partition": (IntegerType(), pa.int32()),
    "offset": (LongType(), pa.int64()),
    "tag": (StringType(), pa.string()),
    "value": (BinaryType(), pa.binary()),
    "time": (TimestampType(), TIME),
}
ALL = tuple(_COLUMNS)


def check_columns(names: Sequence[str]) -> tuple[str, ...]:
    """Accept names of columns, each once; none at all is all of them."""
    wanted = tuple(name.lower() for name in names) or ALL
    for name in wanted:
        if name not in _COLUMNS:
            raise InvalidInput(f"there is no column {name!r}; the columns are {', '.join(ALL)}")
        if wanted.count(name) > 1:
            raise InvalidInput(f"column {name!r} is named twice; name each once")
    return wanted


def spark_schema(names: Sequence[str]) -> StructType:
    """Give the schema that Spark sees."""
    return StructType([StructField(name, _COLUMNS[name][0], nullable=False) for name in names])


def arrow_schema(schema: StructType) -> pa.Schema:
    """Give the schema of the record batches that tasks hand over.

    ``schema`` is ours, or what a user gave instead: some of our columns, in their own types.
    Raises InvalidInput for others.
    """
    fields = []
    for name, field in zip(check_columns(schema.names), schema.fields, strict=True):
        kind, arrow = _COLUMNS[name]
        if field.name != name or field.dataType != kind:
            raise InvalidInput(
                f"the schema has {field.name} {field.dataType.simpleString()} where the source has "
                f"{name} {kind.simpleString()}; leave the schema out and cast what comes"
            )
        fields.append(pa.field(name, arrow, nullable=field.nullable))
    return pa.schema(fields)


def hand_over(
    table: pa.Table, stream: str, partition: int, schema: pa.Schema
) -> list[pa.RecordBatch]:
    """Give rows of the log (offset, tag, value, time) as batches for Spark, without a loop."""
    rows = table.num_rows
    columns = []
    for name in schema.names:
        if name == "stream":
            columns.append(pa.chunked_array([pa.repeat(pa.scalar(stream), rows)]))
        elif name == "partition":
            columns.append(pa.chunked_array([pa.repeat(pa.scalar(partition, pa.int32()), rows)]))
        elif name == "time":
            columns.append(table.column("time").cast(TIME))
        else:
            columns.append(table.column(name))
    shaped = pa.Table.from_arrays(columns, schema=schema)
    batches: list[pa.RecordBatch] = shaped.combine_chunks().to_batches()
    return batches
