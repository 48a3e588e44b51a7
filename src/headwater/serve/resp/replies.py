"""Replies as bytes, in RESP2 and RESP3.

A reply is made of Python's own values: int, str and bytes (a bulk string), None, bool, float, list
and tuple (an array), dict (a map); and of those below. RESP2 has no maps, numbers with fractions,
booleans and sets: there a map is an array of names and values, a boolean 1 or 0, a fraction text.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple


class StatusReply(NamedTuple):
    """A short text that says how something went, such as OK."""

    text: str


class ErrorReply(NamedTuple):
    """An error: a code in capitals, and what is wrong with its cure."""

    code: str
    text: str


class EncodedReply(NamedTuple):
    """A reply that is spelled already, the same in both protocols."""

    data: bytes


class Verbatim(NamedTuple):
    """A text of several lines; RESP3 marks it as text."""

    text: str


OK: Final = StatusReply("OK")
_NULLS: Final = {2: b"$-1\r\n", 3: b"_\r\n"}
_SIMPLE_INTS: Final = tuple(b":%d\r\n" % number for number in range(1024))
_NO_LINES: Final = str.maketrans("\r\n", "  ")


def encode_reply(reply: Any, protocol: int) -> bytes:
    """Spell a reply."""
    if reply is OK:
        return b"+OK\r\n"
    parts: list[bytes] = []
    _spell(parts, reply, protocol)
    return b"".join(parts)


def encode_int(number: int) -> bytes:
    """Spell a whole number."""
    return b":%d\r\n" % number


def _spell(parts: list[bytes], reply: Any, protocol: int) -> None:
    match reply:
        case EncodedReply():
            parts.append(reply.data)
        case Verbatim():
            text = reply.text.encode()
            parts.append(
                b"=%d\r\ntxt:%b\r\n" % (len(text) + 4, text)
                if protocol == 3
                else b"$%d\r\n%b\r\n" % (len(text), text)
            )
        case StatusReply():
            parts.append(b"+%b\r\n" % _line(reply.text))
        case ErrorReply():
            parts.append(b"-%b %b\r\n" % (_line(reply.code), _line(reply.text)))
        case None:
            parts.append(_NULLS[protocol])
        case bool():
            parts.append(
                (b"#t\r\n" if reply else b"#f\r\n") if protocol == 3 else b":%d\r\n" % reply
            )
        case int():
            parts.append(_SIMPLE_INTS[reply] if 0 <= reply < 1024 else b":%d\r\n" % reply)
        case bytes():
            parts.append(b"$%d\r\n%b\r\n" % (len(reply), reply))
        case str():
            text = reply.encode("utf-8", "surrogateescape")
            parts.append(b"$%d\r\n%b\r\n" % (len(text), text))
        case float():
            _spell_float(parts, reply, protocol)
        case dict():
            size = len(reply) if protocol == 3 else 2 * len(reply)
            parts.append((b"%%%d\r\n" if protocol == 3 else b"*%d\r\n") % size)
            for name, value in reply.items():
                _spell(parts, name, protocol)
                _spell(parts, value, protocol)
        case frozenset():
            parts.append((b"~%d\r\n" if protocol == 3 else b"*%d\r\n") % len(reply))
            for value in sorted(reply):
                _spell(parts, value, protocol)
        case list() | tuple():
            parts.append(b"*%d\r\n" % len(reply))
            for value in reply:
                _spell(parts, value, protocol)
        case _:
            raise TypeError(f"{type(reply).__name__} cannot be spelled in RESP")


def _spell_float(parts: list[bytes], number: float, protocol: int) -> None:
    text = spell_number(number)
    if protocol == 3:
        parts.append(b",%b\r\n" % text)
    else:
        parts.append(b"$%d\r\n%b\r\n" % (len(text), text))


def spell_number(number: float) -> bytes:
    """Spell a number so that not a digit is lost; a whole one without a fraction, as Redis does."""
    if number.is_integer() and abs(number) < 1e17:
        return b"%d" % int(number)
    return repr(number).encode()


def _line(text: str) -> bytes:
    return text.translate(_NO_LINES).encode("utf-8", "surrogateescape")
