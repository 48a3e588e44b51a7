"""Where the queries of a store stand, by what they have noted and by what the log holds."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import groupby
from pathlib import Path
from typing import Final, Literal, NamedTuple, TypeAlias
from urllib.parse import unquote, urlsplit

from headwater.errors import InvalidInput
from headwater.log import reading
from headwater.log.extents import extent
from headwater.log.handles import StreamHandle
from headwater.spark.queries.notes import QueryNote, all_notes, forget
from headwater.store.call import Operation
from headwater.store.many import together

# A reader notes itself every ten seconds while its query runs.
SILENT_MS: Final = 60_000

QueryState: TypeAlias = Literal["running", "silent", "ended", "checkpoint gone"]


class ReadPosition(NamedTuple):
    """How far a query has come in a stream, and what waits there; ``lag_ms`` is the age of it."""

    stream: str
    next: int
    lag: int
    lag_ms: int


class QueryStatus(NamedTuple):
    """A query that reads or writes a store.

    ``state`` is *running* while it was seen within a minute, *silent* after that, *ended* when it
    was stopped, and *checkpoint gone* when its checkpoint is no more, as far as that can be seen
    from here. ``checkpoint`` is known of queries that write to a stream or topic,
    and of those that read in a session that our rules are in force in; else it is empty.
    """

    query: str
    name: str
    state: QueryState
    epoch: int
    checkpoint: str
    reads: tuple[ReadPosition, ...]
    writes: tuple[str, ...]
    lag: int
    lag_ms: int
    seen_ms: int


def query_statuses() -> Operation[list[QueryStatus]]:
    """Return where all queries stand, in the order of their names and ids."""
    now_ms, notes = yield from all_notes()
    found = []
    for query, own in groupby(notes, key=lambda one: one.query):
        found.append((yield from _status(query, [*own], now_ms)))
    return sorted(found, key=lambda one: (one.name, one.query))


def forget_query(named: str) -> Operation[QueryStatus]:
    """Forget a query, by its id or its name. Raises InvalidInput unless there is one such query."""
    statuses = yield from query_statuses()
    found = [one for one in statuses if named in (one.query, one.name)]
    if len(found) != 1:
        several = " by that name; give its id" if found else ""
        raise InvalidInput(
            f"there {'are' if found else 'is'} {len(found) or 'no'} "
            f"{'queries' if found else 'query'} {named!r}{several}; "
            "`headwater spark status` shows all"
        )
    notes = (yield from all_notes()).notes
    yield from forget(tuple(one for one in notes if one.query == found[0].query))
    return found[0]


def _status(query: str, notes: list[QueryNote], now_ms: int) -> Operation[QueryStatus]:
    facts = [one.facts for one in notes]
    reached: dict[str, int] = {}
    written = max((one.facts.epoch for one in notes if one.part == "write"), default=-1)
    for fact in facts:
        # An epoch whose sink is ours is known to be done as soon as it is.
        done = fact.end if fact.epoch <= written else fact.next
        for stream, next_ in (fact.next | done).items():
            reached[stream] = max(next_, reached.get(stream, 0))
    reads = yield from together(_position(*one, now_ms) for one in sorted(reached.items()))
    seen_ms = now_ms - max(one.noted_ms for one in notes)
    checkpoint = _first(fact.checkpoint for fact in facts)
    return QueryStatus(
        query=query,
        name=_first(fact.name for fact in facts),
        state=_state(notes, checkpoint, seen_ms),
        epoch=max(fact.epoch for fact in facts),
        checkpoint=checkpoint,
        reads=tuple(reads),
        writes=tuple(one.target for one in notes if one.part == "write"),
        lag=sum(one.lag for one in reads),
        lag_ms=max((one.lag_ms for one in reads), default=0),
        seen_ms=seen_ms,
    )


def _position(stream: str, next_: int, now_ms: int) -> Operation[ReadPosition]:
    found = yield from extent(stream)
    begin = max(next_, found.first)
    if begin > found.last:
        return ReadPosition(stream, next_, 0, 0)
    oldest = yield from reading.read_from(StreamHandle(stream, set()), begin, 1, None)
    age_ms = max((now_ms - one.time_ms for one in oldest.messages), default=0)
    return ReadPosition(stream, next_, found.last + 1 - begin, max(age_ms, 0))


def _state(notes: Iterable[QueryNote], checkpoint: str, seen_ms: int) -> QueryState:
    if checkpoint and _is_gone(checkpoint):
        return "checkpoint gone"
    latest = max(notes, key=lambda one: one.noted_ms)
    if latest.facts.ended:
        return "ended"
    return "running" if seen_ms < SILENT_MS else "silent"


def _is_gone(checkpoint: str) -> bool:
    """Return whether a checkpoint is no more; what is not of this machine counts as there."""
    place = urlsplit(checkpoint)
    if place.scheme not in ("", "file"):
        return False
    path = Path(unquote(place.path))
    # A folder above it that is not here either is that of another machine.
    return path.is_absolute() and path.parent.is_dir() and not path.exists()


def _first(words: Iterable[str]) -> str:
    found: Iterator[str] = (word for word in words if word)
    return next(found, "")
