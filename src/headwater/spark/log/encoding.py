"""Columns encoded as the JSON values of messages, many at a time: the way back of ``decoding``.

The columns of the option ``schema`` become one JSON object, without those that are null, as Spark's
``to_json`` writes it. A row with text in the column for misfits has that text as its value, so that
rows that were decoded go back as they came.

JSON is put together column by column, by functions of Arrow on text; no row is a Python object.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import BinaryType, StructField, StructType

from headwater.errors import InvalidInput
from headwater.spark.log.decoding import ValueColumns

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
