"""Opening bundles: one to 64 messages of a queue in one string.

``lua/shared/15-bundles.lua`` says what the string looks like. Here are the three kinds that lie in
lists and are sent to consumers; every one begins with the number of its first message.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import NamedTuple

import msgspec

MOST_MESSAGES = 64
_NUMBER = slice(16)
_LETTER = 16
_BODY = 17
_LIFE = slice(17, 30)
_COUNT = slice(17, 18)
_ONE, _MORTAL = b"mt"
# Count, end of life, size of what is behind it; the values are an array of MessagePack.
_HEAD = struct.Struct(">BdI")
_ARRAY = _BODY + _HEAD.size
_ARRAY_HEAD = 3
_VALUE_HEAD = 5
_SIZE_BYTES = 4
_VALUES = msgspec.msgpack.Decoder(list[bytes])
# How texts of MessagePack begin: the sign, and how many bytes of size follow it; short ones have
# theirs in the sign. Then how many bytes follow the sign of an array or a number.
_SIZES = {0xD9: 1, 0xDA: 2, 0xDB: 4, 0xC4: 1, 0xC5: 2, 0xC6: 4}
_SHORT_TEXT = 0xA0
_WIDTHS = {0xDC: 2, 0xDD: 4, 0xCA: 4, 0xCB: 8, 0xCC: 1, 0xCD: 2, 0xCE: 4, 0xCF: 8} | {
    0xD0 + place: 2**place for place in range(4)
}


class StoredMessage(NamedTuple):
    """One message as it lies in a queue; without an id it cannot be read, and is as found."""

    id: str
    value: bytes
    expires_ms: int | None = None


def count_messages(texts: Iterable[bytes]) -> int:
    """Return how many messages are in bundles, without opening them."""
    # A slice, because what lies in a queue may be cut off anywhere.
    return sum(int.from_bytes(text[_COUNT]) if text[_LETTER:_BODY] == b"p" else 1 for text in texts)


def open_taken(texts: Iterable[bytes]) -> tuple[list[str], list[bytes]]:
    """Return the ids and values of bundles that a pop has handed out.

    The server has seen that they are sound, but of a single message only by a glance at its number:
    so nothing here may raise, whatever that is.
    """
    ids: list[str] = []
    values: list[bytes] = []
    for text in texts:
        letter = text[_LETTER]
        if letter == _ONE:
            ids.append(text[_NUMBER].decode("latin-1"))
            values.append(text[_BODY:])
        elif letter == _MORTAL:
            ids.append(text[_NUMBER].decode("latin-1"))
            values.append(text[_LIFE.stop :])
        else:
            first = int(text[_NUMBER])
            found = _values(text)
            ids += map(str, range(first, first + len(found)))
            values += found
    return ids, values


def open_bundle(text: bytes) -> list[StoredMessage]:
    """Return the messages of a bundle; one without an id for what the server will put aside."""
    number, letter, life = text[_NUMBER], text[_LETTER:_BODY], text[_LIFE]
    if not (number.isdigit() and len(number) == _LETTER):
        return [StoredMessage("", text)]
    if letter == b"m":
        return [StoredMessage(number.decode(), text[_BODY:])]
    if letter == b"t" and life.isdigit() and len(life) == _LIFE.stop - _LIFE.start:
        return [StoredMessage(number.decode(), text[_LIFE.stop :], int(life))]
    if letter != b"p" or len(text) < _ARRAY:
        return [StoredMessage("", text)]
    count, life, size = _HEAD.unpack_from(text, _BODY)
    if not (1 <= count <= MOST_MESSAGES and life >= 0 and len(text) == _ARRAY + _ARRAY_HEAD + size):
        return [StoredMessage("", text)]
    first, expires = int(number), int(life) or None
    return [StoredMessage(str(first + i), value, expires) for i, value in enumerate(_values(text))]


def _values(text: bytes) -> list[bytes]:
    """Return the values of messages that were pushed together."""
    try:
        return _VALUES.decode(text[_ARRAY:])
    except msgspec.DecodeError:
        # A damaged sign between the values harms none of them, as long as their sizes are right.
        found, at = list[bytes](), _ARRAY + _ARRAY_HEAD
        for _ in range(text[_BODY]):
            at += _VALUE_HEAD
            size = int.from_bytes(text[at - _SIZE_BYTES : at])
            found.append(text[at : at + size])
            at += size
        return found


def part_joined(text: bytes) -> list[bytes]:
    """Return the bundles of one that has a time, whose deadlines, if they vary, are left out.

    What cannot be read is left out, too; the server reads it in the same way.
    """
    if text[:1].isdigit():
        return [text]
    texts: list[bytes] = []
    at = 0
    while at < len(text):
        sign = text[at]
        if sign in _SIZES:
            width = _SIZES[sign]
            size = int.from_bytes(text[at + 1 : at + 1 + width])
            at += 1 + width
        elif _SHORT_TEXT <= sign < _SHORT_TEXT + 32:
            size, at = sign - _SHORT_TEXT, at + 1
        else:
            # An array, or a number: a deadline.
            at += 1 + _WIDTHS.get(sign, 0)
            continue
        texts.append(text[at : at + size])
        at += size
    return texts
