"""What goes over the wire of Roshi's server: JSON with keys and members in base64.

Tuples come as ``[{"key", "score", "member"}]``, keys to select as a JSON list or as parameters
``key`` of the query. Records go out by the raw key. JSON has text only, so a key that is not UTF-8
stands there as ``base64:`` and its base64; so does one that begins with ``base64:`` itself, and
hence no two keys become the same name. Each record also has its key in plain base64.
"""

from __future__ import annotations

import base64
import binascii
import http
from collections.abc import Sequence
from functools import lru_cache
from itertools import repeat
from typing import Any, Final, NamedTuple
from urllib.parse import parse_qsl

import msgspec

from headwater.errors import InvalidInput
from headwater.kernel.inputs import check_int
from headwater.serve.http.messages import Refused, Reply
from headwater.serve.http.parsing import check_nesting
from headwater.timeline.cluster import Window
from headwater.timeline.farm.reading import Answer
from headwater.timeline.records import (
    MAX_EXACT,
    MAX_KEY_BYTES,
    MAX_SIZE,
    Columns,
    Cursor,
    Spelled,
    encode,
    exact,
    read_number,
    spell,
)

MOST_RECORDS: Final = 1_000_000
ENCODED: Final = "base64:"
TRUE: Final = {"1", "t", "T", "true", "TRUE", "True"}
_FALSE: Final = {"0", "f", "F", "false", "FALSE", "False"}
_ROUTES: Final = {
    "/": {"GET": "select", "POST": "insert", "DELETE": "delete"},
    "/select": {"POST": "select"},
    "/metrics": {"GET": "metrics"},
    "/health": {"GET": "health"},
}
_PARAMETERS: Final = ("offset", "limit", "start", "stop", "coalesce", "cursors")


class _Given(msgspec.Struct, gc=False):
    key: bytes
    # An int as it is, any other number by read_number: what would be rounded is refused.
    score: Any
    member: bytes


class _Element(msgspec.Struct, gc=False):
    key: bytes
    score: int | float
    member: bytes


class _Pointed(_Element):
    cursor: str


class _Selection(msgspec.Struct, omit_defaults=True):
    records: dict[str, list[_Element]] | list[_Element]
    duration: str
    partial: bool = False


_read_tuples = msgspec.json.Decoder(list[_Given], float_hook=read_number).decode
_read_keys = msgspec.json.Decoder(list[bytes]).decode
_write = msgspec.json.Encoder().encode


class SelectParameters(NamedTuple):
    """The parameters of a select: the window of each key, which many requests may share.

    ``skip`` is how many elements of a coalesced list are left out at its beginning.
    """

    window: Window
    skip: int
    limit: int
    coalesce: bool
    cursors: bool
    keys: tuple[bytes, ...]


_NOTHING: Final[Columns] = ([], [])


def route(method: str, path: str) -> str:
    """Return what a request asks for; raises Refused."""
    methods = _ROUTES.get(path)
    if methods is None:
        raise Refused(404, f"there is no {path[:100]} here; there are {', '.join(_ROUTES)}")
    action = methods.get("GET" if method == "HEAD" else method)
    if action is None:
        allow = ", ".join(methods)
        raise Refused(405, f"{path} takes {allow}, not {method}", allow)
    return action


def read_tuples(body: bytes | bytearray) -> list[Spelled]:
    """Read the body of an insert or delete; raises InvalidInput, and Refused if it is too deep."""
    check_nesting(body)
    try:
        given = _read_tuples(body)
    except msgspec.DecodeError as error:
        raise InvalidInput(
            f'{error}; send [{{"key": base64, "score": number, "member": base64}}, ...]'
        ) from None
    return [spell(item.key, item.score, item.member) for item in given]


def read_keys(body: bytes | bytearray, query: SelectParameters, max_size: int) -> list[bytes]:
    """Read which keys are asked for, by the body or by the query; raises InvalidInput.

    Raises Refused if the body is nested too deep.
    """
    if query.keys and body.strip():
        raise InvalidInput("name keys in the body or in the query, not in both")
    if query.keys:
        keys = list(query.keys)
    else:
        check_nesting(body)
        try:
            keys = _read_keys(body)
        except msgspec.DecodeError as error:
            raise InvalidInput(
                f"{error}; send a JSON list of keys in base64, or name them as ?key=...&key=..."
            ) from None
    return check_keys(keys, query, max_size)


def check_keys(keys: list[bytes], query: SelectParameters, max_size: int) -> list[bytes]:
    """Return keys of which a farm may be asked for this many records; raises InvalidInput."""
    for key in keys:
        if len(key) > MAX_KEY_BYTES:
            encode(key, "key")
    limit = min(query.window.limit, max_size)
    if len(keys) * limit > MOST_RECORDS:
        raise InvalidInput(
            f"{len(keys)} keys with up to {limit} records each are more than "
            f"{MOST_RECORDS}; ask for fewer at once"
        )
    return keys


@lru_cache(maxsize=1024)
def read_query(text: str) -> SelectParameters:
    """Read the query of a select; raises InvalidInput."""
    given: dict[str, str] = {}
    keys: list[bytes] = []
    try:
        pairs = parse_qsl(text, keep_blank_values=True, errors="strict")
    except ValueError:
        raise InvalidInput("the query is not UTF-8") from None
    for name, value in pairs:
        if name == "key":
            keys.append(read_key(value))
        elif name not in _PARAMETERS:
            raise InvalidInput(
                f"{name!r} is not a parameter; there are key, {', '.join(_PARAMETERS)}"
            )
        elif given.setdefault(name, value) != value:
            raise InvalidInput(f"{name!r} is given twice; give it once")
    offset, limit = _number(given, "offset", 0, 0), _number(given, "limit", 10, 1)
    coalesce, cursors = _bool(given, "coalesce"), _bool(given, "cursors")
    start, stop = read_places(given)
    # Any key may hold all the elements that a merged list leaves out at its beginning.
    window = (
        Window(0, offset + limit, start, stop) if coalesce else Window(offset, limit, start, stop)
    )
    check_int(window.limit, "offset and limit together", 1, MAX_SIZE)
    return SelectParameters(window, offset, limit, coalesce, cursors, tuple(keys))


def read_places(given: dict[str, str]) -> tuple[Cursor | None, Cursor | None]:
    """Read where a page begins and ends; raises InvalidInput."""
    start, stop = (Cursor.parse(given[n]) if given.get(n) else None for n in ("start", "stop"))
    if given.get("offset") and (start or stop):
        raise InvalidInput("offset goes with neither start nor stop; give one or the others")
    return start, stop


def read_key(text: str) -> bytes:
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
    if text and text not in TRUE | _FALSE:
        raise InvalidInput(f"{name} must be true or false, not {text!r}")
    return text in TRUE


def written(verb: str, count: int, seconds: float) -> Reply:
    """Return the reply to an insert or delete."""
    return Reply(200, f'{{"{verb}":{count},"duration":"{duration(seconds)}"}}'.encode())


def selected(
    query: SelectParameters, keys: Sequence[bytes], answer: Answer, seconds: float
) -> Reply:
    """Return the reply to a select: records by raw key, or one list of all when coalesced."""
    spell_all = _pointed if query.cursors else _plain
    columns = answer.columns
    found = {raw_key(key): spell_all(key, *columns.get(key, _NOTHING)) for key in keys}
    partial = not answer.failures.keys.isdisjoint(keys)
    if not query.coalesce:
        return Reply(200, _write(_Selection(found, duration(seconds), partial)))
    merged = [element for elements in found.values() for element in elements]
    merged.sort(key=lambda one: (one.score, one.member, one.key), reverse=True)
    flat = merged[query.skip : query.skip + query.limit]
    return Reply(200, _write(_Selection(flat, duration(seconds), partial)))


def _plain(key: bytes, members: list[bytes], scores: list[float]) -> list[_Element]:
    return list(map(_Element, repeat(key), _exact(scores), members))


def _pointed(key: bytes, members: list[bytes], scores: list[float]) -> list[_Element]:
    rows = zip(members, scores, _exact(scores), strict=True)
    return [
        _Pointed(key, shown, member, str(Cursor(score, member))) for member, score, shown in rows
    ]


def _exact(scores: list[float]) -> Sequence[int | float]:
    """Return scores, the highest first, as JSON spells them exactly; most are as they are."""
    if not scores or (scores[0] <= MAX_EXACT and scores[-1] >= -MAX_EXACT):
        return scores
    return list(map(exact, scores))


def raw_key(key: bytes) -> str:
    """Return a key as a name in a JSON object."""
    try:
        text = key.decode()
    except UnicodeDecodeError:
        return ENCODED + base64.b64encode(key).decode()
    return ENCODED + base64.b64encode(key).decode() if text.startswith(ENCODED) else text


def failed(status: int, message: str, headers: bytes = b"", *, close: bool = False) -> Reply:
    """Return the reply that reports an error."""
    body = {"error": message, "code": status, "description": http.HTTPStatus(status).phrase}
    return Reply(status, _write(body), headers=headers, close=close)


def document(status: int, content: object) -> Reply:
    """Return a reply with any JSON document."""
    return Reply(status, _write(content))


def duration(seconds: float) -> str:
    """Return a span of time as Go spells it: 12.5µs, 3.25ms, 1.5s."""
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if seconds >= size:
            return f"{seconds / size:.6g}{unit}"
    return f"{round(seconds * 1e9)}ns"
