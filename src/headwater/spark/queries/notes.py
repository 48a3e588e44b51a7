"""What queries note of themselves in the store that they read or write.

A query is known by the id in its checkpoint. Three of its processes know different things, so each
notes its own, in one hash:

    read     a task, or the reader on the driver where no task runs, with each micro-batch: the
             name, the epoch, its begin and end, and the run
    beat     the reader on the driver, now and then: how far the query has come, whether it ended
    write    the commit of a sink, with each micro-batch: the name, the epoch, the checkpoint

The reader on the driver finds out by its run which query it belongs to, unless our Java tells it.
"""

from __future__ import annotations

from typing import Final, Literal, NamedTuple, TypeAlias

import msgspec

from headwater.store.call import Call, Operation

KEY: Final = "hw:{queries}"
Part: TypeAlias = Literal["read", "beat", "write"]


class NotedQuery(msgspec.Struct, frozen=True, omit_defaults=True):
    """What one process has noted of a query.

    ``next`` is the offset needed next of each stream, ``end`` the same once the epoch is done.
    ``partitions`` are those of a topic that is written to, 0 for a stream.
    """

    name: str = ""
    epoch: int = 0
    next: dict[str, int] = {}
    run: str = ""
    checkpoint: str = ""
    ended: bool = False
    end: dict[str, int] = {}
    partitions: int = 0


class QueryNote(NamedTuple):
    """A note: which query, which part, of which stream or topic, and when."""

    query: str
    part: Part
    target: str
    noted_ms: int
    facts: NotedQuery


class QueryNotes(NamedTuple):
    """All notes of a store, and its time."""

    now_ms: int
    notes: tuple[QueryNote, ...]


def note(query: str, part: Part, target: str, facts: NotedQuery) -> Operation[None]:
    """Note what is known of a query."""
    args = (_field(query, part, target), msgspec.json.encode(facts))
    yield Call("hw_query_note", KEY, args, repeatable=True)


def all_notes() -> Operation[QueryNotes]:
    """Return what all queries have noted."""
    now_ms, *found = yield Call("hw_query_list", KEY, read_only=True)
    pairs = zip(found[::2], found[1::2], strict=True)
    return QueryNotes(now_ms, tuple(sorted(_note(*pair) for pair in pairs)))


def forget(notes: tuple[QueryNote, ...]) -> Operation[int]:
    """Remove notes; returns how many there were."""
    fields = [_field(one.query, one.part, one.target) for one in notes]
    gone: int = yield Call("hw_query_forget", KEY, tuple(fields), repeatable=True)
    return gone


def _field(query: str, part: Part, target: str) -> str:
    return f"{query} {part} {target}"


def _note(field: bytes, value: bytes) -> QueryNote:
    query, part, target = field.decode().split(" ", 2)
    noted_ms, facts = value.split(b" ", 1)
    kind = msgspec.convert(part, Part)
    return QueryNote(
        query, kind, target, int(noted_ms), msgspec.json.decode(facts, type=NotedQuery)
    )
