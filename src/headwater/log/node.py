"""Nodes: batches of messages as Arrow, the bytes in which the log keeps and moves them.

A node is eight bytes of header, then an Arrow IPC stream with one record batch:

    'H' 'W'  version  columns  number of rows (uint32, little endian)

``columns`` has bit 0 set when the batch carries a ``time`` column (int64, ms), and bit 1 when it
carries an ``offset`` column (int64), which it does when offsets are missing in it. Any Arrow
library reads a node from its ninth byte on. Version 1 is the only one so far; a node of an unknown
version is refused, never guessed at.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from headwater.errors import InvalidInput, UnreadableNode
from headwater.log.limits import (
    MAX_BATCH_BYTES,
    MAX_BATCH_MESSAGES,
    MAX_OFFSET,
    MAX_TAG_BYTES,
    MAX_VALUE_BYTES,
    NODE_BYTES,
    NODE_MESSAGES,
)

VERSION = 1
HAS_TIME = 1
HAS_OFFSET = 2
_HEADER = struct.Struct("<2sBBI")

TAG = pa.field("tag", pa.string(), nullable=False)
VALUE = pa.field("value", pa.binary(), nullable=False)
TIME = pa.field("time", pa.int64(), nullable=False)
OFFSET = pa.field("offset", pa.int64(), nullable=False)
_SCHEMAS = {
    0: pa.schema([TAG, VALUE]),
    HAS_TIME: pa.schema([TAG, VALUE, TIME]),
    HAS_OFFSET: pa.schema([TAG, VALUE, OFFSET]),
    HAS_TIME | HAS_OFFSET: pa.schema([TAG, VALUE, TIME, OFFSET]),
}
_COMPRESSED = pa.ipc.IpcWriteOptions(compression=pa.Codec("zstd", 1), use_threads=False)
_SEALED = pa.ipc.IpcWriteOptions(compression=pa.Codec("zstd", 3), use_threads=False)
_RAW = pa.ipc.IpcWriteOptions(compression=None)
_READ = pa.ipc.IpcReadOptions(use_threads=False)
# Below this many bytes of messages, compression costs more time than it saves.
_COMPRESS_FROM = 1024


class Packed(NamedTuple):
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
) -> pa.RecordBatch:
    """Build the record batch of a node from columns."""
    try:
        columns = [pa.array(tags, pa.string()), pa.array(values, pa.binary())]
    except (pa.ArrowException, UnicodeError, TypeError, OverflowError) as error:
        raise InvalidInput(
            f"an entry is not a pair of a str tag and a bytes value ({error}); "
            "encode the value, for example with json.dumps(value).encode()"
        ) from None
    columns_flag = 0
    if times is not None:
        columns.append(pa.array(times, pa.int64()))
        columns_flag |= HAS_TIME
    if offsets is not None:
        columns.append(pa.array(offsets, pa.int64()))
        columns_flag |= HAS_OFFSET
    return pa.RecordBatch.from_arrays(columns, schema=_SCHEMAS[columns_flag])


def check_batch(batch: pa.RecordBatch) -> None:
    """Refuse a batch outside the limits; costs a pass over the lengths, not over the bytes."""
    if batch.num_rows > MAX_BATCH_MESSAGES:
        raise InvalidInput(
            f"a batch may have {MAX_BATCH_MESSAGES} messages, not {batch.num_rows}; split it"
        )
    size = batch.nbytes
    if size > MAX_BATCH_BYTES:
        raise InvalidInput(f"a batch may have {MAX_BATCH_BYTES} bytes, not {size}; split it")
    for column, most in (("tag", MAX_TAG_BYTES), ("value", MAX_VALUE_BYTES)):
        array = batch.column(column)
        if array.null_count:
            raise InvalidInput(f"a {column} is None; every message needs one (it may be empty)")
        longest = pc.max(pc.binary_length(array)).as_py() or 0
        if longest > most:
            raise InvalidInput(f"a {column} may have {most} bytes, not {longest}; make it smaller")


def from_arrow(batch: pa.RecordBatch | pa.Table) -> pa.RecordBatch:
    """Bring a caller's Arrow data into the shape of a node: tag, value and, if present, time."""
    if isinstance(batch, pa.Table):
        batch = batch.combine_chunks().to_batches() or [
            pa.RecordBatch.from_pylist([], batch.schema)
        ]
        batch = batch[0] if len(batch) == 1 else pa.Table.from_batches(batch).to_batches()[0]
    if not isinstance(batch, pa.RecordBatch):
        raise InvalidInput(
            f"append takes a pyarrow.RecordBatch or Table, not {type(batch).__name__}"
        )
    names = set(batch.schema.names)
    if not {"tag", "value"} <= names or names - {"tag", "value", "time"}:
        raise InvalidInput(
            f"append takes the columns tag, value and, if wished, time, not {batch.schema.names}"
        )
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
    except pa.ArrowException as error:
        raise InvalidInput(
            f"append takes tag: string, value: binary, time: timestamp or int64 ({error})"
        ) from None
    return pa.RecordBatch.from_arrays(columns, schema=_SCHEMAS[flag])


def pack(batch: pa.RecordBatch, *, sealed: bool = False) -> Packed:
    """Write one batch as a node; ``sealed`` spends more on compression, for what stays."""
    raw = batch.nbytes
    options = _RAW if raw < _COMPRESS_FROM else _SEALED if sealed else _COMPRESSED
    flag = (HAS_TIME if "time" in batch.schema.names else 0) | (
        HAS_OFFSET if "offset" in batch.schema.names else 0
    )
    sink = pa.BufferOutputStream()
    sink.write(_HEADER.pack(b"HW", VERSION, flag, batch.num_rows))
    with pa.ipc.new_stream(sink, batch.schema, options=options) as writer:
        writer.write_batch(batch)
    first = newest = None
    if flag & HAS_TIME and batch.num_rows:
        times = batch.column("time")
        first, newest = times[0].as_py(), pc.max(times).as_py()
    return Packed(batch.num_rows, first, newest, raw, sink.getvalue().to_pybytes())


def unpack(blob: bytes) -> pa.RecordBatch:
    """Read a node; raises UnreadableNode when the bytes are not one of a known version."""
    if len(blob) < _HEADER.size:
        raise UnreadableNode(f"it has only {len(blob)} bytes")
    magic, version, _, rows = _HEADER.unpack_from(blob)
    if magic != b"HW":
        raise UnreadableNode("it does not begin as a node does")
    if version != VERSION:
        raise UnreadableNode(f"it has format version {version}, this client reads {VERSION}")
    try:
        reader = pa.ipc.open_stream(pa.py_buffer(blob).slice(_HEADER.size), options=_READ)
        batch = reader.read_next_batch()
    except (pa.ArrowException, StopIteration, OSError) as error:
        raise UnreadableNode(f"it is damaged ({error})") from None
    if batch.num_rows != rows:
        raise UnreadableNode(f"it has {batch.num_rows} rows where its header says {rows}")
    return batch


def split(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Cut a batch into parts of the size of a node, by rows and by bytes."""
    rows, size = batch.num_rows, batch.nbytes
    if rows <= NODE_MESSAGES and size <= NODE_BYTES:
        yield batch
        return
    step = NODE_MESSAGES
    for start in range(0, rows, step):
        part = batch.slice(start, step)
        if part.nbytes <= NODE_BYTES:
            yield part
        else:
            yield from _split_by_bytes(part)


def _split_by_bytes(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    lengths: list[Any] = pc.binary_length(batch.column("value")).to_pylist()
    start, size = 0, 0
    for row, length in enumerate(lengths):
        if row > start and size + length > NODE_BYTES:
            yield batch.slice(start, row - start)
            start, size = row, 0
        size += length
    yield batch.slice(start)
