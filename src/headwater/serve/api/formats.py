"""The formats of messages over HTTP: JSON, a line of JSON for each, and Arrow IPC streams.

An Arrow body is decoded by C++: it is accepted only without compression, with plain types and
after its buffers were checked, so that a few bytes never become many. A body of more messages than
a batch may have is refused before time is spent on each of them: other requests wait meanwhile.
"""

from __future__ import annotations

import re
import struct
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from functools import lru_cache
from typing import Annotated, Any, Final, Protocol

import msgspec
import pyarrow as pa
from msgspec import UNSET, Meta, UnsetType
from msgspec.inspect import ListType, StructType, Type, UnionType, type_info

from headwater.errors import InvalidInput
from headwater.kernel.inputs import Encoding, from_text
from headwater.log.keys import MAX_BATCH_MESSAGES
from headwater.log.node import PLAIN, SCHEMA

_COLUMNS: Final = ("tag", "value", "time", "headers")
# Before each message: a mark, and the size of its flatbuffer.
_PREFIX: Final = struct.Struct("<II")
_CONTINUES: Final = 0xFFFFFFFF
# Behind the last message: no further one follows.
_END_OF_STREAM: Final = _PREFIX.pack(_CONTINUES, 0)
# What a message is of, by its flatbuffer.
_RECORD_BATCH: Final = 3
# Schemas of up to this size are remembered.
_SHORT_BYTES: Final = 1024
# To read a schema takes time for each field, and to read a batch takes time even without a row.
_MAX_SCHEMA_BYTES: Final = 64 << 10
MAX_ARROW_BATCHES: Final = 1000


class NewMessage(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    """A message to write: its value as text, as base64 by ``encoding``, or ``data``, any JSON."""

    tag: str = ""
    value: str | UnsetType = UNSET
    data: msgspec.Raw | UnsetType = UNSET
    encoding: Encoding | None = None
    headers: dict[str, str] | None = None

    def entry(self) -> tuple[Any, ...]:
        """Return what the library writes; raises InvalidInput."""
        value = value_of(self)
        return (self.tag, value, self.headers) if self.headers else (self.tag, value)


# The body of a write as JSON.
NewMessages: Final = NewMessage | Annotated[list[NewMessage], Meta(max_length=MAX_BATCH_MESSAGES)]


class NewValue(Protocol):
    """What is written or pushed: text, base64 or any JSON."""

    value: str | UnsetType
    data: msgspec.Raw | UnsetType
    encoding: Encoding | None


def value_of(given: NewValue) -> str | bytes:
    """Return the value of a message; raises InvalidInput."""
    if (given.value is UNSET) is (given.data is UNSET):
        raise InvalidInput("a message has either a value or data; give one of them")
    if not isinstance(given.value, UnsetType):
        return _decoded(given.value, given.encoding)
    if given.encoding is not None:
        raise InvalidInput("encoding goes with value; leave it out where data is given")
    return bytes(given.data)  # type: ignore[arg-type]  # it is not UNSET


def _decoded(text: str, encoding: Encoding | None) -> str | bytes:
    if encoding is None:
        return text
    try:
        return from_text(text, encoding)
    except ValueError as error:
        raise InvalidInput(str(error)) from None


# What msgspec says where the value of a message is any other JSON than a text.
_NOT_TEXT: Final = re.compile(r"Expected `str`, got .*\.value`$")
# Of the object itself, or of one in a list: fields of an object inside have another path.
_UNKNOWN_FIELD: Final = re.compile(r"Object contains unknown field `[^`]*`(?: - at `\$\[\d+\]`)?")


def body_fault(error: Exception, kind: Any) -> str:
    """Return what is wrong with a body of a kind, and what helps.

    That is the field for a value that is no text, or the fields that there are.
    """
    if _NOT_TEXT.match(str(error)):
        return f"{error}; send it as `data`"
    if _UNKNOWN_FIELD.fullmatch(str(error)):
        return f"{error}; the fields are: {', '.join(_fields_of(type_info(kind)))}"
    return str(error)


def _fields_of(kind: Type) -> list[str]:
    """Return the fields of an object, of one of a list, or of those that a body may be."""
    match kind:
        case StructType():
            return [one.encode_name for one in kind.fields]
        case ListType():
            return _fields_of(kind.item_type)
        case UnionType():
            return [*dict.fromkeys(name for one in kind.types for name in _fields_of(one))]
    return []


_read_line: Final = msgspec.json.Decoder(NewMessage)


def entries_of_lines(body: bytes | bytearray) -> list[Any]:
    """Read a body of one JSON document a line; raises InvalidInput."""
    # The last line may end without a line end, so one more than these.
    lines = body.count(b"\n")
    if lines > MAX_BATCH_MESSAGES:
        raise InvalidInput(
            f"a batch may have {MAX_BATCH_MESSAGES} messages, and this body has {lines} lines; "
            "split it"
        )
    try:
        found = _read_line.decode_lines(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidInput(f"a line is not a message: {body_fault(error, NewMessage)}") from None
    return [message.entry() for message in found]


def table_of_arrow(body: bytes | bytearray) -> pa.RecordBatch | pa.Table:
    """Read a body that is an Arrow IPC stream; raises InvalidInput."""
    try:
        whole = pa.py_buffer(body)
        messages = _messages(body)
        metadata, _, _ = next(messages)
        if len(metadata) > _MAX_SCHEMA_BYTES:
            raise InvalidInput(
                f"the schema of an Arrow body may have {_MAX_SCHEMA_BYTES} bytes; leave out its "
                "metadata"
            )
        schema = _known_schema(metadata) if len(metadata) <= _SHORT_BYTES else _schema_of(metadata)
        batches = []
        rows = 0
        for metadata, start, size in messages:
            check_uncompressed(metadata)
            batch = pa.ipc.read_record_batch(whole.slice(start, size), schema)
            batch.validate(full=True)
            rows += batch.num_rows
            if rows > MAX_BATCH_MESSAGES:
                raise InvalidInput(
                    f"a batch may have {MAX_BATCH_MESSAGES} messages; send several of them"
                )
            batches.append(batch)
            if len(batches) > MAX_ARROW_BATCHES:
                raise InvalidInput(
                    f"an Arrow body may have {MAX_ARROW_BATCHES} record batches; combine them"
                )
        return batches[0] if len(batches) == 1 else pa.Table.from_batches(batches, schema)
    except InvalidInput:
        raise
    except (pa.ArrowException, ValueError, StopIteration, EOFError, OSError, struct.error) as error:
        raise InvalidInput(f"the body is not an Arrow IPC stream: {error}") from None


def _messages(body: bytes | bytearray) -> Iterator[tuple[bytes, int, int]]:
    """Yield the flatbuffer of each message of a stream, where the message begins, and its size.

    Arrow has a reader of messages, which takes as long as to read the batch itself. Only where
    messages begin and end is found here; what they say is still read and checked by Arrow.
    """
    at = 0
    while at < len(body):
        mark, length = _PREFIX.unpack_from(body, at)
        if mark != _CONTINUES:
            raise ValueError("a message does not begin as one does")
        if not length:
            if at + _PREFIX.size < len(body):
                raise ValueError("more bytes follow its end; send one Arrow IPC stream in a body")
            return
        begins = at + _PREFIX.size
        metadata = bytes(body[begins : begins + length])
        place = _field(metadata, struct.unpack_from("<I", metadata)[0], 3)
        follows = struct.unpack_from("<q", metadata, place)[0] if place is not None else 0
        size = _PREFIX.size + length + follows
        if follows < 0 or at + size > len(body):
            raise ValueError("it ends within a message")
        yield metadata, at, size
        at += size


def _schema_of(metadata: bytes) -> pa.Schema:
    prefix = _PREFIX.pack(_CONTINUES, len(metadata))
    schema = pa.ipc.read_schema(pa.py_buffer(prefix + metadata))
    _check_schema(schema)
    # Read as the columns of a node, those of its names and types are not converted later.
    same = schema.names == PLAIN.names and schema.types == PLAIN.types
    return PLAIN if same else schema


# Most clients send few schemas, again and again.
_known_schema: Final = lru_cache(maxsize=64)(_schema_of)


def _check_schema(schema: pa.Schema) -> None:
    for field in schema:
        if field.name not in _COLUMNS:
            raise InvalidInput(f"there is no column {field.name!r}; send {', '.join(_COLUMNS)}")
        if not _is_plain(field.type):
            raise InvalidInput(
                f"column {field.name!r} is {field.type}; send plain strings, binaries, numbers, "
                "timestamps, and maps of them"
            )


def _is_plain(kind: pa.DataType) -> bool:
    if pa.types.is_map(kind):
        return _is_plain(kind.key_type) and _is_plain(kind.item_type)
    tests = (
        pa.types.is_string,
        pa.types.is_large_string,
        pa.types.is_binary,
        pa.types.is_large_binary,
        pa.types.is_integer,
        pa.types.is_timestamp,
    )
    return any(test(kind) for test in tests)


def check_uncompressed(metadata: bytes) -> None:
    """Raise InvalidInput unless the flatbuffer of a message is of a batch without compression.

    Field 1 of the message is what it is of, field 2 that, and field 3 of a record batch says how
    its buffers are compressed.
    """
    (root,) = struct.unpack_from("<I", metadata, 0)
    kind = _field(metadata, root, 1)
    if kind is None or struct.unpack_from("<B", metadata, kind) != (_RECORD_BATCH,):
        raise InvalidInput("an Arrow body has record batches only, no dictionaries or tensors")
    header = _field(metadata, root, 2)
    if header is None:
        raise InvalidInput("the body is not an Arrow IPC stream: a message has no header")
    (relative,) = struct.unpack_from("<I", metadata, header)
    if _field(metadata, header + relative, 3) is not None:
        raise InvalidInput("an Arrow body is sent without compression")


def _field(buffer: bytes, table: int, number: int) -> int | None:
    """Return where a field of a table lies; None when it is not there."""
    (back,) = struct.unpack_from("<i", buffer, table)
    place = table - back
    if place < 0:
        raise struct.error("a table has no fields")
    (size,) = struct.unpack_from("<H", buffer, place)
    if 4 + 2 * number >= size:
        return None
    (offset,) = struct.unpack_from("<H", buffer, place + 4 + 2 * number)
    return table + offset if offset else None


async def arrow_pieces(
    batches: AsyncIterator[pa.RecordBatch], most: int, schema: pa.Schema = SCHEMA
) -> AsyncGenerator[bytes, None]:
    """Yield record batches as an Arrow IPC stream, of so many rows at most."""
    head = schema.serialize().to_pybytes()
    async for batch in batches:
        part = batch.slice(0, most) if batch.num_rows > most else batch
        most -= part.num_rows
        # The message of a batch is the same in a stream as alone.
        yield head + memoryview(part.serialize())
        head = b""
        if not most:
            break
    yield head + _END_OF_STREAM
