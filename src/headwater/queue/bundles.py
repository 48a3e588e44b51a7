"""Opening bundles: one to 64 messages of a queue in one string.

``lua/shared/15-bundles.lua`` says what the string looks like. Here are the kinds that are in
lists and are sent to consumers; every one begins with the number of its first message.
"""

from __future__ import annotations

import operator
import struct
from collections.abc import Iterable
from typing import NamedTuple
from zlib import crc32

import msgspec

MOST_MESSAGES = 64
_NUMBER = slice(16)
_LETTER = 16
_BODY = 17
_LIFE = slice(17, 30)
_COUNT = slice(17, 18)
# One message, one with an end of life, and several; then which of these have checksums.
_SINGLE, _MORTAL, _PACKED, _CHECKED = b"mtcf", b"tf", (b"p", b"j"), b"cfj"
# A checksum is at the end of a value. What the CRC-32 of a value is together with its checksum.
_CHECKSUM = struct.Struct("<I").pack
_CHECKSUM_START = -4
_without_checksum = operator.itemgetter(slice(_CHECKSUM_START))
_SOUND = 0x2144DF1C
# The same of a value that has headers: the checksum is reversed, and before it is their size.
_HEADED = 0xFFFFFFFF
_HEADERS_SIZE = struct.Struct("<H").pack
_HEADERS_END = -6
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
    """One stored message of a queue; one without an id could not be read, and is as found."""

    id: str
    value: bytes
    expires_ms: int | None = None
    headers: bytes = b""


class DamagedMessage(NamedTuple):
    """A message whose checksum is wrong, with what was found of its value."""

    id: str
    found: bytes


class TakenMessages(NamedTuple):
    """What a pop has delivered; ``headers`` of those that have some, by their places."""

    ids: list[str]
    values: list[bytes]
    headers: dict[int, bytes]
    damaged: list[DamagedMessage]


def with_checksums(values: Iterable[bytes]) -> list[bytes]:
    """Return values as they are stored in a queue: each with the CRC-32 of what is before it."""
    return [value + _CHECKSUM(crc32(value)) for value in values]


def with_headers(values: Iterable[bytes], headers: Iterable[bytes]) -> list[bytes]:
    """Return values as they are stored in a queue, with headers where there are any."""
    return [_with_headers(value, some) for value, some in zip(values, headers, strict=True)]


def _with_headers(value: bytes, headers: bytes) -> bytes:
    if not headers:
        return value + _CHECKSUM(crc32(value))
    content = value + headers + _HEADERS_SIZE(len(headers))
    return content + _CHECKSUM(crc32(content) ^ 0xFFFFFFFF)


def _without_headers(stored: bytes) -> tuple[bytes, bytes]:
    """Return the value and the headers of what has some."""
    size = int.from_bytes(stored[_HEADERS_END:_CHECKSUM_START], "little")
    end = len(stored) + _HEADERS_END
    return stored[: end - size], stored[end - size : end]


def count_messages(texts: Iterable[bytes]) -> int:
    """Return how many messages are in bundles, without opening them."""
    # A slice, because a stored text may be cut off anywhere.
    return sum(
        int.from_bytes(text[_COUNT]) if text[_LETTER:_BODY] in _PACKED else 1 for text in texts
    )


def open_taken(texts: Iterable[bytes]) -> TakenMessages:
    """Return the messages of bundles that a pop has delivered, and what is damaged.

    The server has checked them, but a single message only by its number: so nothing here may raise,
    whatever the content is.
    """
    ids: list[str] = []
    values: list[bytes] = []
    headers: dict[int, bytes] = {}
    damaged: list[DamagedMessage] = []
    for text in texts:
        letter = text[_LETTER]
        if letter in _SINGLE:
            value = text[_LIFE.stop if letter in _MORTAL else _BODY :]
            if letter in _CHECKED:
                crc = crc32(value)
                if crc == _SOUND:
                    value = value[:_CHECKSUM_START]
                elif crc == _HEADED:
                    value, headers[len(ids)] = _without_headers(value)
                else:
                    damaged.append(DamagedMessage(text[_NUMBER].decode("latin-1"), text))
                    continue
            ids.append(text[_NUMBER].decode("latin-1"))
            values.append(value)
        else:
            first = int(text[_NUMBER])
            found = _values(text)
            numbers = list(map(str, range(first, first + len(found))))
            if letter in _CHECKED:
                if set(map(crc32, found)) != {_SOUND}:
                    _open_mixed(numbers, found, ids, values, headers, damaged)
                    continue
                found = list(map(_without_checksum, found))
            ids += numbers
            values += found
    return TakenMessages(ids, values, headers, damaged)


def _open_mixed(
    numbers: list[str],
    found: list[bytes],
    ids: list[str],
    values: list[bytes],
    headers: dict[int, bytes],
    damaged: list[DamagedMessage],
) -> None:
    """Add messages, some of which have headers or are damaged, to those that were opened."""
    for number, stored in zip(numbers, found, strict=True):
        crc = crc32(stored)
        if crc not in (_SOUND, _HEADED):
            damaged.append(DamagedMessage(number, stored))
            continue
        value = stored[:_CHECKSUM_START]
        if crc == _HEADED:
            value, headers[len(ids)] = _without_headers(stored)
        ids.append(number)
        values.append(value)


def open_bundle(text: bytes) -> list[StoredMessage]:
    """Return the messages of a bundle; one without an id for what will be put aside."""
    number, letter, life = text[_NUMBER], text[_LETTER:_BODY], text[_LIFE]
    if not (number.isdigit() and len(number) == _LETTER):
        return [StoredMessage("", text)]
    checked = letter in _CHECKED and letter != b""
    if letter in (b"m", b"c"):
        return [_stored(number.decode(), text[_BODY:], None, checked)]
    if letter in (b"t", b"f") and life.isdigit() and len(life) == _LIFE.stop - _LIFE.start:
        return [_stored(number.decode(), text[_LIFE.stop :], int(life), checked)]
    if letter not in _PACKED or len(text) < _ARRAY:
        return [StoredMessage("", text)]
    count, life, size = _HEAD.unpack_from(text, _BODY)
    if not (1 <= count <= MOST_MESSAGES and life >= 0 and len(text) == _ARRAY + _ARRAY_HEAD + size):
        return [StoredMessage("", text)]
    first, expires = int(number), int(life) or None
    return [
        _stored(str(first + i), value, expires, checked) for i, value in enumerate(_values(text))
    ]


def _stored(number: str, value: bytes, expires_ms: int | None, checked: bool) -> StoredMessage:
    if not checked:
        return StoredMessage(number, value, expires_ms)
    crc = crc32(value)
    if crc == _HEADED:
        content, headers = _without_headers(value)
        return StoredMessage(number, content, expires_ms, headers)
    if crc != _SOUND:
        return StoredMessage("", value)
    return StoredMessage(number, value[:_CHECKSUM_START], expires_ms)


def _values(text: bytes) -> list[bytes]:
    """Return the values of messages that were pushed together."""
    try:
        return _VALUES.decode(text[_ARRAY:])
    except msgspec.DecodeError:
        # A damaged byte between values does not affect them, as long as their sizes are right.
        found, at = list[bytes](), _ARRAY + _ARRAY_HEAD
        for _ in range(text[_BODY]):
            at += _VALUE_HEAD
            size = int.from_bytes(text[at - _SIZE_BYTES : at])
            found.append(text[at : at + size])
            at += size
        return found


def part_joined(text: bytes) -> list[bytes]:
    """Return the bundles that were joined into one, without their deadlines.

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
