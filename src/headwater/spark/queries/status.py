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
from headwater.log.inspecting import lag_at
from headwater.log.writing import staged_bytes
from headwater.spark.queries.notes import QueryNote, all_notes, forget
from headwater.store.call import Operation
from headwater.store.many import sound

# A reader notes itself every ten seconds while its query runs.
SILENT_MS: Final = 60_000

QueryState: TypeAlias = Literal["running", "silent", "ended", "checkpoint gone"]
_LIVE: Final = ("running", "silent")

# As spark/queues.py names the intake of a queue, by the length of its name.
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
    was stopped or had read all it was to read, and *checkpoint gone* when its checkpoint is no
    more, as far as that can be seen from here. Nothing waits for one that has ended, or whose
    checkpoint is gone. ``checkpoint`` is known of queries that write to a stream or topic,
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
        return self.state in _LIVE


def query_statuses() -> Operation[list[QueryStatus]]:
    """Return where all queries stand, in the order of their names and ids.

    Of several runs that had a checkpoint each, and will not come back, the last one stands for all.
    """
    found = [runs[0] for runs in (yield from _runs_of_queries())]
    return sorted(found, key=lambda one: (one.name, one.query))


def _runs_of_queries() -> Operation[list[list[QueryStatus]]]:
    """Return the runs of each query, the one that was seen last first.

    One that can go on from its checkpoint is a query by itself. Every other one is a run of the
    query that has its name, and reads and writes the same.
    """
    now_ms, notes = yield from all_notes()
    found = []
    for query, own in groupby(notes, key=lambda one: one.query):
        found.append((yield from _status(query, [*own], now_ms)))
    queries: list[list[QueryStatus]] = []
    for one in sorted(found, key=lambda one: one.seen_ms):
        alike = (runs for runs in queries if _is_past_run(one, of=runs[0]))
        runs = next(alike, None)
        if runs is None:
            queries.append([one])
        else:
            runs.append(one)
    return queries


def _is_past_run(one: QueryStatus, of: QueryStatus) -> bool:
    """Return whether a query that was seen before another one was an earlier run of it."""
    lost = not one.checkpoint or one.checkpoint == of.checkpoint or _is_gone(one.checkpoint)
    return lost and not one.is_live and _deed(one) == _deed(of)


def _deed(one: QueryStatus) -> tuple[str, list[str], tuple[str, ...]]:
    return one.name, [read.stream for read in one.reads], one.writes


def forget_query(named: str) -> Operation[QueryStatus]:
    """Forget a query, by its id or its name. Raises InvalidInput unless there is one such query."""
    queries = yield from _runs_of_queries()
    found = [runs for runs in queries if named in (runs[0].query, runs[0].name)]
    if len(found) != 1:
        several = " by that name; give its id" if found else ""
        raise InvalidInput(
            f"there {'are' if found else 'is'} {len(found) or 'no'} "
            f"{'queries' if found else 'query'} {named!r}{several}; "
            "`headwater spark status` shows all"
        )
    notes = (yield from all_notes()).notes
    gone = {one.query for one in found[0]}
    yield from forget(tuple(one for one in notes if one.query in gone))
    return found[0][0]


def _status(query: str, notes: list[QueryNote], now_ms: int) -> Operation[QueryStatus]:
    facts = [one.facts for one in notes]
    reached: dict[str, int] = {}
    written = max((one.facts.epoch for one in notes if one.part == "write"), default=-1)
    for fact in facts:
        # An epoch whose sink is ours is known to be done as soon as it is.
        done = fact.end if fact.epoch <= written else fact.next
        for stream, next_ in (fact.next | done).items():
            reached[stream] = max(next_, reached.get(stream, 0))
    seen_ms = now_ms - max(one.noted_ms for one in notes)
    checkpoint = _first(fact.checkpoint for fact in facts)
    state = _state(notes, checkpoint, seen_ms)
    if state in _LIVE:
        positions = yield from sound(_position(*one) for one in sorted(reached.items()))
        reads = [one for one in positions if one is not None]
    else:
        reads = [ReadPosition(*one, 0, 0) for one in sorted(reached.items())]
    staged = yield from sound(_staged(query, one) for one in _written_streams(notes))
    return QueryStatus(
        query=query,
        name=_first(fact.name for fact in facts),
        state=state,
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
    latest = max(notes, key=lambda one: one.noted_ms)
    if latest.facts.ended:
        return "ended"
    if checkpoint and _is_gone(checkpoint):
        return "checkpoint gone"
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
