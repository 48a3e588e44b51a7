"""The columns of the log: what it holds in Spark's types, and JSON values as columns and back.

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

import json
import logging
import struct
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj
from pyspark.sql.types import BinaryType, DataType, StringType, StructField, StructType

from headwater.errors import InvalidInput
from headwater.log.node import FLAGS_AT, HAS_OFFSET, HAS_TIME, HEADER_BYTES, STRUCTS
from headwater.log.reading import UnopenedNode
from headwater.spark.engine import columns
from headwater.spark.engine.columns import TIME, arrow_type, parse_ddl
from headwater.spark.engine.options import SourceOptions

# ── Decoding ──────────────────────────────────────────────────────────────────────────────────────
# Values of messages decoded from JSON into columns, many at a time, by Arrow.
#
# The option ``schema`` names the columns. A value fits when it is one JSON object whose fields
# have the types of the columns; a column that it lacks is null, fields that are no column are
# ignored. A value that does not fit has null in all columns, and is in the column for misfits as
# it is.
#
# All columns are decoded whatever the query uses, so that a value fits in every query or in none.


VALUE_OPTIONS = ("schema", "columnNameOfCorruptRecord")
# As Spark itself calls it.
_MISFIT = "_corrupt_record"
# Each value is the only element of an array in a line of its own. Whatever a value is, it cannot
# end the line of the next one, and an array with more or fewer elements shows that it is none.
_BEFORE, _AFTER, _ROW = b'{"v":[', b"]}\n", "v"
_LIKE_AN_OBJECT = r"^\s*\{(?s:.*)\}\s*$"

logger = logging.getLogger("headwater.spark")


@dataclass(frozen=True, slots=True)
class ValueColumns:
    """The columns that values are decoded into, and the one for values that do not fit."""

    fields: StructType
    misfit: str

    @property
    def schema(self) -> StructType:
        """All columns, as Spark sees them."""
        return StructType([*self.fields.fields, StructField(self.misfit, StringType())])

    @property
    def names(self) -> frozenset[str]:
        """The names of all columns."""
        return frozenset(self.schema.names)

    def types(self) -> dict[str, DataType]:
        """Return the type of each column."""
        return {field.name: field.dataType for field in self.schema.fields}

    def decode(self, values: pa.Array) -> dict[str, pa.Array]:
        """Return the columns of values."""
        wanted = arrow_type(self.fields)
        pieces = _decoded(values, wanted)
        found = pa.concat_arrays(pieces) if pieces else pa.array([], wanted)
        columns = dict(zip(self.fields.names, found.flatten(), strict=True))
        misfits = pc.if_else(found.is_valid(), pa.scalar(None, pa.binary()), values)
        if count := len(misfits) - misfits.null_count:
            logger.info("%d of %d values do not fit the schema", count, len(values))
        return columns | {self.misfit: _text(misfits)}


def value_columns(options: SourceOptions) -> ValueColumns | None:
    """Return what the option ``schema`` wants; None when it is not given. Raises InvalidInput."""
    ddl = options.text("schema")
    misfit = options.text("columnNameOfCorruptRecord", _MISFIT) or _MISFIT
    if ddl is None:
        if "columnNameOfCorruptRecord" in options:
            raise InvalidInput("option 'columnNameOfCorruptRecord' goes with 'schema'; give both")
        return None
    fields = [one for one in parse_ddl(ddl).fields if one.name != misfit]
    names = [one.name.lower() for one in fields]
    for name in names:
        if names.count(name) > 1:
            raise InvalidInput(f"option 'schema' has the column {name!r} twice; name each once")
    if not fields:
        raise InvalidInput("option 'schema' names no column; give one at least")
    return ValueColumns(StructType(fields), misfit)


def _decoded(values: pa.Array, wanted: pa.StructType) -> list[pa.Array]:
    """Return values as structs, in pieces; one that does not fit is null."""
    if not len(values):
        return []
    whole = _parsed(values, wanted)
    if whole is not None:
        return [whole]
    if len(values) == 1:
        return [pa.nulls(1, wanted)]
    # Half by half down to those that do not fit. Most that do not are no objects at all.
    likely = pc.match_substring_regex(values, _LIKE_AN_OBJECT)
    if pc.any(likely).as_py() is False:
        return [pa.nulls(len(values), wanted)]
    middle = len(values) // 2
    return [*_decoded(values[:middle], wanted), *_decoded(values[middle:], wanted)]


def _parsed(values: pa.Array, wanted: pa.StructType) -> pa.Array | None:
    """Return values as structs; None when one of them does not fit."""
    lines = pc.binary_join_element_wise(_BEFORE, values, _AFTER, b"")
    _, _, data = lines.buffers()
    how = pj.ParseOptions(
        explicit_schema=pa.schema([(_ROW, pa.list_(_as_read(wanted)))]),
        newlines_in_values=True,
        unexpected_field_behavior="ignore",
    )
    one_block = pj.ReadOptions(use_threads=False, block_size=data.size + 1)
    try:
        # JSON is UTF-8, which the parser does not check.
        values.cast(pa.string())
        read = pj.read_json(pa.BufferReader(data), read_options=one_block, parse_options=how)
        lists = read.column(_ROW).combine_chunks()
        if (
            len(lists) != len(values)
            or not pc.all(pc.equal(pc.list_value_length(lists), 1)).as_py()
        ):
            return None
        found = lists.flatten().cast(wanted)
    except pa.ArrowInvalid:
        return None
    return None if found.null_count else found


def _as_read(wanted: pa.DataType) -> pa.DataType:
    """Return the type to parse: of dates it is text, since Arrow parses numbers only as dates."""
    if pa.types.is_struct(wanted):
        return pa.struct([one.with_type(_as_read(one.type)) for one in wanted])
    if pa.types.is_list(wanted):
        return pa.list_(_as_read(wanted.value_type))
    return pa.string() if pa.types.is_date(wanted) else wanted


def _text(values: pa.Array) -> pa.Array:
    """Return bytes as text; what is no UTF-8 with signs in its place."""
    try:
        return values.cast(pa.string())
    except pa.ArrowInvalid:
        found = [
            None if one is None else one.decode("utf-8", "replace") for one in values.to_pylist()
        ]
        return pa.array(found, pa.string())


# ── Columns ───────────────────────────────────────────────────────────────────────────────────────


# As Kafka's source has them; not among all columns unless asked for.
HEADERS = "headers"
_COLUMNS: dict[str, pa.DataType] = {
    "stream": pa.string(),
    "partition": pa.int32(),
    "offset": pa.int64(),
    "tag": pa.string(),
    "value": pa.binary(),
    "time": TIME,
    HEADERS: STRUCTS,
}
ALL = tuple(name for name in _COLUMNS if name != HEADERS)
# All, where values are decoded.
WITHOUT_VALUE = tuple(name for name in ALL if name != "value")
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
    return columns.spark_schema(
        pa.schema([pa.field(name, _COLUMNS[name], nullable=False) for name in names])
    )


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
        kind = of_values.get(name) or spark_schema([name])[name].dataType
        if field.name != name or field.dataType != kind:
            raise InvalidInput(
                f"the schema has {field.name} {field.dataType.simpleString()} where the source has "
                f"{name} {kind.simpleString()}; leave the schema out and cast what comes"
            )
        arrow = arrow_type(kind) if name in of_values else _COLUMNS[name]
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


# ── Encoding ──────────────────────────────────────────────────────────────────────────────────────
# Columns encoded as the JSON values of messages, many at a time: the way back of ``decoding``.
#
# The columns of the option ``schema`` become one JSON object, without those that are null, as
# Spark's ``to_json`` writes it. A row with text in the column for misfits has that text as its
# value, so that rows that were decoded go back as they came.
#
# JSON is put together column by column, by functions of Arrow on text; no row is a Python object.


_USUAL = {"\\": r"\\", '"': r"\"", "\n": r"\n", "\r": r"\r", "\t": r"\t"}
_RARE = {chr(code): f"\\u{code:04x}" for code in range(0x20) if chr(code) not in _USUAL}
# JSON has no such numbers; Spark writes them as text.
_NO_NUMBERS = {"nan": '"NaN"', "inf": '"Infinity"', "-inf": '"-Infinity"'}


def encoded_schema(schema: StructType, columns: ValueColumns) -> StructType:
    """Return the columns of a write once its values are encoded. Raises InvalidInput."""
    given = {field.name: field.dataType.simpleString() for field in schema.fields}
    for field in columns.fields.fields:
        kind = field.dataType.simpleString()
        if field.name not in given:
            raise InvalidInput(
                f"there is no column {field.name!r} of the option 'schema' among {schema.names}; "
                "make it, or leave it out of the option"
            )
        if given[field.name] != kind:
            raise InvalidInput(
                f"column {field.name!r} is {given[field.name]}, and {kind} in the option 'schema'; "
                f"use .withColumn({field.name!r}, col({field.name!r}).cast({kind!r}))"
            )
    others = [field for field in schema.fields if field.name not in columns.names]
    if any(field.name == "value" for field in others):
        raise InvalidInput(
            "column 'value' is there, and the option 'schema' makes the value of other columns; "
            "drop the column, or leave the option out"
        )
    return StructType([*others, StructField("value", BinaryType())])


def encode_values(
    batches: Iterable[pa.RecordBatch], columns: ValueColumns
) -> Iterator[pa.RecordBatch]:
    """Yield batches with values in place of the columns that they are made of."""
    for batch in batches:
        made_of = [batch.column(name) for name in columns.fields.names]
        value = _object(columns.fields.names, made_of)
        if columns.misfit in batch.schema.names:
            value = pc.coalesce(batch.column(columns.misfit).cast(pa.string()), value)
        others = [name for name in batch.schema.names if name not in columns.names]
        yield pa.RecordBatch.from_arrays(
            [*(batch.column(name) for name in others), value], names=[*others, "value"]
        )


def _object(names: Iterable[str], columns: Iterable[pa.Array]) -> pa.Array:
    """Return an object for each row, without the fields that are null."""
    fields = []
    for name, column in zip(names, columns, strict=True):
        field = f",{json.dumps(name, ensure_ascii=False)}:"
        fields.append(pc.binary_join_element_wise(field, _json(column), "").fill_null(""))
    inner = pc.utf8_ltrim(pc.binary_join_element_wise(*fields, ""), ",")
    return pc.binary_join_element_wise("{", inner, "}", "")


def _json(column: pa.Array) -> pa.Array:
    """Return each value as JSON; null where it is null."""
    kind = column.type
    if pa.types.is_struct(kind):
        names = [field.name for field in kind]
        return _only_where(column, _object(names, column.flatten()))
    if pa.types.is_list(kind):
        return _only_where(column, _list(column))
    text = column.cast(pa.string())
    if pa.types.is_timestamp(kind):
        text = pc.replace_substring(text, " ", "T")
    if pa.types.is_floating(kind):
        for name, written in _NO_NUMBERS.items():
            text = pc.if_else(pc.equal(text, name), written, text)
        return text
    if pa.types.is_temporal(kind):
        return _quoted(text)
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return _quoted(_escaped(text))
    return text


def _list(column: pa.ListArray) -> pa.Array:
    items = _json(column.flatten()).fill_null("null")
    lengths = pc.list_value_length(column).fill_null(0)
    ends = pc.cumulative_sum(lengths.cast(pa.int32()))
    offsets = pa.concat_arrays([pa.array([0], pa.int32()), ends])
    joined = pc.binary_join(pa.ListArray.from_arrays(offsets, items), ",")
    return pc.binary_join_element_wise("[", joined, "]", "")


def _only_where(column: pa.Array, text: pa.Array) -> pa.Array:
    return pc.if_else(column.is_valid(), text, pa.scalar(None, pa.string()))


def _quoted(text: pa.Array) -> pa.Array:
    return pc.binary_join_element_wise('"', text, '"', "")


def _escaped(text: pa.Array) -> pa.Array:
    for signs in (_USUAL, _RARE):
        if _has_any(text, signs):
            for sign, written in signs.items():
                text = pc.replace_substring(text, sign, written)
    return text


def _has_any(text: pa.Array, signs: Iterable[str]) -> bool:
    among = "".join(f"\\x{ord(sign):02x}" for sign in signs)
    return pc.any(pc.match_substring_regex(text, f"[{among}]")).as_py() is True
