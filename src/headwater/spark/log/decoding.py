"""Values of messages decoded from JSON into columns, many at a time, by Arrow.

The option ``schema`` names the columns. A value fits when it is one JSON object whose fields have
the types of the columns; a column that it lacks is null, fields that are no column are ignored. A
value that does not fit has null in all columns, and is in the column for misfits as it is.

All columns are decoded whatever the query uses, so that a value fits in every query or in none.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj
from pyspark.sql.types import DataType, StringType, StructField, StructType

from headwater.errors import InvalidInput
from headwater.spark.engine.ddl import arrow_type, parse_ddl
from headwater.spark.engine.options import SourceOptions

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
