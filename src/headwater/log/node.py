"""Nodes and runs: the bytes in which the log stores and sends messages, as Arrow, and back.

A node is sixteen bytes of header, then an Arrow record batch as an encapsulated IPC message,
compressed when that pays:

    'H' 'W'  version (1)  columns (1)  rows (4)  bytes of the message before compression (4)
    CRC-32 (4) of the twelve bytes before it and of all that follows it

Numbers are little endian. ``columns`` tells the schema, which is not repeated in every node: tag
(string) and value (binary) always; bit 0: time (int64, ms); bit 1: offset (int64), which is there
when offsets are missing in between; bit 2: the message is one zstd frame, which is small; bit 3: it
is one lz4 block, which is fast; bit 4: headers (binary, see kernel/headers.py; empty for a message
without any), behind the others, only if a message of the node has some. A node of an unknown
version is refused, never guessed at, and so is one whose bytes have changed: Arrow trusts what it
is given to read.
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise, repeat
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol, TypeVar
from zlib import crc32

import pyarrow as pa

from headwater.errors import InvalidInput, UnreadableNode
from headwater.kernel import arrow_compute as pc
from headwater.kernel.headers import MAX_HEADERS_BYTES, MAX_RESERVED_BYTES, Headers, encode_fields
from headwater.log.keys import (
    MAX_BATCH_BYTES,
    MAX_BATCH_MESSAGES,
    MAX_OFFSET,
    MAX_TAG_BYTES,
    MAX_VALUE_BYTES,
    NODE_BYTES,
    NODE_MESSAGES,
)
from headwater.log.replies import GroupReadReply, ReadReply, SentNode
from headwater.log.types import HeadedMessage, Message

# Checks that text in the Arrow data of a caller is UTF-8, which nothing else checks.
#
# Arrow accepts any bytes as a string, and a cast in Spark makes such strings. A message with such
# a tag could be stored, but not read.


def check_text(array: pa.Array, what: str) -> None:
    """Refuse text that is not UTF-8; takes 5 ns for a short one. Raises InvalidInput."""
    try:
        array.validate(full=True)
    except pa.ArrowInvalid:
        raise InvalidInput(
            f"{what} is not UTF-8; make text of its bytes, for example by hex or base64"
        ) from None


# As Spark has them, and Kafka's source.
STRUCTS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
MAP = pa.field("headers", pa.map_(pa.string(), pa.binary()), nullable=False)


def encoded_column(given: pa.Array) -> pa.Array | None:
    """Return headers as they are stored; None when no message has any. Raises InvalidInput.

    Takes maps, and lists of structs with two fields. Reserved names of Headwater are kept.
    """
    try:
        listed = given.to_pylist()
    except UnicodeDecodeError:
        raise InvalidInput(
            "the name of a header is not UTF-8; make text of its bytes, for example by hex"
        ) from None
    rows = [_encoded(row) for row in listed]
    return pa.array(rows, pa.binary()) if any(rows) else None


def _encoded(row: Any) -> bytes:
    if not row:
        return b""
    try:
        pairs = [(one["key"], one["value"]) if isinstance(one, dict) else one for one in row]
        fields = dict(pairs)
    except (TypeError, ValueError, KeyError):
        raise InvalidInput(
            "the column headers must be map<string, binary>, or a list of structs of key and value"
        ) from None
    if len(fields) != len(pairs):
        raise InvalidInput("a message has two headers of one name; give each name once")
    return encode_fields(fields)


def with_maps(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return a batch whose stored headers, the last column, are maps."""
    stored = batch.column("headers").to_pylist()
    maps = map_column(stored) if any(stored) else empty_column(len(stored))
    return batch.set_column(batch.num_columns - 1, MAP, maps)


def map_column(stored: Iterable[bytes]) -> pa.Array:
    """Return the column of maps for headers as they are stored."""
    rows = [list(Headers.stored(one).items()) if one else [] for one in stored]
    return pa.array(rows, MAP.type)


def empty_column(rows: int) -> pa.Array:
    """Return the column of maps for messages without headers."""
    offsets = pa.repeat(pa.scalar(0, pa.int32()), rows + 1)
    return pa.MapArray.from_arrays(offsets, pa.array([], pa.string()), pa.array([], pa.binary()))


VERSION = 1
DAMAGED = "it is damaged (its checksum is wrong)"
HAS_TIME = 1
HAS_OFFSET = 2
ZSTD = 4
LZ4 = 8
HAS_HEADERS = 16
# Which columns, and which compression, a node may have.
_KNOWN = HAS_TIME | HAS_OFFSET | ZSTD | LZ4 | HAS_HEADERS
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
    return _HEADER.pack(b"HW", VERSION, 0, rows, 0, 0)


def belongs(blob: bytes, base: int, last: int, time: int, version: int) -> bool:
    """Return whether a node is the one in the index, whose version is its checksum."""
    return version == checksum(crc_of(blob), last, time, last - base + 1)


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
    if "headers" in names:
        if longest(batch.column("headers")):
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
    facts = (b"HW", VERSION, columns, batch.num_rows, size)
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
    if version != VERSION:
        raise UnreadableNode(f"it has format version {version}, this client reads up to {VERSION}")
    if checksum != crc32(memoryview(blob)[_HEADER.size :], crc32(blob[:_CHECKED])):
        raise UnreadableNode(DAMAGED)
    if columns & ~_KNOWN:
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


# The nodes and tail entries of a reply, in order of offset, from which messages are made.
#
# A run is what is together: a packed batch, or plain entries side by side. Python objects or Arrow
# columns are only made of the rows that were asked for.


Look = TypeVar("Look")

SCHEMA = pa.schema(
    [
        pa.field("offset", pa.int64(), nullable=False),
        pa.field("tag", pa.string(), nullable=False),
        pa.field("value", pa.binary(), nullable=False),
        pa.field("time", pa.timestamp("ms", "UTC"), nullable=False),
    ]
)
# The same with headers, as they are stored.
SCHEMA_WITH_HEADERS = SCHEMA.append(HEADERS)
_NONE_HEADED: Mapping[int, bytes] = MappingProxyType({})


class Run(Protocol):
    """Messages that are together at the offsets base..last."""

    @property
    def base(self) -> int:
        """The first offset."""

    @property
    def last(self) -> int:
        """The last offset."""

    @property
    def headed(self) -> bool:
        """Whether a message may have headers."""

    def cut(self, first: int, last: int) -> Run:
        """Return the part that is in first..last."""

    def hole_to(self, offset: int) -> int:
        """Return the last of the empty offsets that follow ``offset``, or ``offset`` itself."""

    def messages(self, attempt: int = 0) -> list[Message]:
        """Return all rows as Python messages."""

    def to_arrow(self, *, headers: bool = False) -> pa.RecordBatch:
        """Return all rows as a record batch of SCHEMA, or of SCHEMA_WITH_HEADERS when asked."""


class PackedRun(NamedTuple):
    """A packed batch; ``time`` is that of every message when the batch has no times."""

    base: int
    last: int
    time: int
    batch: pa.RecordBatch

    @property
    def sparse(self) -> bool:
        """Whether offsets are missing in it."""
        return "offset" in self.batch.schema.names

    @property
    def headed(self) -> bool:
        """See Run."""
        return "headers" in self.batch.schema.names

    def cut(self, first: int, last: int) -> PackedRun:
        """See Run."""
        if first <= self.base and self.last <= last:
            return self
        first, last = max(first, self.base), min(last, self.last)
        if self.sparse:
            offsets = self.batch.column("offset")
            keep = pc.and_(pc.greater_equal(offsets, first), pc.less_equal(offsets, last))
            return PackedRun(first, last, self.time, self.batch.filter(keep))
        part = self.batch.slice(first - self.base, last - first + 1)
        return PackedRun(first, last, self.time, part)

    def hole_to(self, offset: int) -> int:
        """See Run."""
        if not self.sparse:
            return offset
        offsets = self.batch.column("offset").to_pylist()
        place = bisect_right(offsets, offset)
        return offsets[place] - 1 if place < len(offsets) else self.last

    def messages(self, attempt: int = 0) -> list[Message]:
        """See Run."""
        batch = self.batch
        names = batch.schema.names
        offsets = (
            batch.column("offset").to_pylist() if self.sparse else range(self.base, self.last + 1)
        )
        times = batch.column("time").to_pylist() if "time" in names else repeat(self.time)
        tags, values = batch.column(0).to_pylist(), batch.column(1).to_pylist()
        if self.headed:
            headers = batch.column("headers").to_pylist()
            return list(map(message_of, offsets, tags, values, times, repeat(attempt), headers))
        attempts = (repeat(attempt),) if attempt else ()
        made: Callable[..., Message] = Message
        return list(map(made, offsets, tags, values, times, *attempts))

    def to_arrow(self, *, headers: bool = False) -> pa.RecordBatch:
        """See Run; tags and values are not copied."""
        batch = self.batch
        offsets = batch.column("offset") if self.sparse else pa.arange(self.base, self.last + 1)
        kind = SCHEMA.field("time").type
        if "time" in batch.schema.names:
            times = batch.column("time").view(kind)
        else:
            times = pa.repeat(pa.scalar(self.time, kind), batch.num_rows)
        columns = [offsets, *batch.columns[:2], times]
        if not headers:
            return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)
        columns.append(
            batch.column("headers")
            if self.headed
            else pa.repeat(pa.scalar(b"", pa.binary()), batch.num_rows)
        )
        return pa.RecordBatch.from_arrays(columns, schema=SCHEMA_WITH_HEADERS)


class PlainRun(NamedTuple):
    """Messages that were written one by one; ``headers`` of those that have some, by offset."""

    base: int
    last: int
    rows: list[tuple[int, str, bytes, int]]
    headers: Mapping[int, bytes] = _NONE_HEADED

    @property
    def headed(self) -> bool:
        """See Run."""
        return bool(self.headers)

    def cut(self, first: int, last: int) -> PlainRun:
        """See Run."""
        first, last = max(first, self.base), min(last, self.last)
        rows = self.rows[first - self.base : last - self.base + 1]
        return PlainRun(first, last, rows, self.headers)

    def hole_to(self, offset: int) -> int:
        """See Run; plain messages have no holes."""
        return offset

    def messages(self, attempt: int = 0) -> list[Message]:
        """See Run."""
        if self.headers:
            return [message_of(*row, attempt, self.headers.get(row[0], b"")) for row in self.rows]
        return [Message(*row, attempt) for row in self.rows]

    def to_arrow(self, *, headers: bool = False) -> pa.RecordBatch:
        """See Run."""
        columns = list(zip(*self.rows, strict=True))
        schema = SCHEMA
        if headers:
            columns.append(tuple(self.headers.get(row[0], b"") for row in self.rows))
            schema = SCHEMA_WITH_HEADERS
        return pa.RecordBatch.from_arrays(
            [pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)],
            schema=schema,
        )


def message_of(
    offset: int, tag: str, value: bytes, time: int, attempt: int, headers: bytes
) -> Message:
    """Return a message; ``headers`` are as they are stored, empty for none."""
    if not headers:
        return Message(offset, tag, value, time, attempt)
    return HeadedMessage(offset, tag, value, time, attempt, Headers.stored(headers))


class Held(NamedTuple):
    """The cached node, the one that was read last: reading it in parts fetches and opens it once.

    ``last`` is its last offset, after which the next node begins.
    """

    created: bytes
    base: int
    last: int
    version: int
    batch: pa.RecordBatch | None

    @property
    def name(self) -> str:
        """How the server knows it."""
        return f"{self.created.decode()}:{self.base}:{self.version}" if self.created else ""


NOTHING_HELD = Held(b"", -1, -1, 0, None)


def open_runs(reply: ReadReply | GroupReadReply, held: Held, stream: str) -> tuple[list[Run], Held]:
    """Open what a read brought; returns the runs in order of offset, and the node to cache.

    A tail entry may be sealed in part: only what is above ``sealed`` counts of it. Raises
    UnreadableNode when something is damaged; ``stream`` is the name for it.
    """
    runs: list[Run] = []
    had, created = held, reply.created
    for sent in SentNode.all_of(reply.nodes):
        base, last, time, version, blob = sent
        if blob is not None:
            held = Held(created, base, last, version, open_node(sent, stream))
        elif had[:4] == (created, base, last, version):
            held = had
        else:
            raise UnreadableNode("its bytes are missing", stream, base)
        runs.append(PackedRun(base, last, time, held.batch))
    runs.sort(key=lambda run: run.base)
    above = reply.sealed + 1
    runs += [run.cut(above, run.last) for run in open_entries(reply.entries, stream)]
    return runs, held


def missing(runs: Iterable[Run | SentNode], first: int, last: int) -> list[tuple[int, int]]:
    """Return the ranges of first..last that none of the runs, which ascend, holds: they are lost.

    Nodes and entries follow each other without a gap: one that compaction emptied keeps its place.
    """
    found: list[tuple[int, int]] = []
    at = first
    for run in runs:
        if at > last:
            break
        if run.base > at:
            found.append((at, min(run.base - 1, last)))
        at = max(at, run.last + 1)
    if at <= last:
        found.append((at, last))
    return found


def open_node(sent: SentNode, stream: str) -> pa.RecordBatch:
    """Open a node that the index lists; raises UnreadableNode when the two do not agree."""
    # A node from which compaction removed everything has no bytes.
    return _looked_at(sent, stream, unpack) if sent.blob else EMPTY


def check_node(sent: SentNode, stream: str) -> None:
    """Do as open_node does, without opening it."""
    _looked_at(sent, stream, check)


def _looked_at(sent: SentNode, stream: str, look: Callable[[bytes], Look]) -> Look:
    base, last, time, version, blob = sent
    try:
        seen = look(blob or b"")
    except UnreadableNode as error:
        raise UnreadableNode(error.why, stream, base) from None
    if not belongs(blob or b"", base, last, time, version):
        raise UnreadableNode("it is damaged (it is not what the index lists)", stream, base)
    return seen


def is_partial(fields: list[bytes]) -> bool:
    """Return whether an entry of the tail is incomplete without the next one."""
    return fields[-2] == b"m"


def is_elsewhere(fields: list[bytes]) -> bool:
    """Return whether an entry of the tail stands for a node that is in its place already."""
    return fields[0] == b"n" and fields[4:5] != [b"d"]


def open_entries(entries: Iterable[Any], stream: str = "") -> list[Run]:
    """Open tail entries; plain ones that are side by side become one run.

    Raises UnreadableNode for one that is damaged. A writer need not give a checksum.
    """
    runs: list[Run] = []
    rows: list[tuple[int, str, bytes, int]] = []
    headed: dict[int, bytes] = {}
    offset = 0
    try:
        for entry_id, fields in entries:
            offset = int(entry_id[2:])
            if fields[0] == b"k":
                if rows and offset != rows[-1][0] + 1:
                    runs.append(PlainRun(rows[0][0], rows[-1][0], rows, headed))
                    rows = []
                tag, value = fields[1], fields[3]
                time_digits, _, check = fields[5].partition(b"-")
                time = int(time_digits)
                # The same as node.checksum, without a call for each message.
                crc = crc32(value, crc32(tag, len(tag)))
                if check and (crc + time + 3 * offset + 5 - int(check)) % CHECK_PRIME:
                    raise UnreadableNode(DAMAGED)
                rows.append((offset, tag.decode(), value, time))
            elif fields[0] == b"h":
                if rows and offset != rows[-1][0] + 1:
                    runs.append(PlainRun(rows[0][0], rows[-1][0], rows, headed))
                    rows = []
                rows.append(_open_headed(offset, fields))
                headed[offset] = fields[1]
            else:
                if rows:
                    runs.append(PlainRun(rows[0][0], rows[-1][0], rows, headed))
                    rows = []
                runs.append(_open_packed(offset, fields))
    except UnreadableNode as error:
        raise UnreadableNode(error.why, stream, offset) from None
    except (ValueError, IndexError):
        raise UnreadableNode(DAMAGED, stream, offset) from None
    if rows:
        runs.append(PlainRun(rows[0][0], rows[-1][0], rows, headed))
    return runs


def _open_headed(offset: int, fields: list[bytes]) -> tuple[int, str, bytes, int]:
    headers, tag, value, checked = fields[1], fields[3], fields[5], fields[7]
    time_digits, _, check = checked.partition(b"-")
    time = int(time_digits)
    crc = message_crc(tag, value, headers)
    if int(check) != checksum(crc, offset, time):
        raise UnreadableNode(DAMAGED)
    return offset, tag.decode(), value, time


def _open_packed(offset: int, fields: list[bytes]) -> PackedRun:
    kind, digits, _, checked, _, blob = fields[:6]
    count = int(digits)
    time_digits, _, check = checked.partition(b"-")
    time = int(time_digits)
    batch = unpack(blob)
    crc = crc_of(blob)
    if kind != b"n" or batch.num_rows != count:
        raise UnreadableNode(DAMAGED)
    if check and int(check) != checksum(crc, offset, time, count):
        raise UnreadableNode(DAMAGED)
    return PackedRun(offset - count + 1, offset, time, batch)
