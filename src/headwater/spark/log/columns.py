"""The columns of the source: what the log holds, in the types that Spark takes over as they are.

    stream     string      the stream, or the topic's stream that holds this partition
    partition  int         the partition of a topic; 0 in a stream
    offset     long
    tag        string
    value      binary
    time       timestamp   UTC; the log counts milliseconds
    headers    array of struct of key and value; when the option ``includeHeaders`` is true

The option ``columns`` chooses some of them, in the order asked for. Where our rule planned the
scan, tasks are asked only for the columns that the query uses. Elsewhere Spark does not say which
those are, and with the option others are neither made nor moved.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from headwater.errors import InvalidInput
from headwater.log.node import FLAGS_AT, HAS_OFFSET, HAS_TIME, HEADER_BYTES, STRUCTS
from headwater.log.reading import UnopenedNode
from headwater.spark.engine.arrow_rows import TIME
from headwater.spark.engine.ddl import arrow_type
from headwater.spark.log.decoding import ValueColumns

_COLUMNS: dict[str, tuple[DataType, pa.DataType]] = {
    "stream": (StringType(), pa.string()),
    "partition": (IntegerType(), pa.int32()),
    "offset": (LongType(), pa.int64()),
    "tag": (StringType(), pa.string()),
    "value": (BinaryType(), pa.binary()),
    "time": (TimestampType(), TIME),
}
ALL = tuple(_COLUMNS)
# All, where values are decoded.
WITHOUT_VALUE = tuple(name for name in ALL if name != "value")
# As Kafka's source has them; not among all columns unless asked for.
HEADERS = "headers"
_COLUMNS[HEADERS] = (
    ArrayType(StructType([StructField("key", StringType()), StructField("value", BinaryType())])),
    STRUCTS,
)
# Where the JVM opens nodes itself (jvm/ColumnScan.java), it asks for this column behind the others.
NODE = pa.field("__node", pa.binary())
# These columns are known without a look at any message, where no offset is missing.
COUNTED = frozenset({"stream", "partition", "offset", NODE.name})
_FACTS = struct.Struct("<qq")
_NO_NODE = b"\0"


def check_columns(names: Sequence[str], *, headers: bool = False) -> tuple[str, ...]:
    """Check names of columns, each once; no name at all means all columns."""
    wanted = tuple(name.lower() for name in names) or ALL
    if headers and HEADERS not in wanted:
        wanted = (*wanted, HEADERS)
    for name in wanted:
        if name not in _COLUMNS:
            known = ", ".join(_COLUMNS)
            raise InvalidInput(f"there is no column {name!r}; the columns are {known}")
        if wanted.count(name) > 1:
            raise InvalidInput(f"column {name!r} is named twice; name each once")
    return wanted


def spark_schema(names: Sequence[str]) -> StructType:
    """Return the schema that Spark sees."""
    return StructType([StructField(name, _COLUMNS[name][0], nullable=False) for name in names])


def arrow_schema(schema: StructType, decoded: ValueColumns | None = None) -> pa.Schema:
    """Return the schema of the record batches that tasks return.

    ``schema`` is ours, or what a user gave instead: some of our columns, in their own types, and of
    those that values are ``decoded`` into. Raises InvalidInput for others.
    """
    of_values = decoded.types() if decoded else {}
    nodes = schema.names[-1:] == [NODE.name]
    named = schema.fields[:-1] if nodes else schema.fields
    fields = []
    # No column at all is asked for where rows are only counted.
    if ours := [field.name for field in named if field.name not in of_values]:
        check_columns(ours)
    for field in named:
        name = field.name if field.name in of_values else field.name.lower()
        kind = of_values.get(name) or _COLUMNS[name][0]
        if field.name != name or field.dataType != kind:
            raise InvalidInput(
                f"the schema has {field.name} {field.dataType.simpleString()} where the source has "
                f"{name} {kind.simpleString()}; leave the schema out and cast what comes"
            )
        arrow = arrow_type(kind) if name in of_values else _COLUMNS[name][1]
        fields.append(pa.field(name, arrow, nullable=field.nullable))
    return pa.schema([*fields, NODE] if nodes else fields)


def batches_for_spark(
    table: pa.Table,
    stream: str,
    partition: int,
    schema: pa.Schema,
    decoded: ValueColumns | None = None,
) -> list[pa.RecordBatch]:
    """Return rows of the log (offset, tag, value, time, maybe headers) as batches for Spark."""
    of_values = {}
    if decoded is not None and not decoded.names.isdisjoint(schema.names):
        of_values = decoded.decode(table.column("value").combine_chunks())
    rows = table.num_rows
    columns = []
    for name in schema.names:
        if name in of_values:
            columns.append(pa.chunked_array([of_values[name]]))
        elif name == "stream":
            columns.append(pa.chunked_array([pa.repeat(pa.scalar(stream), rows)]))
        elif name == "partition":
            columns.append(pa.chunked_array([pa.repeat(pa.scalar(partition, pa.int32()), rows)]))
        elif name == "time":
            columns.append(table.column("time").cast(TIME))
        elif name == HEADERS:
            columns.append(table.column(HEADERS).cast(STRUCTS))
        elif name == NODE.name:
            columns.append(pa.chunked_array([pa.nulls(rows, NODE.type)]))
        else:
            columns.append(table.column(name))
    shaped = pa.Table.from_arrays(columns, schema=schema)
    batches: list[pa.RecordBatch] = shaped.combine_chunks().to_batches()
    return batches


def batch_of_nodes(
    nodes: Sequence[UnopenedNode], stream: str, partition: int, schema: pa.Schema
) -> pa.RecordBatch:
    """Return nodes unopened, one in each row; the JVM finds the other columns in them.

    Before them, one row has the base and the time of each; its first byte shows that it is no node.
    """
    fixed: dict[str, Any] = {"stream": stream, "partition": partition}
    empty: dict[pa.DataType, Any] = {pa.string(): "", pa.binary(): b""}
    rows = len(nodes) + 1
    columns = [
        pa.repeat(pa.scalar(fixed.get(field.name, empty.get(field.type, 0)), field.type), rows)
        for field in schema
    ]
    facts = b"".join(_FACTS.pack(one.base, one.time) for one in nodes)
    blobs = (one.blob if _is_used(one.blob, schema) else one.blob[:HEADER_BYTES] for one in nodes)
    columns[-1] = pa.array([_NO_NODE + facts, *blobs], NODE.type)
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _is_used(blob: bytes, schema: pa.Schema) -> bool:
    """Return whether a column lies in the node itself; its header tells how many rows it has."""
    elsewhere = {"stream", "partition", NODE.name}
    if not blob[FLAGS_AT] & HAS_TIME:
        elsewhere.add("time")
    if not blob[FLAGS_AT] & HAS_OFFSET:
        elsewhere.add("offset")
    return not elsewhere.issuperset(schema.names)
