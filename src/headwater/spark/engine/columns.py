"""Columns of a format: those it has, how they are named and declared, what may filter them."""

from __future__ import annotations

import dataclasses
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from headwater.errors import InvalidInput
from headwater.spark.engine.options import SourceOptions

# ── Own scans ─────────────────────────────────────────────────────────────────────────────────────
# Which filters a source may use: only those that our rule of the optimizer pushes down.
#
# Spark itself lets all uses of a DataFrame share what a source was last planned with, filters
# included, so that filters of one query would decide what another one reads. A scan that our rule
# planned is shared with nobody (``jvm/OwnScans.java``); its schema carries a mark. All others
# leave filters to Spark, in whatever session, and whatever its settings are.
#
# Filters are used to read less, never instead of Spark's: it applies every filter again.


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


def _is_pushing_down() -> bool:
    main = getattr(sys.modules.get("__main__"), "__spec__", None)
    return _PUSHDOWN_PROCESS in sys.modules or getattr(main, "name", "") == _PUSHDOWN_PROCESS


# ── Arrow rows ────────────────────────────────────────────────────────────────────────────────────
# Rows that a source makes of Python objects: its columns, stated once, and batches of them.


# A timestamp, as Spark takes it over without a conversion.
TIME = pa.timestamp("us", "UTC")
# So many rows make a batch.
BATCH_ROWS = 32_000


def spark_schema(schema: pa.Schema) -> StructType:
    """Return the schema that Spark sees for columns of Arrow."""
    return from_arrow_schema(schema)


def to_batch(columns: Iterable[Any], schema: pa.Schema) -> pa.RecordBatch:
    """Return a batch of columns, each a sequence of values."""
    arrays = [pa.array(found, field.type) for found, field in zip(columns, schema, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


# ── Column names ──────────────────────────────────────────────────────────────────────────────────
# Which of a sink's columns each column of a DataFrame is: names are compared as Spark does it.
#
# Spark ignores the case of names unless ``spark.sql.caseSensitive`` is true. It does not tell a
# Python sink, so our Java adds the setting to the options of a write (``jvm/NodeWrites.java``); a
# session without our Java ignores the case, unless the write has the option.


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


# ── Accepted columns ──────────────────────────────────────────────────────────────────────────────
# The columns that a format has: what a source refuses to be asked for, and a sink to be given.


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
    named_here: Mapping[str, str] = dataclasses.field(default_factory=dict)

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


# ── Ddl ───────────────────────────────────────────────────────────────────────────────────────────
# Columns as they are written in DDL, ``id bigint, rider struct<name: string>``, as Spark's types.
#
# Spark parses DDL in its JVM, which the Python processes of a source cannot call.


_TYPES: dict[str, Callable[[], DataType]] = {
    "string": StringType,
    "boolean": BooleanType,
    "tinyint": ByteType,
    "byte": ByteType,
    "smallint": ShortType,
    "short": ShortType,
    "int": IntegerType,
    "integer": IntegerType,
    "bigint": LongType,
    "long": LongType,
    "float": FloatType,
    "real": FloatType,
    "double": DoubleType,
    "date": DateType,
    "timestamp": TimestampType,
    "timestamp_ltz": TimestampType,
    "timestamp_ntz": TimestampNTZType,
}
ARROW_TYPES: dict[type[DataType], pa.DataType] = {
    StringType: pa.string(),
    BinaryType: pa.binary(),
    BooleanType: pa.bool_(),
    ByteType: pa.int8(),
    ShortType: pa.int16(),
    IntegerType: pa.int32(),
    LongType: pa.int64(),
    FloatType: pa.float32(),
    DoubleType: pa.float64(),
    DateType: pa.date32(),
    TimestampType: TIME,
    TimestampNTZType: pa.timestamp("us"),
}
_DECIMALS = ("decimal", "dec", "numeric")
_TOKEN = re.compile(r"\s*(?:(`(?:[^`]|``)+`)|('(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\")|(\w+)|(.))")
_END = ""


def parse_ddl(text: str) -> StructType:
    """Return the columns that DDL names, all nullable. Raises InvalidInput."""
    parser = _Parser(text)
    fields = parser.fields()
    parser.expect(_END)
    return StructType(fields)


def arrow_type(kind: DataType) -> pa.DataType:
    """Return the type of Arrow for a type that DDL can name."""
    if isinstance(kind, StructType):
        return pa.struct([(one.name, arrow_type(one.dataType)) for one in kind.fields])
    if isinstance(kind, ArrayType):
        return pa.list_(arrow_type(kind.elementType))
    if isinstance(kind, DecimalType):
        return pa.decimal128(kind.precision, kind.scale)
    return ARROW_TYPES[type(kind)]


class _Parser:
    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens: Iterator[str] = chain(
            ("".join(one.groups("")) for one in _TOKEN.finditer(text.strip())), [_END]
        )
        self._next = next(self._tokens)

    def fields(self) -> list[StructField]:
        found = [self._field()]
        while self._take(","):
            found.append(self._field())
        return found

    def expect(self, word: str) -> None:
        if not self._take(word):
            raise self._refusal(f"{word!r} was expected" if word else "nothing more was expected")

    def _field(self) -> StructField:
        name = self._word("the name of a column")
        self._take(":")
        kind = self._type()
        if self._take("not"):
            # What a message lacks is null, whatever is declared.
            self.expect("null")
        if self._take("comment"):
            self._word("a text")
        return StructField(name, kind)

    def _type(self) -> DataType:
        word = self._word("a type").lower()
        if word == "array":
            self.expect("<")
            element = self._type()
            self.expect(">")
            return ArrayType(element)
        if word == "struct":
            self.expect("<")
            found = self.fields()
            self.expect(">")
            return StructType(found)
        if word in _DECIMALS:
            return self._decimal()
        if word not in _TYPES:
            known = ", ".join([*_TYPES, *_DECIMALS, "array<...>", "struct<...>"])
            raise InvalidInput(
                f"option 'schema' has the type {word!r}; a value can be decoded into {known}; "
                "for others leave the option out, and use from_json"
            )
        return _TYPES[word]()

    def _decimal(self) -> DecimalType:
        if not self._take("("):
            return DecimalType()
        sizes = [self._word("a number")]
        while self._take(","):
            sizes.append(self._word("a number"))
        self.expect(")")
        numbers = [int(size) for size in sizes if size.isdecimal()]
        if len(numbers) != len(sizes) or len(sizes) > 2 or not 1 <= numbers[0] <= 38:
            raise self._refusal("a decimal has 1 to 38 digits, and a scale")
        return DecimalType(*numbers)

    def _word(self, what: str) -> str:
        word = self._next
        if not re.match(r"[\w`'\"]", word):
            raise self._refusal(f"{what} was expected")
        self._next = next(self._tokens)
        return word[1:-1].replace("``", "`") if word[0] == "`" else word

    def _take(self, word: str) -> bool:
        if self._next.lower() != word:
            return False
        self._next = next(self._tokens, _END)
        return True

    def _refusal(self, why: str) -> InvalidInput:
        found = f"before {self._next!r}" if self._next else "at its end"
        return InvalidInput(
            f"option 'schema' is not DDL: {why} {found} in {self._text!r}; write it like "
            "'id bigint, rider struct<name: string>, stops array<string>'"
        )
