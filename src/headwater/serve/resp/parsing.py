"""Commands out of bytes: arrays of bulk strings, or inline commands; nothing is read or written.

However the bytes are cut, the same commands come out. A length is compared with the limits as soon
as it is known, so that what is held never exceeds what was allowed. The texts of faults are those
of Redis; behind a fault nothing more is parsed.

Plain Python: it parses 0.6 million commands a second, and a command costs ten times as much
elsewhere. hiredis would take any length and any depth, and no inline command.
"""

from __future__ import annotations

from typing import Final

from headwater.serve.limits import FrameLimits

# A length as it is spelled most often. Everything else takes a slower way, and signs, spaces,
# underscores and leading zeros, which int() would accept, none.
_LENGTHS: Final = {b"%d" % number: number for number in range(2048)}
# What each argument costs beside its bytes.
_BESIDES: Final = 64
_LONGEST_LENGTH: Final = 20
_STAR, _DOLLAR, _QUOTE, _APOSTROPHE, _BACKSLASH = b"*$\"'\\"
_ESCAPES: Final = {ord("n"): 10, ord("r"): 13, ord("t"): 9, ord("b"): 8, ord("a"): 7}
# Words of HTTP: their sender is a browser that was directed here, not a Redis client.
_HTTP_WORDS: Final = (b"post", b"host:")


class ProtocolFault(Exception):
    """What arrived is no command; the text is what the client is told."""


class CommandParser:
    """Parses what one client sends."""

    __slots__ = (
        "_arguments",
        "_at",
        "_bulk",
        "_data",
        "_frame",
        "_left",
        "_more",
        "_more_bytes",
        "_need",
        "fault",
        "limits",
    )

    def __init__(self, limits: FrameLimits) -> None:
        self.limits = limits
        self.fault: str | None = None
        self._data = b""
        self._at = 0
        # What arrived since, and is joined once there is enough of it to continue.
        self._more: list[bytes] = []
        self._more_bytes = 0
        self._need = 1
        # The command in progress: its arguments, how many are missing, the length of the next, and
        # what all of them cost.
        self._arguments: list[bytes] = []
        self._left = 0
        self._bulk = -1
        self._frame = 0

    def feed(self, data: bytes) -> None:
        """Take what arrived."""
        if self._at == len(self._data) and not self._more:
            self._data, self._at = data, 0
        else:
            self._more.append(data)
            self._more_bytes += len(data)

    @property
    def held_bytes(self) -> int:
        """How many bytes are kept here, at most."""
        return len(self._data) + self._more_bytes + self._frame

    @property
    def begun(self) -> bool:
        """Whether a part of a command has arrived, and not the whole."""
        return bool(self._left or self._more or self._at < len(self._data))

    def drop(self) -> None:
        """Forget everything that was not parsed."""
        self._data, self._at = b"", 0
        self._more, self._more_bytes = [], 0
        self._arguments, self._left, self._frame = [], 0, 0

    def next(self) -> list[bytes] | None:
        """Return the next command, or None when it has not arrived, or will not: see ``fault``."""
        while self.fault is None:
            try:
                command = self._scan()
            except ProtocolFault as fault:
                self.fault = str(fault)
                self.drop()
                return None
            if command is not None:
                if self._at == len(self._data):
                    self._data, self._at = b"", 0
                return command
            held = len(self._data) - self._at + self._more_bytes
            if not self._more or held < self._need:
                return None
            self._data = self._data[self._at :] + b"".join(self._more)
            self._at = 0
            self._more, self._more_bytes = [], 0
        return None

    def _scan(self) -> list[bytes] | None:
        """Go on in what is joined; returns a command once it is whole."""
        data, at, end = self._data, self._at, len(self._data)
        find = data.find
        while not self._left:
            self._at, self._need = at, end - at + 1
            if at == end:
                return None
            if data[at] != _STAR:
                command = self._scan_inline(at)
                if command is None or command:
                    return command
                at = self._at
                continue
            stop = find(b"\r\n", at, at + _LONGEST_LENGTH + 3)
            if stop < 0:
                if end - at > _LONGEST_LENGTH + 2:
                    raise ProtocolFault("Protocol error: too big mbulk count string")
                return None
            self._left = self._count(data[at + 1 : stop])
            at = stop + 2
        arguments, left, bulk = self._arguments, self._left, self._bulk
        lengths, frame = _LENGTHS, self._frame
        longest, most = self.limits.max_argument, self.limits.max_frame
        while left:
            if bulk < 0:
                stop = find(b"\r\n", at, at + _LONGEST_LENGTH + 3)
                if stop < 0:
                    if at < end and data[at] != _DOLLAR:
                        raise _not_a_bulk(data[at])
                    if end - at > _LONGEST_LENGTH + 2:
                        raise ProtocolFault("Protocol error: too big bulk count string")
                    self._at, self._left, self._bulk, self._frame = at, left, -1, frame
                    self._need = end - at + 1
                    return None
                if data[at] != _DOLLAR:
                    raise _not_a_bulk(data[at])
                bulk = lengths.get(data[at + 1 : stop], -1)
                if bulk < 0:
                    bulk = _length(data[at + 1 : stop])
                frame += bulk + _BESIDES
                if bulk > longest or frame > most:
                    raise ProtocolFault(
                        "Protocol error: unauthenticated bulk length"
                        if self.limits.anonymous
                        else "Protocol error: invalid bulk length"
                    )
                at = stop + 2
            stop = at + bulk
            if stop + 2 > end:
                self._at, self._left, self._bulk, self._frame = at, left, bulk, frame
                self._need = bulk + 2
                return None
            if data[stop : stop + 2] != b"\r\n":
                raise ProtocolFault("Protocol error: expected CRLF after a bulk string")
            arguments.append(data[at:stop])
            at = stop + 2
            bulk = -1
            left -= 1
        self._at, self._left, self._bulk = at, 0, -1
        self._arguments, self._frame = [], 0
        return arguments

    def _count(self, spelled: bytes) -> int:
        """Return how many arguments a command has; one without any is passed over."""
        count = _LENGTHS.get(spelled)
        if count is None:
            count = _number(spelled)
        if count is None:
            raise ProtocolFault("Protocol error: invalid multibulk length")
        if count > self.limits.max_arguments:
            if self.limits.anonymous:
                raise ProtocolFault("Protocol error: unauthenticated multibulk length")
            raise ProtocolFault("Protocol error: invalid multibulk length")
        return max(count, 0)

    def _scan_inline(self, at: int) -> list[bytes] | None:
        """Parse an inline command; returns [] for an empty line."""
        data = self._data
        stop = data.find(b"\n", at, at + self.limits.max_inline + 1)
        if stop < 0:
            if len(data) - at > self.limits.max_inline:
                raise ProtocolFault("Protocol error: too big inline request")
            return None
        self._at = stop + 1
        line = data[at : stop - 1 if data[stop - 1 : stop] == b"\r" and stop > at else stop]
        words = split_words(line)
        if words is None:
            raise ProtocolFault("Protocol error: unbalanced quotes in request")
        if len(words) > self.limits.max_arguments:
            raise ProtocolFault("Protocol error: too big inline request")
        if words and words[0].lower() in _HTTP_WORDS:
            raise ProtocolFault("Protocol error: this is not an HTTP server")
        return words


def _not_a_bulk(sign: int) -> ProtocolFault:
    shown = chr(sign) if 32 <= sign < 127 else "?"
    return ProtocolFault(f"Protocol error: expected '$', got '{shown}'")


def _length(spelled: bytes) -> int:
    length = _number(spelled)
    if length is None or length < 0:
        raise ProtocolFault("Protocol error: invalid bulk length")
    return length


def _number(spelled: bytes) -> int | None:
    """Return a whole number as Redis reads it, or None."""
    digits = spelled[1:] if spelled[:1] == b"-" else spelled
    if not digits.isdigit() or (digits[:1] == b"0" and spelled != b"0"):
        return None
    return int(spelled)


def split_words(line: bytes) -> list[bytes] | None:
    """Split an inline command into words, with quotes as in redis-cli; None if one is not closed.

    Double quotes know the escapes n, r, t, b, a and xHH, and a backslash before any other
    character; single quotes know an escaped single quote alone. Behind a closing quote there is
    white space, or the end.
    """
    if b'"' not in line and b"'" not in line:
        return line.split()
    words: list[bytes] = []
    at, end = 0, len(line)
    while True:
        while at < end and line[at : at + 1].isspace():
            at += 1
        if at == end:
            return words
        word = bytearray()
        while at < end and not line[at : at + 1].isspace():
            sign = line[at]
            at += 1
            if sign not in (_QUOTE, _APOSTROPHE):
                word.append(sign)
                continue
            at = _quoted(line, at, sign, word)
            if at < 0 or (at < end and not line[at : at + 1].isspace()):
                return None
        words.append(bytes(word))


def _quoted(line: bytes, at: int, quote: int, word: bytearray) -> int:
    """Add what stands before the closing quote to a word; returns where to continue, or -1."""
    end = len(line)
    while at < end:
        sign = line[at]
        at += 1
        if sign == quote:
            return at
        if sign == _BACKSLASH and at < end:
            escaped = line[at]
            if quote == _APOSTROPHE:
                if escaped == _APOSTROPHE:
                    sign, at = escaped, at + 1
            elif escaped == ord("x") and _is_hex(line[at + 1 : at + 3]):
                sign, at = int(line[at + 1 : at + 3], 16), at + 3
            else:
                sign, at = _ESCAPES.get(escaped, escaped), at + 1
        word.append(sign)
    return -1


def _is_hex(digits: bytes) -> bool:
    return len(digits) == 2 and all(digit in b"0123456789abcdefABCDEF" for digit in digits)
