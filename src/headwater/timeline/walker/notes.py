"""Notes of walks: which process walks or moves a farm, and its progress, visible to all.

A walk notes itself on the farm that it walks, in one small key of each cluster for its kind, every
two seconds and when it ends. So its progress is seen from other processes, and what the last one
did stays known for thirty days. A note that cannot be written is left out: it never stops a walk.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import Final, Literal, TypeAlias

import msgspec

from headwater.errors import StoreError
from headwater.timeline.cluster.cluster import Cluster
from headwater.timeline.records import Repaired

Kind: TypeAlias = Literal["walk", "move"]
State: TypeAlias = Literal["running", "done", "stopped", "failed"]

KINDS: Final[tuple[Kind, ...]] = ("walk", "move")
# Once a walk is silent for that long, its process has ended or cannot reach the farm.
SILENT_MS: Final = 30_000
_EVERY_S: Final = 2.0
_KEPT_S: Final = 30 * 86_400


class WalkNote(msgspec.Struct, frozen=True, kw_only=True):
    """A walk as it noted itself: ``passed`` sets of ``total`` since it began or continued.

    ``figures`` are what it has found and done, as ``Repaired`` has them; ``unscanned`` counts
    instances that could not be scanned. Times are by the clock of the process that walks.
    """

    kind: Kind
    who: str
    state: State
    began_ms: int
    noted_ms: int
    passed: int
    total: int
    figures: list[int]
    unscanned: int = 0

    @property
    def repaired(self) -> Repaired:
        """What it has found and done so far."""
        return Repaired(*self.figures)

    @property
    def per_s(self) -> float:
        """How many sets it passes a second, on average."""
        return 1000 * self.passed / max(self.noted_ms - self.began_ms, 1)

    @property
    def left_s(self) -> float | None:
        """How long it takes to its end at that rate; None when that is not known."""
        if self.state != "running" or not self.passed:
            return None
        return max(self.total - self.passed, 0) / self.per_s


def _key(kind: Kind, *, over: bool) -> str:
    return f"hw:{{timelines}}:{kind}:{'last' if over else 'now'}"


class WalkNotes:
    """Writes the notes of one walk."""

    def __init__(
        self,
        clusters: Sequence[Cluster],
        kind: Kind,
        who: str,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._clusters = clusters
        self._kind = kind
        self._who = who
        self._clock = clock
        self._began = clock()
        self._noted = 0.0

    async def note(self, passed: int, total: int, done: Repaired) -> None:
        """Note how far a walk is, unless it was noted a moment ago."""
        if abs(self._clock() - self._noted) >= _EVERY_S:
            await self._write("running", passed, total, done, 0)

    async def end(
        self, state: State, passed: int, total: int, done: Repaired, unscanned: int = 0
    ) -> None:
        """Note that a walk is over, and how."""
        await self._write(state, passed, total, done, unscanned)

    async def _write(
        self, state: State, passed: int, total: int, done: Repaired, unscanned: int
    ) -> None:
        self._noted = self._clock()
        note = WalkNote(
            kind=self._kind,
            who=self._who,
            state=state,
            began_ms=round(self._began * 1000),
            noted_ms=round(self._noted * 1000),
            passed=passed,
            total=total,
            figures=list(done),
            unscanned=unscanned,
        )
        text = msgspec.json.encode(note)
        over = None if state == "running" else self._kind
        key = _key(self._kind, over=over is not None)
        await asyncio.gather(*(_write_to(one, key, text, over) for one in self._clusters))


async def _write_to(cluster: Cluster, key: str, text: bytes, over: Kind | None) -> None:
    """Write a note to the first instance of a cluster that takes it."""
    for instance in cluster.pool.instances:
        try:
            await instance.command("SET", key, text, "EX", _KEPT_S)
            if over is not None:
                await instance.command("UNLINK", _key(over, over=False))
        except StoreError:
            continue
        return


async def read_notes(clusters: Sequence[Cluster]) -> list[WalkNote]:
    """Return the walks that a farm knows of: those that run first, then the last of each kind."""
    keys = [_key(kind, over=over) for over in (False, True) for kind in KINDS]
    instances = [one for cluster in clusters for one in cluster.pool.instances]

    async def ask(place: int) -> list[bytes | None]:
        try:
            found: list[bytes | None] = await instances[place].command("MGET", *keys)
        except StoreError:
            return []
        return found

    newest: dict[int, WalkNote] = {}
    for texts in await asyncio.gather(*map(ask, range(len(instances)))):
        for place, text in enumerate(texts):
            note = None if text is None else _opened(text)
            if note and (place not in newest or note.noted_ms > newest[place].noted_ms):
                newest[place] = note
    ended = {note.kind: note for place, note in newest.items() if place >= len(KINDS)}
    return [
        note
        for place, note in sorted(newest.items())
        if place >= len(KINDS) or not _is_over(note, ended.get(note.kind))
    ]


def _is_over(running: WalkNote, last: WalkNote | None) -> bool:
    """Return whether a walk has ended since; an instance that was down has its old note still."""
    if last is None:
        return False
    same = (running.who, running.began_ms) == (last.who, last.began_ms)
    return same or running.noted_ms < last.noted_ms


def _opened(text: bytes) -> WalkNote | None:
    try:
        note = msgspec.json.decode(text, type=WalkNote)
    except msgspec.DecodeError:
        return None  # of another release
    return note if len(note.figures) == len(Repaired._fields) else None
