"""Headers as columns of Arrow: a map for users, one byte string per message in the store."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pyarrow as pa

from headwater.errors import InvalidInput
from headwater.headers import Headers, encode_fields

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
