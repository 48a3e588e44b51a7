"""What the functions of a queue reply, and bundles: one to 64 messages in one string.

The reply of ``hw_queue_stats`` is name, value, name, value, ...: a new number needs a line in Lua
and a field of ``QueueStats``.
"""

from __future__ import annotations

import operator
import struct
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple, TypeAlias
from zlib import crc32

import msgspec

from headwater.kernel.inputs import Limits
from headwater.queue.types import QueueSettings

# ── Bundles ───────────────────────────────────────────────────────────────────────────────────────
# Opening bundles: one to 64 messages of a queue in one string.
#
# ``lua/shared/15-bundles.lua`` says what the string looks like. Here are the kinds that are in
# lists and are sent to consumers; every one begins with the number of its first message.


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


# ── Replies ───────────────────────────────────────────────────────────────────────────────────────


Reply: TypeAlias = Sequence[Any]


class PushReply(NamedTuple):
    """hw_queue_push. ``new``: the queue begins. Numbers are the first and the last, or of each."""

    new: int
    numbers: list[bytes]

    @classmethod
    def of(cls, reply: Reply) -> PushReply:
        """Read the reply."""
        new, *numbers = reply
        return cls(new, numbers)


class TakenBundle(NamedTuple):
    """A bundle that was delivered; without ack it has no name."""

    name: bytes
    attempt: int
    texts: list[bytes]


class PopReply(NamedTuple):
    """hw_queue_pop. ``more``: there may be more, for which this call had no time."""

    more: int
    due_ms: int
    damaged: int
    bundles: list[TakenBundle]

    @classmethod
    def of(cls, reply: Reply) -> PopReply:
        """Read the reply."""
        return cls(
            reply[0],
            reply[1],
            reply[2],
            [TakenBundle._make(reply[i : i + 3]) for i in range(3, len(reply), 3)],
        )


class TimedBundle(NamedTuple):
    """A bundle that has a time, as it is stored there.

    ``rest_ms`` is its delay after its deadline, -1 when it is given up then. ``deadlines`` has one
    for each text, if they vary.
    """

    name: bytes
    time_ms: bytes
    rest_ms: int
    texts: list[bytes]
    deadlines: list[int]


class PageReply(NamedTuple):
    """hw_queue_page. ``after`` is where the next page begins, empty behind the last one."""

    now_ms: int
    after: bytes
    found: Reply

    @classmethod
    def of(cls, reply: Reply) -> PageReply:
        """Read the reply."""
        now_ms, after, *found = reply
        return cls(now_ms, after, found)

    def bundles(self) -> Iterator[TimedBundle]:
        """Return what was found in a part whose bundles have a time."""
        for start in range(0, len(self.found), 5):
            yield TimedBundle._make(self.found[start : start + 5])


class DueReply(NamedTuple):
    """hw_queue_due. Of ``due`` messages some are ``given_up``, and others ``resting``."""

    due: int
    given_up: int
    resting: int
    rank: int


class SettleReply(NamedTuple):
    """hw_queue_settle. ``bundles`` were looked at; the others have to be named again."""

    messages: int
    bundles: int


class LettersReply(NamedTuple):
    """hw_queue_redrive and hw_queue_discard. ``more``: another call has more to do.

    ``bundles`` of those named were looked at. The next call skips ``over`` bundles, whose letters
    are newer than the end.
    """

    messages: int
    more: int
    bundles: int
    over: int


class PurgeReply(NamedTuple):
    """hw_queue_purge. The dedupe keys of ``generation`` count no more and can be freed."""

    messages: int
    existed: int
    generation: bytes


class KeepReply(NamedTuple):
    """hw_queue_keep. ``more``: another call has more to do."""

    returned: int
    buried: int
    outlived: int
    producers: int
    more: int


def stats_of(reply: Reply) -> dict[str, Any]:
    """Read the reply of hw_queue_stats: facts about the queue, by name."""
    found = {name.decode(): value for name, value in zip(reply[::2], reply[1::2], strict=True)}
    due = found["due"]
    return {
        **found,
        "paused": bool(found["paused"]),
        "exists": bool(found["exists"]),
        "priorities": tuple(int(word) for word in found["priorities"].split(b",") if word),
        "settings": settings_of(found["settings"]),
        "waits": tuple(found["waits"][:-1]),
        "waited_ms": found["waits"][-1],
        "limits": Limits.of_stored(found["limits"]),
        "due": [(int(due[i]), due[i + 1].decode()) for i in range(0, len(due), 2)],
    }


def settings_of(text: bytes) -> QueueSettings:
    """Read the settings of a queue; an empty text stands for the defaults."""
    if not text:
        return QueueSettings()
    most, backoff, first, longest = text.decode().split(":")
    return QueueSettings(int(most) or None, backoff, int(first), int(longest))  # type: ignore[arg-type]
