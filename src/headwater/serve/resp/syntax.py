"""From the syntax of a command, as the reference shows it, to the arguments that COMMAND DOCS has.

key tag entry                   arguments
BLOCK milliseconds              a word in capitals goes with what follows it
[BLOCK milliseconds]            may be left out
tag entry [tag entry ...]       may come several times
FIRST|LAST|offset               one of these
"""

from __future__ import annotations

import re
from typing import Any, Final

from headwater.serve.resp.replies import StatusReply

_PIECES: Final = re.compile(r"\[|\]|[^\s\[\]]+")
_NUMBERS: Final = (
    "offset", "count", "pairs", "milliseconds", "retry-ms", "expire-ms", "n", "priority", "index",
    "limit", "protover", "partitions", "up-to", "max-count", "max-bytes",
)  # fmt: skip


def arguments_of(syntax: str) -> list[dict[str, Any]]:
    """Return the arguments of a command, as clients that give hints expect them."""
    pieces = _PIECES.findall(syntax.rpartition(" | ")[2])
    found, rest = _sequence(pieces)
    assert not rest, syntax
    return found


def _sequence(pieces: list[str]) -> tuple[list[dict[str, Any]], list[str]]:
    found: list[dict[str, Any]] = []
    token = None
    while pieces and pieces[0] != "]":
        piece, pieces = pieces[0], pieces[1:]
        if piece == "[":
            inner, pieces = _sequence(pieces)
            found.append(_optional(inner))
            pieces = pieces[1:]
        elif piece == "...":
            found[-1] = _flagged(found[-1], "multiple")
        elif "|" in piece:
            choices = [_argument(choice) for choice in piece.split("|")]
            found.append(_named("oneof", choices[0]["name"], token, choices))
            token = None
        elif piece.isupper() and pieces and pieces[0] not in "[]" and not pieces[0].isupper():
            token = piece
        else:
            found.append(_argument(piece, token))
            token = None
    return found, pieces


def _is_number(word: str) -> bool:
    return word in _NUMBERS or word.endswith("-ms")


def _argument(word: str, token: str | None = None) -> dict[str, Any]:
    if word.isupper():
        return {"name": word.lower(), "type": "pure-token", "token": word}
    kind = "key" if word == "key" else "integer" if _is_number(word) else "string"
    made: dict[str, Any] = {"name": word, "type": kind}
    if kind == "key":
        made["key_spec_index"] = 0
    return made if token is None else made | {"token": token}


def _named(kind: str, name: str, token: str | None, inner: list[Any]) -> dict[str, Any]:
    made: dict[str, Any] = {"name": name, "type": kind}
    if token is not None:
        made["token"] = token
    return made | {"arguments": inner}


def _optional(inner: list[dict[str, Any]]) -> dict[str, Any]:
    if len(inner) == 1:
        return _flagged(inner[0], "optional")
    several = StatusReply("multiple") in inner[-1].get("flags", ())
    if several:
        inner = [*inner[:-1], {k: v for k, v in inner[-1].items() if k != "flags"}]
    block = _named("block", inner[0]["name"], None, inner)
    return _flagged(_flagged(block, "multiple") if several else block, "optional")


def _flagged(argument: dict[str, Any], flag: str) -> dict[str, Any]:
    return argument | {"flags": [*argument.get("flags", ()), StatusReply(flag)]}
