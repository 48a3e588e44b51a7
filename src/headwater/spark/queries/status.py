"""Where the queries of a store stand, by what they have noted and by what the log holds."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from itertools import groupby
from pathlib import Path
from typing import Final, Literal, NamedTuple, TypeAlias
from urllib.parse import unquote, urlsplit

from headwater.errors import InvalidInput
from headwater.log.handles import StreamHandle
from headwater.log.lags import lag_at
from headwater.log.staging import staged_bytes
from headwater.spark.queries.notes import QueryNote, all_notes, forget
from headwater.store.call import Operation
from headwater.store.many import sound

# A reader notes itself every ten seconds while its query runs.
SILENT_MS: Final = 60_000

QueryState: TypeAlias = Literal["running", "silent", "ended", "checkpoint gone"]

# As spark/queues/intake.py names the intake of a queue, by the length of its name.
_INTAKE: Final = re.compile(r"intake:(\d+):(.*)", re.DOTALL)


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
    ``staged_bytes`` lie beside what it writes to, and are not published yet.
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
    staged_bytes: int
    seen_ms: int

    @property
    def is_live(self) -> bool:
        """Whether it runs, or may go on: it was not stopped, and its checkpoint is there."""
        return self.state in ("running", "silent")


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
    positions = yield from sound(_position(*one) for one in sorted(reached.items()))
    reads = [one for one in positions if one is not None]
    staged = yield from sound(_staged(query, one) for one in _written_streams(notes))
    seen_ms = now_ms - max(one.noted_ms for one in notes)
    checkpoint = _first(fact.checkpoint for fact in facts)
    return QueryStatus(
        query=query,
        name=_first(fact.name for fact in facts),
        state=_state(notes, checkpoint, seen_ms),
        # What a task notes before the first epoch is done has none yet.
        epoch=max(0, *(fact.epoch for fact in facts)),
        checkpoint=checkpoint,
        reads=tuple(reads),
        writes=tuple(_shown(one.target) for one in notes if one.part == "write"),
        lag=sum(one.lag for one in reads),
        lag_ms=max((one.lag_ms for one in reads), default=0),
        staged_bytes=sum(size or 0 for size in staged),
        seen_ms=seen_ms,
    )


def _shown(target: str) -> str:
    """Return what a query writes to: the queue, where it is the intake of one."""
    found = _INTAKE.fullmatch(target)
    return f"queue {found[2][: int(found[1])]}" if found else target


def _position(stream: str, next_: int) -> Operation[ReadPosition]:
    return ReadPosition(stream, next_, *(yield from lag_at(stream, next_)))


def _written_streams(notes: Iterable[QueryNote]) -> Iterator[str]:
    for one in notes:
        if one.part == "write" and one.facts.partitions:
            yield from (f"{one.target}/{place}" for place in range(one.facts.partitions))
        elif one.part == "write":
            yield one.target


def _staged(query: str, stream: str) -> Operation[int]:
    # As the tasks of a query name what they stage, see spark/log/staging.py.
    return (yield from staged_bytes(StreamHandle(stream, set()), f"spark-{query}-"))


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
