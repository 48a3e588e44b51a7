"""Walks through all timelines of a farm, to repair what no reader ever asks for."""

from __future__ import annotations

import asyncio
import os
import random
import socket
import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal, NamedTuple, TypeAlias

import msgspec

from headwater.errors import FarmUnreachable, InvalidInput, StoreError
from headwater.kernel.inputs import check_int
from headwater.timeline.cluster import Cluster, ReadBatch, Window
from headwater.timeline.farm.aio_farm import AsyncFarm
from headwater.timeline.layout import FarmLayout
from headwater.timeline.records import Repaired

# ── Positions ─────────────────────────────────────────────────────────────────────────────────────
# The progress of a walk: the cursor of each instance's scan, kept in a file if one is given.
#
# A cursor is valid for one process of a server only, since the order of keys is its own; the scan
# of a server that was restarted begins from the start. All of them are valid for one layout of one
# farm only: what was compared on some clusters is not yet compared on others.


END: Final = -1


class ScanPosition(msgspec.Struct):
    """The cursor at which the scan of one instance continues; END when it is complete."""

    generation: str
    cursor: int = 0


class WalkPositions(msgspec.Struct):
    """The positions of a round, by cluster and instance, and what it has done so far.

    ``layout`` is that of the walked farm, without passwords.
    """

    layout: FarmLayout | None = None
    places: dict[str, ScanPosition] = msgspec.field(default_factory=dict)
    done: Repaired = Repaired()


class WalkStateFile:
    """Keeps positions in a file, which is replaced as a whole; without a file it keeps nothing."""

    def __init__(self, path: Path | None) -> None:
        self._path = path

    def read(self, layout: FarmLayout) -> WalkPositions:
        """Return the last positions of a walk by this layout, or those of the beginning.

        Raises InvalidInput for a file that holds something else.
        """
        beginning = WalkPositions(layout.safe)
        if self._path is None or not self._path.exists():
            return beginning
        try:
            noted = msgspec.json.decode(self._path.read_bytes(), type=WalkPositions)
        except msgspec.DecodeError:
            raise InvalidInput(
                f"{self._path} is not the state of a walk; name another file, or remove it"
            ) from None
        return noted if noted.layout == beginning.layout else beginning

    def note(self, positions: WalkPositions) -> None:
        """Write positions atomically: a crash leaves the old ones or the new."""
        if self._path is not None:
            new = self._path.with_name(f"{self._path.name}.new")
            try:
                with new.open("wb") as file:
                    file.write(msgspec.json.encode(positions))
                    file.flush()
                    os.fsync(file.fileno())
                new.replace(self._path)
            except BaseException:
                new.unlink(missing_ok=True)
                raise

    def forget(self) -> None:
        """Remove the file, so that the next walk begins from the start."""
        if self._path is not None:
            self._path.unlink(missing_ok=True)


# ── Notes ─────────────────────────────────────────────────────────────────────────────────────────
# Notes of walks: which process walks or moves a farm, and its progress, visible to all.
#
# A walk notes itself on the farm that it walks, in one small key of each cluster for its kind,
# every two seconds and when it ends. So its progress is seen from other processes, and what the
# last one did stays known for thirty days. A note that cannot be written is left out: it never
# stops a walk.


Kind: TypeAlias = Literal["walk", "move"]
State: TypeAlias = Literal["running", "done", "stopped", "failed"]

KINDS: Final[tuple[Kind, ...]] = ("walk", "move")
# Once a walk is silent for that long, its process has ended or cannot reach the farm.
SILENT_MS: Final = 30_000
_EVERY_S: Final = 2.0
_KEPT_S: Final = 30 * 86_400


class WalkNote(msgspec.Struct, frozen=True, kw_only=True):
    """A walk as it noted itself: ``passed`` sets of ``total`` since it began or continued.

    ``repaired`` is what it has found and done so far; ``unscanned`` counts instances that could not
    be scanned. Times are by the clock of the process that walks.
    """

    kind: Kind
    who: str
    state: State
    began_ms: int
    noted_ms: int
    passed: int
    total: int
    repaired: Repaired
    unscanned: int = 0

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
            await self.write("running", passed, total, done)

    async def write(
        self, state: State, passed: int, total: int, done: Repaired, unscanned: int = 0
    ) -> None:
        """Note how a walk stands, or that it is over, and how."""
        self._noted = self._clock()
        note = WalkNote(
            kind=self._kind,
            who=self._who,
            state=state,
            began_ms=round(self._began * 1000),
            noted_ms=round(self._noted * 1000),
            passed=passed,
            total=total,
            repaired=done,
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
        return msgspec.json.decode(text, type=WalkNote)
    except msgspec.DecodeError:
        return None  # of another release


# ── Scanning ──────────────────────────────────────────────────────────────────────────────────────
# Returns every timeline of some clusters once, in random order, wherever a copy of it is.
#
# Instances are scanned in turn, the next one chosen at random, and their keys are shuffled: so no
# server has all the work at a time, and keys that were made together are far apart. A timeline is
# two sets on each cluster; it is returned at the first of them that exists, and skipped at the
# others.


STEP: Final = 500
# Keys that are shuffled with each other; after a crash at most this many are walked again.
POOL: Final = 2000
_ONE: Final = Window(0, 1)


class ScannedKeys(NamedTuple):
    """Timelines, and how many sets were scanned to find them."""

    keys: list[bytes]
    sets: int


class Scan:
    """One pass over the instances of clusters, which continues at ``positions``.

    With ``only``, a cluster and an instance by their places, over that one alone: passes over each
    of them, in parallel, return each timeline once, too.
    """

    def __init__(
        self,
        clusters: Sequence[Cluster],
        positions: WalkPositions,
        chance: random.Random,
        only: tuple[int, int] | None = None,
    ) -> None:
        self._clusters = clusters
        self._positions = positions
        self._chance = chance
        self._only = only
        self.failed: dict[str, StoreError] = {}

    async def batches(self) -> AsyncIterator[ScannedKeys]:
        """Yield pools of keys; the positions move behind one when the next is asked for.

        An instance that cannot be scanned is left out, and named in ``failed``.
        """
        open_places = await self._open()
        while open_places:
            ahead: dict[str, int] = {}
            met: dict[bytes, None] = {}
            sets = 0
            while open_places and len(met) < POOL:
                name = self._chance.choice(sorted(open_places))
                number, place = open_places[name]
                try:
                    begin = ahead.get(name, self._positions.places[name].cursor)
                    cursor, found = await self._clusters[number].scan(place, begin, STEP)
                    met.update(dict.fromkeys(await self._new(number, found)))
                except StoreError as error:
                    self.failed[name] = error
                    del open_places[name]
                    continue
                sets += len(found)
                ahead[name] = cursor or END
                if not cursor:
                    del open_places[name]
            keys = list(met)
            self._chance.shuffle(keys)
            yield ScannedKeys(keys, sets)
            for name, cursor in ahead.items():
                self._positions.places[name].cursor = cursor

    async def _open(self) -> dict[str, tuple[int, int]]:
        """Return the instances whose scan is not complete yet."""
        found: dict[str, tuple[int, int]] = {}
        for number, cluster in enumerate(self._clusters):
            for place, instance in enumerate(cluster.pool.instances):
                if self._only not in (None, (number, place)):
                    continue
                name = f"{number + 1} {instance.where}"
                try:
                    generation = await cluster.generation(place)
                except StoreError as error:
                    self.failed[name] = error
                    continue
                known = self._positions.places.get(name)
                if known is None or known.generation != generation:
                    known = self._positions.places[name] = ScanPosition(generation)
                if known.cursor != END:
                    found[name] = (number, place)
        return found

    async def _new(self, number: int, sets: list[bytes]) -> list[bytes]:
        """Return the keys of sets that do not exist in a set that comes before theirs."""
        inserted = dict.fromkeys(name[:-1] for name in sets if name.endswith(b"+"))
        deleted = dict.fromkeys(name[:-1] for name in sets if name.endswith(b"-"))
        doubtful = [key for key in deleted if key not in inserted]
        met_by_inserts = await self._existing(self._clusters[number], doubtful, deleted=False)
        candidates = [*inserted, *(key for key in doubtful if key not in met_by_inserts)]
        looks = [
            self._existing(cluster, candidates, deleted=kind)
            for cluster in self._clusters[:number]
            for kind in (False, True)
        ]
        elsewhere = set().union(*await asyncio.gather(*looks))
        return [key for key in candidates if key not in elsewhere]

    async def _existing(self, cluster: Cluster, keys: list[bytes], *, deleted: bool) -> set[bytes]:
        """Return which keys have elements; those of an instance that fails count as without."""
        if not keys:
            return set()
        found = await cluster.select(ReadBatch(keys, _ONE, deleted=deleted))
        return {key for key, raw in found.raw.items() if raw}


# ── Walker ────────────────────────────────────────────────────────────────────────────────────────


MAX_RATE: Final = 1_000_000
# Keys that are compared at once; few, since each may be large.
AT_ONCE: Final = 50


@dataclass(frozen=True, slots=True)
class Walked:
    """What a round did: its counts, and the instances that could not be scanned, with the error.

    ``whole`` says that every timeline was compared on every cluster.
    """

    repaired: Repaired
    unscanned: dict[str, StoreError] = field(default_factory=dict)

    @property
    def whole(self) -> bool:
        """Whether nothing was left out."""
        return not self.unscanned and not self.repaired.failures


@dataclass(frozen=True, slots=True)
class WalkProgress:
    """The progress of a round: sets passed since it began or continued, and sets in all."""

    passed: int
    total: int
    repaired: Repaired


@dataclass(slots=True)
class _Round:
    """A round under way: its scan, what it has done, and the sets that it has passed."""

    scan: Scan
    done: Repaired
    total: int
    passed: int = 0


def walker_name() -> str:
    """Return who walks: where this process runs, and its number."""
    host = "".join(sign for sign in socket.gethostname() if sign.isalnum() or sign in ".-")[:60]
    return f"{host or 'host'}-{os.getpid()}"


class Walker:
    """Walks a farm's timelines, ``rate`` keys a second at most.

    With ``state``, a file, an interrupted round continues where it was, except for up to 2000 keys
    that are compared again; one of another farm, or before a move, begins from the start. Timelines
    are found ``over`` some of the clusters, or over all that the farm has when a round begins. A
    round notes itself on the farm, as a walk or as part of a move; see ``notes``.
    """

    def __init__(
        self,
        farm: AsyncFarm,
        *,
        rate: int = 1000,
        state: Path | None = None,
        chance: random.Random | None = None,
        tell: Callable[[WalkProgress], None] = lambda _: None,
        over: Sequence[Cluster] | None = None,
        noted_as: Kind = "walk",
    ) -> None:
        self._farm = farm
        self._over = over
        self._pace = WalkPace(check_int(rate, "rate", 1, MAX_RATE))
        self._state_file = WalkStateFile(state)
        self._chance = chance or random.Random()
        self._tell = tell
        self._noted_as = noted_as

    async def walk(self, stop: asyncio.Event | None = None) -> Walked | None:
        """Walk one round, or the rest of one; None when ``stop`` was set before its end.

        An instance that cannot be scanned is named in the result. Raises FarmUnreachable when that
        is true of all of them.
        """
        over = await self._clusters()
        positions = self._state_file.read(self._farm.layout)
        total = await count_sets(over)
        notes = WalkNotes(self._farm.clusters, self._noted_as, walker_name())
        walk = _Round(Scan(over, positions, self._chance), positions.done, total)
        await notes.note(0, total, walk.done)
        try:
            whole = await self._walk(walk, positions, notes, stop)
        except BaseException:
            await notes.write("failed", walk.passed, total, walk.done)
            raise
        failed = walk.scan.failed
        if not whole:
            await notes.write("stopped", walk.passed, total, walk.done, len(failed))
            return None
        if len(failed) == sum(len(cluster.pool.instances) for cluster in over):
            await notes.write("failed", walk.passed, total, walk.done, len(failed))
            raise FarmUnreachable({name: str(error) for name, error in failed.items()})
        self._state_file.forget()
        await notes.write("done", walk.passed, total, walk.done, len(failed))
        return Walked(walk.done, failed)

    async def _walk(
        self,
        walk: _Round,
        positions: WalkPositions,
        notes: WalkNotes,
        stop: asyncio.Event | None,
    ) -> bool:
        """Compare and repair batch by batch; returns whether it came to the end."""
        async for batch in walk.scan.batches():
            self._state_file.note(positions)
            for at in range(0, len(batch.keys), AT_ONCE):
                if stop is not None and stop.is_set():
                    return False
                keys = batch.keys[at : at + AT_ONCE]
                await self._pace.wait(len(keys))
                walk.done = walk.done.plus(await self._farm.repair(keys))
                passed = walk.passed + batch.sets * at // len(batch.keys)
                self._tell(WalkProgress(passed, walk.total, walk.done))
                await notes.note(passed, walk.total, walk.done)
            walk.passed += batch.sets
            positions.done = walk.done
            self._tell(WalkProgress(walk.passed, walk.total, walk.done))
        return True

    async def _clusters(self) -> Sequence[Cluster]:
        if self._over is not None:
            return self._over
        await self._farm.follow()
        return self._farm.clusters


async def count_sets(clusters: Sequence[Cluster]) -> int:
    """Return how many sets the instances that serve hold; raises FarmUnreachable if none does."""
    looks = await asyncio.gather(*(cluster.look() for cluster in clusters))
    found = [(n, instance) for n, of_cluster in enumerate(looks, 1) for instance in of_cluster]
    if not any(instance.up for _, instance in found):
        raise FarmUnreachable({f"{n} {instance.instance}": instance.fault for n, instance in found})
    return sum(instance.keys for _, instance in found)


class WalkPace:
    """Limits work to a rate: what comes too early waits."""

    def __init__(self, rate: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._rate = rate
        self._clock = clock
        self._free_at = clock()

    async def wait(self, n: int) -> None:
        """Wait until n more may be done."""
        now = self._clock()
        begin = max(now, self._free_at)
        self._free_at = begin + n / self._rate
        if begin > now:
            await asyncio.sleep(begin - now)


# ── Sampling ──────────────────────────────────────────────────────────────────────────────────────
# How far each instance of a farm is behind, estimated by a sample of timelines.


class Sample(NamedTuple):
    """Of one instance: timelines compared, and elements of them that it lacks or has outdated."""

    keys: int = 0
    behind: int = 0


async def sample(
    farm: AsyncFarm, count: int, chance: random.Random
) -> dict[tuple[int, str], Sample]:
    """Compare about ``count`` random timelines of each instance on all clusters.

    Returns a sample by number of the cluster, from 1 on, and instance. Changes nothing.
    """
    places = [(c, p) for c in farm.clusters for p in range(len(c.pool.instances))]
    picked = await asyncio.gather(*(_pick(c, p, count, chance) for c, p in places))
    keys = list(dict.fromkeys(key for found in picked for key in found))
    behind = (await farm.compare(keys)).behind
    samples: dict[tuple[int, str], Sample] = {}
    for number, (cluster, lacking) in enumerate(zip(farm.clusters, behind, strict=True), 1):
        for instance, share in cluster.pool.split(keys):
            lacks = sum(lacking.get(key, 0) for key in share)
            samples[number, instance.where] = Sample(len(share), lacks)
    return samples


async def _pick(cluster: Cluster, place: int, count: int, chance: random.Random) -> list[bytes]:
    """Return some keys of an instance; none of one that does not answer."""
    try:
        return await cluster.random_keys(place, count, chance)
    except StoreError:
        return []
