"""Entries: the forms in which messages of a batch are given.

Each is a pair of tag and value, a triple with headers, or a message that was read, which is copied
with its headers.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, TypeAlias, TypeVar

import pyarrow as pa

from headwater.codecs import Coder
from headwater.errors import HeadwaterError, InvalidInput
from headwater.headers import Carried, GivenHeaders, encode_headers
from headwater.log import node
from headwater.log.types import DeadLetter, Message, TopicDeadLetter, TopicMessage

E = TypeVar("E")
WholeMessage: TypeAlias = "Message[E] | TopicMessage[E] | DeadLetter | TopicDeadLetter"
Entry: TypeAlias = (
    "tuple[str, E | str] | tuple[str, E | str, GivenHeaders | None] | WholeMessage[E]"
)
_WHOLE = (Message, TopicMessage, DeadLetter, TopicDeadLetter)
_FORMS = "entries must be (tag, value) pairs or (tag, value, headers)"

_NOT_STRINGS = f"{_FORMS}, not strings; write one message as [(tag, value)]"


def batch_of_entries(entries: Iterable[Any], *, carry: bool) -> pa.RecordBatch:
    """Turn entries into a batch of a node's shape; raises InvalidInput.

    carry: with the headers that go with every message, if there are any. Not for a write with a
    sequence: a repeat must be equal to the first attempt, which may be of another trace.
    """
    given = _listed(entries)
    if carry and Carried.context is not None:
        given = _with_carried(given)
    if given and isinstance(given[0], str):
        # A str of two characters would pass for a pair.
        raise InvalidInput(_NOT_STRINGS)
    tags: list[Any] = []
    values: list[Any] = []
    try:
        # To unzip them takes three times as long.
        for tag, value in given:
            tags.append(tag)
            values.append(value)
    except (TypeError, ValueError):
        triples = list(map(_triple, given))
        headers = [encode_headers(triple[2]) for triple in triples]
        return node.batch_of(
            [one[0] for one in triples], [one[1] for one in triples], None, None, headers
        )
    return node.batch_of(tags, values)


def _with_carried(entries: list[Any]) -> list[Any]:
    return [
        entry if isinstance(entry, (*_WHOLE, str, bytes)) else _carrying(_triple(entry))
        for entry in entries
    ]


def _carrying(triple: tuple[Any, Any, Any]) -> tuple[Any, Any, Any]:
    tag, value, headers = triple
    return tag, value, Carried.beside(headers)


def encoded_entries(coder: Coder[Any], entries: Iterable[Any]) -> Iterable[Any]:
    """Return entries with their values encoded; messages that were read stay as they are."""
    given = _listed(entries)
    encode = coder.encode
    try:
        return [(tag, encode(value)) for tag, value in given]
    except HeadwaterError:
        raise
    except (TypeError, ValueError):
        return [
            entry if isinstance(entry, _WHOLE) else _with_value(_triple(entry), encode)
            for entry in given
        ]


def _listed(entries: Any) -> list[Any]:
    if not isinstance(entries, Iterable):
        raise InvalidInput(f"{_FORMS}, not {entries!r}")
    if isinstance(entries, Mapping):
        raise InvalidInput(f"{_FORMS}, not a dict, which yields its keys; use dict.items()")
    return entries if isinstance(entries, list) else list(entries)


def _with_value(triple: tuple[Any, Any, Any], encode: Any) -> tuple[Any, Any, Any]:
    tag, value, headers = triple
    return tag, encode(value), headers


def _triple(entry: Any) -> tuple[Any, Any, Any]:
    if isinstance(entry, _WHOLE):
        return entry.tag, entry.value, entry.headers
    if isinstance(entry, str | bytes):
        raise InvalidInput(_NOT_STRINGS)
    try:
        tag, value, *rest = entry
        (headers,) = rest or (None,)
    except (TypeError, ValueError):
        raise InvalidInput(_FORMS) from None
    return tag, value, headers
