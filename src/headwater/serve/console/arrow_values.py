"""Values that are Arrow IPC: what is in them, as text.

A producer may have written anything. So a value is opened only when it is short, its batches are
checked in full before a row of them is looked at, and whatever is wrong with it makes it hex.
"""

from __future__ import annotations

import struct
from typing import Final

import pyarrow as pa

from headwater.errors import InvalidInput
from headwater.serve.api.formats import check_uncompressed

_MOST_BYTES: Final = 1024 * 1024
_ROWS: Final = 20
_FILE: Final = b"ARROW1\x00\x00"
_STREAM: Final = b"\xff\xff\xff\xff"
_MOST_TEXT: Final = 16_384
_FAULTS: Final = (
    pa.ArrowException,
    InvalidInput,
    ValueError,
    OSError,
    EOFError,
    StopIteration,
    TypeError,
    OverflowError,
    struct.error,
)


def arrow_text(value: bytes) -> str | None:
    """Return the columns and first rows of a value that is an Arrow file or stream, else None."""
    if not value.startswith((_FILE, _STREAM)) or len(value) > _MOST_BYTES:
        return None
    try:
        # A file is a stream with a magic word before it, and an index behind it.
        table = _table(value.removeprefix(_FILE))
        rows = table.slice(0, _ROWS).to_pylist()
    except _FAULTS:
        return None
    columns = ", ".join(f"{field.name} {field.type}" for field in table.schema)
    shown = "\n".join(str(row)[:500] for row in rows)
    more = f"\n… {table.num_rows - _ROWS:,} more rows" if table.num_rows > _ROWS else ""
    return f"{table.num_rows:,} rows: {columns}\n{shown}{more}"[:_MOST_TEXT]


def _table(value: bytes) -> pa.Table:
    reader = pa.ipc.MessageReader.open_stream(pa.py_buffer(value))
    schema = pa.ipc.read_schema(reader.read_next_message())
    batches = []
    for message in reader:
        # Neither what is packed, which may become any size, nor dictionaries.
        if message.type != "record batch":
            raise ValueError
        check_uncompressed(message.metadata.to_pybytes())
        batch = pa.ipc.read_record_batch(message, schema)
        batch.validate(full=True)
        batches.append(batch)
    return pa.Table.from_batches(batches, schema)
