"""Reads requests as Roshi's own server does, for clients that rely on it (``--lenient``).

What can be read in two ways is refused by ``wire``, since it is a mistake more often than not.
Roshi takes the first of two values, ignores what it does not know, and assumes a default where it
cannot read a number. Here each of these is accepted with Roshi's result. A request that ``wire``
accepts is read by it, and only others are read again.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
import sys
from typing import Any, Final
from urllib.parse import parse_qsl

from headwater.errors import InvalidInput
from headwater.serve.http.messages import Refused
from headwater.serve.timeline import wire
from headwater.timeline.cluster import Window
from headwater.timeline.records import MAX_SIZE, Cursor, Spelled, spell

# Where a page begins and ends that has one cursor only: Roshi knows no scores below zero there.
_START: Final = Cursor(sys.float_info.max, b"")
_STOP: Final = Cursor(0.0, b"")

_INTEGER: Final = re.compile(r"[+-]?[0-9]+", re.ASCII)
_ACTIONS: Final = {"GET": "select", "HEAD": "select", "POST": "insert", "DELETE": "delete"}


def route(method: str, path: str) -> str:
    """Return what is asked for: any path that is not one of ours is the root; raises Refused."""
    try:
        return wire.route(method, path)
    except Refused:
        if method not in _ACTIONS or path.startswith("/debug"):
            raise
    if path.startswith("/metrics") and _ACTIONS[method] == "select":
        return "metrics"
    return _ACTIONS[method]


def read_tuples(body: bytes | bytearray) -> list[Spelled]:
    """Read the body of an insert or delete; a score that a double cannot hold is rounded."""
    try:
        return wire.read_tuples(body)
    except InvalidInput as error:
        given = _first_value(body, error)
        return [_tuple(item, error) for item in _list(given, error)]


def read_keys(body: bytes | bytearray, query: wire.SelectParameters, max_size: int) -> list[bytes]:
    """Read which keys are asked for: by the body, or where that is empty by the query."""
    if query.limit < 0:
        return []
    if body.strip():
        query = query._replace(keys=())
    try:
        return wire.read_keys(body, query, max_size)
    except InvalidInput as error:
        keys = [_bytes(item, error) for item in _list(_first_value(body, error), error)]
    return wire.check_keys(keys, query, max_size)


def read_query(text: str) -> wire.SelectParameters:
    """Read the query of a select; raises InvalidInput for a cursor or a negative offset."""
    given: dict[str, str] = {}
    keys: list[bytes] = []
    for name, value in parse_qsl(text, keep_blank_values=True, errors="replace"):
        if name == "key":
            keys.append(wire.read_key(value))
        else:
            given.setdefault(name, value)
    offset, limit = _number(given, "offset", 0), _number(given, "limit", 10)
    if offset < 0:
        raise InvalidInput(f"offset must be a whole number from 0 on, not {offset}")
    start, stop = wire.read_places(given)
    if start or stop:
        start, stop = start or _START, stop or _STOP
    coalesce, cursors = (given.get(name) in wire.TRUE for name in ("coalesce", "cursors"))
    first = 0 if coalesce else offset
    window = Window(first, max(1, limit + (offset if coalesce else 0)), start, stop)
    return wire.SelectParameters(window, offset, limit, coalesce, cursors, tuple(keys))


def _number(given: dict[str, str], name: str, default: int) -> int:
    text = given.get(name, "")
    number = int(text) if _INTEGER.fullmatch(text) and len(text) <= 20 else default
    # What is beyond what a key may hold has no more to show than the end of it.
    return min(number, MAX_SIZE) if -(1 << 63) <= number < 1 << 63 else default


def _first_value(body: bytes | bytearray, error: InvalidInput) -> Any:
    """Return the JSON value that a body begins with; what follows it is ignored."""

    def refuse(_: str) -> None:
        raise error

    try:
        text = body.decode("utf-8", "replace").lstrip(" \t\r\n")
        return json.JSONDecoder(parse_constant=refuse).raw_decode(text)[0]
    except (ValueError, RecursionError):
        raise error from None


def _list(value: Any, error: InvalidInput) -> list[Any]:
    if value is None:
        return []
    if not isinstance(value, list):
        raise error
    return value


def _tuple(item: Any, error: InvalidInput) -> Spelled:
    """Read an object by the names of its fields in any case; what is missing is empty, or 0."""
    if not isinstance(item, dict | None):
        raise error
    fields = {name.lower(): value for name, value in (item or {}).items() if value is not None}
    score = fields.get("score", 0)
    if isinstance(score, bool) or not isinstance(score, int | float):
        raise error
    try:
        number = float(score)
    except OverflowError:
        raise error from None
    return spell(_bytes(fields.get("key"), error), number, _bytes(fields.get("member"), error))


def _bytes(value: Any, error: InvalidInput) -> bytes:
    """Read bytes as Go does: base64, which may have line ends, or a list of numbers."""
    try:
        if value is None:
            return b""
        if isinstance(value, str):
            return base64.b64decode(value.replace("\r", "").replace("\n", ""), validate=True)
        if isinstance(value, list) and all(type(number) is int for number in value):
            return bytes(value)
    except (binascii.Error, ValueError):
        pass
    raise error
