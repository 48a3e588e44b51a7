"""What goes over the wire of Roshi's server: JSON with keys and members in base64.

Tuples come as ``[{"key", "score", "member"}]``, keys to select as a JSON list or as parameters
``key`` of the query. Records go out by the raw key. JSON has text only, so a key that is not UTF-8
stands there as ``base64:`` and its base64; so does one that begins with ``base64:`` itself, and
hence no two keys fall together. Each record has its key in plain base64 all the same.
"""

from __future__ import annotations

import base64
import binascii
import http
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Final, NamedTuple, TypeAlias, cast
from urllib.parse import parse_qsl

import msgspec

from headwater.errors import InvalidInput
from headwater.inputs import check_int
from headwater.timeline.records import (
    MAX_SIZE,
    Cursor,
    Record,
    Tuple,
    check_score,
    encode,
)
from headwater.timeline.server.http import Reply

MOST_RECORDS: Final = 1_000_000
ENCODED: Final = "base64:"
_TRUE: Final = {"1", "t", "T", "true", "TRUE", "True"}
_FALSE: Final = {"0", "f", "F", "false", "FALSE", "False"}
_PARAMETERS: Final = ("offset", "limit", "start", "stop", "coalesce", "cursors")


class _Given(msgspec.Struct):
    key: bytes
    # Not converted here: a whole number that a double cannot hold is refused, not rounded.
    score: int | float
    member: bytes


class _Element(msgspec.Struct):
    key: bytes
    score: float
    member: bytes


class _Pointed(_Element):
    cursor: str


class _Selection(msgspec.Struct, omit_defaults=True):
    records: dict[str, list[_Element]] | list[_Element]
    duration: str
    partial: bool = False


_read_tuples = msgspec.json.Decoder(list[_Given]).decode
_read_keys = msgspec.json.Decoder(list[bytes]).decode
_write = msgspec.json.Encoder().encode


class Window(NamedTuple):
    """Which part of each key the farm is asked for; requests for the same one go together."""

    offset: int
    limit: int
    start: Cursor | None
    stop: Cursor | None


class Query(NamedTuple):
    """What the query of a select says; ``skip`` is how much of a coalesced list is passed over."""

    window: Window
    skip: int
    limit: int
    coalesce: bool
    cursors: bool
    keys: tuple[bytes, ...]


Found: TypeAlias = "Mapping[bytes, Sequence[Record]]"


def read_tuples(body: bytes) -> list[Tuple]:
    """Read the body of an insert or delete; raises InvalidInput."""
    try:
        given = _read_tuples(body)
    except msgspec.DecodeError as error:
        raise InvalidInput(
            f'{error}; send [{{"key": base64, "score": number, "member": base64}}, ...]'
        ) from None
    return [
        (encode(item.key, "key"), check_score(item.score), encode(item.member, "member"))
        for item in given
    ]


def read_keys(body: bytes, query: Query) -> list[bytes]:
    """Read which keys are asked for, by the body or by the query; raises InvalidInput."""
    if query.keys and body.strip():
        raise InvalidInput("name keys in the body or in the query, not in both")
    if query.keys:
        keys = list(query.keys)
    else:
        try:
            keys = _read_keys(body)
        except msgspec.DecodeError as error:
            raise InvalidInput(
                f"{error}; send a JSON list of keys in base64, or name them as ?key=...&key=..."
            ) from None
    for key in keys:
        encode(key, "key")
    if len(keys) * query.window.limit > MOST_RECORDS:
        raise InvalidInput(
            f"{len(keys)} keys with up to {query.window.limit} records each are more than "
            f"{MOST_RECORDS}; ask for fewer at once"
        )
    return keys


@lru_cache(maxsize=1024)
def read_query(text: str) -> Query:
    """Read the query of a select; raises InvalidInput."""
    given: dict[str, str] = {}
    keys: list[bytes] = []
    try:
        pairs = parse_qsl(text, keep_blank_values=True, errors="strict")
    except ValueError:
        raise InvalidInput("the query is not UTF-8") from None
    for name, value in pairs:
        if name == "key":
            keys.append(_key(value))
        elif name not in _PARAMETERS:
            raise InvalidInput(
                f"{name!r} is not a parameter; there are key, {', '.join(_PARAMETERS)}"
            )
        elif given.setdefault(name, value) != value:
            raise InvalidInput(f"{name!r} is given twice; give it once")
    offset, limit = _number(given, "offset", 0, 0), _number(given, "limit", 10, 1)
    coalesce, cursors = _bool(given, "coalesce"), _bool(given, "cursors")
    start, stop = (Cursor.parse(given[n]) if given.get(n) else None for n in ("start", "stop"))
    if given.get("offset") and (start or stop):
        raise InvalidInput("offset goes with neither start nor stop; give one or the others")
    # Of a merged list, any key may hold all that is passed over.
    window = (
        Window(0, offset + limit, start, stop) if coalesce else Window(offset, limit, start, stop)
    )
    check_int(window.limit, "offset and limit together", 1, MAX_SIZE)
    return Query(window, offset, limit, coalesce, cursors, tuple(keys))


def _key(text: str) -> bytes:
    """Read base64 of a query: of either alphabet, padded or not, and with + read as a space."""
    padded = text.replace(" ", "+").replace("-", "+").replace("_", "/")
    try:
        return base64.b64decode(padded + "=" * (-len(padded) % 4), validate=True)
    except (binascii.Error, ValueError):
        raise InvalidInput(f"the key {text!r} of the query is not base64") from None


def _number(given: dict[str, str], name: str, default: int, least: int) -> int:
    text = given.get(name)
    if not text:
        return default
    if not (text.isascii() and text.isdecimal() and len(text) < 16):
        raise InvalidInput(f"{name} must be a whole number from {least} on, not {text!r}")
    return check_int(int(text), name, least, MAX_SIZE)


def _bool(given: dict[str, str], name: str) -> bool:
    text = given.get(name)
    if text and text not in _TRUE | _FALSE:
        raise InvalidInput(f"{name} must be true or false, not {text!r}")
    return text in _TRUE


def written(verb: str, count: int, seconds: float) -> Reply:
    """Spell the answer to an insert or delete."""
    return Reply(200, _write({verb: count, "duration": duration(seconds)}))


def selected(query: Query, found: Found, seconds: float, *, partial: bool) -> Reply:
    """Spell the answer to a select: records by raw key, or one list of all when coalesced."""
    shape = _pointed if query.cursors else _plain
    if query.coalesce:
        merged = [record for records in found.values() for record in records]
        merged.sort(key=lambda record: (record.score, record.member, record.key), reverse=True)
        flat = shape(merged[query.skip : query.skip + query.limit])
        return Reply(200, _write(_Selection(flat, duration(seconds), partial)))
    by_key = {raw_key(key): shape(records) for key, records in found.items()}
    return Reply(200, _write(_Selection(by_key, duration(seconds), partial)))


def _plain(records: Iterable[Record]) -> list[_Element]:
    return [_Element(*record) for record in _as_bytes(records)]


def _pointed(records: Iterable[Record]) -> list[_Element]:
    return [_Pointed(*r, str(Cursor(r[1], r[2]))) for r in _as_bytes(records)]


def _as_bytes(records: Iterable[Record]) -> Iterable[tuple[bytes, float, bytes]]:
    """Say that who asks by bytes gets bytes."""
    return cast("Iterable[tuple[bytes, float, bytes]]", records)


def raw_key(key: bytes) -> str:
    """Spell a key as the name in a JSON object."""
    try:
        text = key.decode()
    except UnicodeDecodeError:
        return ENCODED + base64.b64encode(key).decode()
    return ENCODED + base64.b64encode(key).decode() if text.startswith(ENCODED) else text


def failed(status: int, message: str, headers: str = "") -> Reply:
    """Spell an error."""
    body = {"error": message, "code": status, "description": http.HTTPStatus(status).phrase}
    return Reply(status, _write(body), headers=headers)


def document(status: int, content: object) -> Reply:
    """Spell any other answer."""
    return Reply(status, _write(content))


def duration(seconds: float) -> str:
    """Spell a span of time as Go does: 12.5µs, 3.25ms, 1.5s."""
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if seconds >= size:
            return f"{seconds / size:.6g}{unit}"
    return f"{round(seconds * 1e9)}ns"
