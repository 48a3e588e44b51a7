"""Columns as they are written in DDL, ``id bigint, rider struct<name: string>``, as Spark's types.

Spark parses DDL in its JVM, which the Python processes of a source cannot call.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from itertools import chain

import pyarrow as pa
from pyspark.sql.types import (
    ArrayType,
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
from headwater.spark.engine.arrow_rows import TIME

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
_ARROW: dict[type[DataType], pa.DataType] = {
    StringType: pa.string(),
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
    return _ARROW[type(kind)]


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
