"""Nodes: the bytes in which the log stores and sends batches of messages, as Arrow.

A node is sixteen bytes of header, then an Arrow record batch as an encapsulated IPC message,
compressed when that pays:

    'H' 'W'  version (1)  columns (1)  rows (4)  bytes of the message before compression (4)
    CRC-32 (4) of the twelve bytes before it and of all that follows it

Numbers are little endian. ``columns`` tells the schema, which is not repeated in every node: tag
(string) and value (binary) always; bit 0: time (int64, ms); bit 1: offset (int64), which is there
when offsets are missing in between; bit 2: the message is one zstd frame, which is small; bit 3: it
is one lz4 block, which is fast; bit 4: headers (binary, see headwater.headers; empty for a message
without any), behind the others. A node in which some message has headers is of version 2, every
other one of version 1, so that those who know no headers can read it. A node of an unknown version
is refused, never guessed at, and so is one whose bytes have changed: Arrow trusts what it is given
to read.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any, NamedTuple
from zlib import crc32

import pyarrow as pa

from headwater.errors import InvalidInput, UnreadableNode
from headwater.headers import MAX_HEADERS_BYTES, MAX_RESERVED_BYTES
from headwater.log import arrow_compute as pc
from headwater.log.arrow_text import check_text
from headwater.log.header_columns import encoded_column
from headwater.log.limits import (
    MAX_BATCH_BYTES,
    MAX_BATCH_MESSAGES,
    MAX_OFFSET,
    MAX_TAG_BYTES,
    MAX_VALUE_BYTES,
    NODE_BYTES,
    NODE_MESSAGES,
)

VERSION = 2
_WITHOUT_HEADERS = 1
DAMAGED = "it is damaged (its checksum is wrong)"
HAS_TIME = 1
HAS_OFFSET = 2
ZSTD = 4
LZ4 = 8
HAS_HEADERS = 16
# Which columns, and which compression, a node of each version may have.
_KNOWN = {_WITHOUT_HEADERS: HAS_HEADERS - 1, VERSION: 2 * HAS_HEADERS - 1}
_HEADER = struct.Struct("<2sBBIII")
HEADER_BYTES, FLAGS_AT = _HEADER.size, 3
_CHECKED = 12

TAG = pa.field("tag", pa.string(), nullable=False)
VALUE = pa.field("value", pa.binary(), nullable=False)
TIME = pa.field("time", pa.int64(), nullable=False)
OFFSET = pa.field("offset", pa.int64(), nullable=False)
HEADERS = pa.field("headers", pa.binary(), nullable=False)
_SCHEMAS = {
    0: pa.schema([TAG, VALUE]),
    HAS_TIME: pa.schema([TAG, VALUE, TIME]),
    HAS_OFFSET: pa.schema([TAG, VALUE, OFFSET]),
    HAS_TIME | HAS_OFFSET: pa.schema([TAG, VALUE, TIME, OFFSET]),
}
_SCHEMAS |= {flag | HAS_HEADERS: schema.append(HEADERS) for flag, schema in _SCHEMAS.items()}
PLAIN = _SCHEMAS[0]
EMPTY = pa.RecordBatch.from_pylist([], _SCHEMAS[HAS_TIME | HAS_OFFSET])
_FAST = pa.Codec("lz4_raw")
_MIDDLING = pa.Codec("zstd", 2)
_SMALL = pa.Codec("zstd", 6)
# Below this many bytes of messages, compression costs more time than it saves.
_COMPRESS_FROM = 1024

# What the server adds to a CRC is taken modulo this prime; see lua/shared/05-checks.lua.
CHECK_PRIME = 4294967291
# Versions of nodes from here on are this number plus a checksum; smaller ones are of older writers.
_CHECKED_VERSION = 1 << 32


def message_crc(tag: bytes, value: bytes, headers: bytes = b"") -> int:
    """Return the CRC-32 of a message: lengths of tag and headers, tag, headers, value."""
    return crc32(value, crc32(headers, crc32(tag, len(tag) + (len(headers) << 16))))


def checksum(crc: int, offset: int, time: int, count: int = 1) -> int:
    """Return the stored checksum: of the content, and of its place, time and count."""
    return (crc + time + 3 * offset + 5 * count) % CHECK_PRIME


def crc_of(blob: bytes) -> int:
    """Return the CRC in the header of a node; 0 for an empty one."""
    return int.from_bytes(blob[_CHECKED : _HEADER.size], "little")


def header_of(rows: int) -> bytes:
    """Return the header of a node of which only the number of rows is needed."""
    return _HEADER.pack(b"HW", _WITHOUT_HEADERS, 0, rows, 0, 0)


def belongs(blob: bytes, base: int, last: int, time: int, version: int) -> bool:
    """Return whether a node is the one in the index; older versions cannot be checked."""
    if version < _CHECKED_VERSION:
        return True
    return version - _CHECKED_VERSION == checksum(crc_of(blob), last, time, last - base + 1)


class PackedNode(NamedTuple):
    """A batch ready to be sent: its rows, the span of its own times if it has any, its bytes."""

    rows: int
    first_time: int | None
    newest_time: int | None
    raw_bytes: int
    blob: bytes


def batch_of(
    tags: Sequence[str],
    values: Sequence[bytes | str],
    times: Sequence[int] | None = None,
    offsets: Sequence[int] | None = None,
    headers: Sequence[bytes] | None = None,
) -> pa.RecordBatch:
    """Return the record batch of a node, made of columns; headers as they are stored."""
    try:
        columns = [pa.array(tags, pa.string()), pa.array(values, pa.binary())]
    except (pa.ArrowException, UnicodeError, TypeError, OverflowError) as error:
        raise InvalidInput(
            f"an entry is not a pair of a str tag and a bytes value ({error}); "
            'encode the value, or open the stream with codec="json"'
        ) from None
    columns_flag = 0
    if times is not None:
        columns.append(pa.array(times, pa.int64()))
        columns_flag |= HAS_TIME
    if offsets is not None:
        columns.append(pa.array(offsets, pa.int64()))
        columns_flag |= HAS_OFFSET
    if headers is not None and any(headers):
        columns.append(pa.array(headers, pa.binary()))
        columns_flag |= HAS_HEADERS
    return pa.RecordBatch.from_arrays(columns, schema=_SCHEMAS[columns_flag])


def longest(array: pa.Array) -> int:
    """Return the length of the longest value."""
    length: int | None = pc.max(pc.binary_length(array)).as_py()
    return length or 0


def check_batch(batch: pa.RecordBatch) -> None:
    """Refuse a batch outside the limits; this reads the lengths and the tags, not the values."""
    if batch.num_rows > MAX_BATCH_MESSAGES:
        raise InvalidInput(
            f"a batch may have {MAX_BATCH_MESSAGES} messages, not {batch.num_rows}; split it"
        )
    size = batch.nbytes
    if size > MAX_BATCH_BYTES:
        raise InvalidInput(f"a batch may have {MAX_BATCH_BYTES} bytes, not {size}; split it")
    limits = [("tag", MAX_TAG_BYTES), ("value", MAX_VALUE_BYTES)]
    if "headers" in batch.schema.names:
        limits.append(("headers", MAX_HEADERS_BYTES + MAX_RESERVED_BYTES))
    for column, most in limits:
        array = batch.column(column)
        if array.null_count:
            raise InvalidInput(f"a {column} is None; every message needs one (it may be empty)")
        if size > most and _may_exceed(array, most) and (length := longest(array)) > most:
            raise InvalidInput(f"a {column} may have {most} bytes, not {length}; make it smaller")
    check_text(batch.column("tag"), "a tag")


def _may_exceed(array: pa.Array, most: int) -> bool:
    """Return False when no value is longer than that, judged by a few of the lengths.

    No value is longer than its block of neighbours. Computing all lengths takes as long as
    compressing the batch.
    """
    rows = len(array)
    if not rows:
        return False
    places = memoryview(array.buffers()[1]).cast("i")[array.offset : array.offset + rows + 1]
    size = places[rows] - places[0]
    if size <= most:
        return False
    borders = [*places[:: max(rows * most // (2 * size), 1)], places[rows]]
    return any(end - start > most for start, end in pairwise(borders))


def of_rows(rows: pa.RecordBatch, *, offsets: bool = False) -> pa.RecordBatch:
    """Return rows of a scan, with headers as they are stored if any, in the shape of a node."""
    columns = [rows.column("tag"), rows.column("value"), rows.column("time").view(pa.int64())]
    flag = HAS_TIME
    if offsets:
        columns.append(rows.column("offset"))
        flag |= HAS_OFFSET
    if "headers" in rows.schema.names:
        columns.append(rows.column("headers"))
        flag |= HAS_HEADERS
    return pa.RecordBatch.from_arrays(columns, schema=_SCHEMAS[flag])


def from_arrow(batch: pa.RecordBatch | pa.Table) -> pa.RecordBatch:
    """Return a caller's Arrow data in the shape of a node: tag, value, and time and headers if any.

    Headers are a map of string to binary, or as Spark has them: an array of structs, key and value.
    """
    if isinstance(batch, pa.Table):
        batch = batch.combine_chunks().to_batches() or [
            pa.RecordBatch.from_pylist([], batch.schema)
        ]
        batch = batch[0] if len(batch) == 1 else pa.Table.from_batches(batch).to_batches()[0]
    if not isinstance(batch, pa.RecordBatch):
        raise InvalidInput(
            f"append takes a pyarrow.RecordBatch or Table, not {type(batch).__name__}"
        )
    schema = batch.schema
    if schema == PLAIN:
        return batch
    if schema.names == PLAIN.names and schema.types == PLAIN.types:
        # The usual case: the types are those of a node, and there is nothing to convert.
        return pa.RecordBatch.from_arrays(batch.columns, schema=PLAIN)
    names = set(schema.names)
    known = {"tag", "value"} <= names <= {"tag", "value", "time", "headers"}
    if not known or len(names) < len(schema.names):
        wanted = "the columns tag, value and, if wished, time and headers, each once"
        raise InvalidInput(f"append takes {wanted}, not {schema.names}")
    try:
        columns = [batch.column("tag").cast(pa.string()), batch.column("value").cast(pa.binary())]
        flag = 0
        if "time" in names:
            times = batch.column("time")
            if pa.types.is_timestamp(times.type):
                times = times.cast(pa.timestamp("ms", times.type.tz), safe=False)
            times = times.cast(pa.int64())
            if times.null_count or (batch.num_rows and not pc.min(times).as_py() >= 0):
                raise InvalidInput("a time is missing or before 1970; give every message a time")
            if batch.num_rows and pc.max(times).as_py() > MAX_OFFSET:
                raise InvalidInput("a time is too large; times are milliseconds since 1970")
            columns.append(times)
            flag = HAS_TIME
        if "headers" in names and (kept := encoded_column(batch.column("headers"))) is not None:
            columns.append(kept)
            flag |= HAS_HEADERS
    except pa.ArrowException as error:
        raise InvalidInput(
            f"append takes tag: string, value: binary, time: timestamp or int64 ({error})"
        ) from None
    return pa.RecordBatch.from_arrays(columns, schema=_SCHEMAS[flag])


def pack(batch: pa.RecordBatch, *, hot: bool = False, sealed: bool = False) -> PackedNode:
    """Return a batch as a node: ``hot`` is packed fast, ``sealed`` as small as can be."""
    names = batch.schema.names
    columns = (HAS_TIME if "time" in names else 0) | (HAS_OFFSET if "offset" in names else 0)
    version = _WITHOUT_HEADERS
    if "headers" in names:
        if longest(batch.column("headers")):
            version = VERSION
            columns |= HAS_HEADERS
        else:
            batch = batch.drop_columns("headers")
    first = newest = None
    if columns & HAS_TIME and batch.num_rows:
        times = batch.column("time")
        first, newest = times[0].as_py(), pc.max(times).as_py()
    message = batch.serialize()
    size = message.size
    if size >= _COMPRESS_FROM:
        columns |= LZ4 if hot else ZSTD
        message = (_FAST if hot else _SMALL if sealed else _MIDDLING).compress(message)
    body = message.to_pybytes()
    facts = (b"HW", version, columns, batch.num_rows, size)
    checksum = crc32(body, crc32(_HEADER.pack(*facts, 0)[:_CHECKED]))
    return PackedNode(batch.num_rows, first, newest, size, _HEADER.pack(*facts, checksum) + body)


def check(blob: bytes) -> tuple[int, int, int]:
    """Check that bytes are an undamaged node of a known version.

    Returns its columns, its rows and the size of its message. Raises UnreadableNode.
    """
    if len(blob) < _HEADER.size:
        raise UnreadableNode(f"it has only {len(blob)} bytes")
    magic, version, columns, rows, size, checksum = _HEADER.unpack_from(blob)
    if magic != b"HW":
        raise UnreadableNode("it does not begin as a node does")
    if version not in _KNOWN:
        raise UnreadableNode(f"it has format version {version}, this client reads up to {VERSION}")
    if checksum != crc32(memoryview(blob)[_HEADER.size :], crc32(blob[:_CHECKED])):
        raise UnreadableNode(DAMAGED)
    if columns & ~_KNOWN[version]:
        raise UnreadableNode(f"it has columns that this client does not know ({columns})")
    return columns, rows, size


def unpack(blob: bytes) -> pa.RecordBatch:
    """Return the batch of a node; raises UnreadableNode when the bytes are not a known node."""
    columns, rows, size = check(blob)
    message = pa.py_buffer(memoryview(blob)[_HEADER.size :])
    try:
        if columns & LZ4:
            message = _FAST.decompress(message, size)
        elif columns & ZSTD:
            message = _SMALL.decompress(message, size)
        batch = pa.ipc.read_record_batch(message, _SCHEMAS[columns & ~(ZSTD | LZ4)])
    except (pa.ArrowException, OSError) as error:
        raise UnreadableNode(f"it is damaged ({error})") from None
    if batch.num_rows != rows:
        raise UnreadableNode(f"it has {batch.num_rows} rows where its header says {rows}")
    return batch


def split(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Yield parts of a batch of the size of a node, by rows and by bytes.

    A rest of less than half a node shares with the part before it, so that both can stay nodes.
    """
    rows, size = batch.num_rows, batch.nbytes
    if rows <= NODE_MESSAGES and size <= NODE_BYTES:
        yield batch
        return
    start = 0
    while start < rows:
        left = rows - start
        short = NODE_MESSAGES < left < NODE_MESSAGES + NODE_MESSAGES // 2
        part = batch.slice(start, (left + 1) // 2 if short else NODE_MESSAGES)
        start += part.num_rows
        if part.nbytes <= NODE_BYTES:
            yield part
        else:
            yield from _split_by_bytes(part)


def _split_by_bytes(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    lengths: list[Any] = pc.binary_length(batch.column("value")).to_pylist()
    if "headers" in batch.schema.names:
        more = pc.binary_length(batch.column("headers")).to_pylist()
        lengths = [one + other for one, other in zip(lengths, more, strict=True)]
    start, size = 0, 0
    for row, length in enumerate(lengths):
        if row > start and size + length > NODE_BYTES:
            yield batch.slice(start, row - start)
            start, size = row, 0
        size += length
    yield batch.slice(start)
