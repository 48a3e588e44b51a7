"""What lies in the list of a queue: entries, one message each, and runs, which hold many.

``lua/shared/15-packs.lua`` says how a run is laid out.
"""

from __future__ import annotations

import struct
from itertools import pairwise
from typing import NamedTuple

import msgspec

# Messages of a parcel, and so of a run.
MOST = 64
_RUN = ord("r")
_MORTAL = ord("t")
_HEAD = struct.Struct(">BHIdd")
_END_BYTES = 4
_ARRAY_BYTES = 3
_SIZE_BYTES = 5
_VALUES = msgspec.msgpack.Decoder(list[bytes])


class Message(NamedTuple):
    """One message as it lies in a queue; without an id it cannot be read, and is as found."""

    id: str
    value: bytes
    expires_ms: int | None = None


def open_run(run: bytes) -> tuple[int, int, list[bytes]]:
    """Give the number of the first message, the end of life of all or 0, and the values.

    Where the values end is told twice: one damaged of the two does no harm. Raises struct.error for
    what is no run at all.
    """
    _, count, base, first, life = _HEAD.unpack_from(run)
    body = _HEAD.size + _END_BYTES * count
    try:
        values = _VALUES.decode(run[body:])
    except msgspec.DecodeError:
        shift = body + _ARRAY_BYTES - base
        edges = [base, *struct.unpack_from(f">{count}I", run, _HEAD.size)]
        values = [run[a + shift + _SIZE_BYTES : b + shift] for a, b in pairwise(edges)]
    return int(first), int(life), values


def open_sound(elements: list[bytes]) -> tuple[list[str], list[bytes]]:
    """Give ids and values of what a pop has handed out, which is sound."""
    ids: list[str] = []
    values: list[bytes] = []
    for element in elements:
        if element[0] == _RUN:
            first, _, some = open_run(element)
            ids += map(str, range(first, first + len(some)))
            values += some
        else:
            ids.append(element[:16].decode())
            values.append(element[30 if element[16] == _MORTAL else 17 :])
    return ids, values


def open_element(element: bytes) -> list[Message]:
    """Give the messages in an element of a list; one without id for what the server puts aside."""
    if element[:1] != b"r":
        return [read_entry(element)]
    if not _is_sound(element):
        return [Message("", element)]
    first, life, values = open_run(element)
    return [Message(str(first + i), value, life or None) for i, value in enumerate(values)]


def _is_sound(run: bytes) -> bool:
    try:
        _, count, base, first, life = _HEAD.unpack_from(run)
        body = _HEAD.size + _END_BYTES * count
        (last,) = struct.unpack_from(">I", run, body - _END_BYTES)
    except struct.error:
        return False
    fits = len(run) == body + _ARRAY_BYTES + last - base
    return bool(fits and 1 <= count <= MOST and 1e15 <= first < 1e16 and life >= 0)


def read_entry(entry: bytes) -> Message:
    """Read a message that carries its own number."""
    number, mark, life = entry[:16], entry[16:17], entry[17:30]
    if number.isdigit() and mark == b"m":
        return Message(number.decode(), entry[17:])
    if number.isdigit() and mark == b"t" and life.isdigit():
        return Message(number.decode(), entry[30:], int(life))
    return Message("", entry)
