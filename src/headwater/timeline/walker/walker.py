"""The walker: compares every timeline of a farm as a whole and repairs it, at a limited rate."""

from __future__ import annotations

import asyncio
import os
import random
import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from headwater.errors import FarmUnreachable, StoreError
from headwater.kernel.inputs import check_int
from headwater.timeline.cluster.cluster import Cluster
from headwater.timeline.farm.aio_farm import AsyncFarm
from headwater.timeline.records import Repaired
from headwater.timeline.walker.notes import Kind, WalkNotes
from headwater.timeline.walker.positions import WalkPositions, WalkStateFile
from headwater.timeline.walker.scanning import Scan

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
        done = Repaired(*positions.figures)
        total = await count_sets(over)
        notes = WalkNotes(self._farm.clusters, self._noted_as, walker_name())
        walk = _Round(Scan(over, positions, self._chance), done, total)
        await notes.note(0, total, done)
        try:
            whole = await self._walk(walk, positions, notes, stop)
        except BaseException:
            await notes.end("failed", walk.passed, total, walk.done)
            raise
        failed = walk.scan.failed
        if not whole:
            await notes.end("stopped", walk.passed, total, walk.done, len(failed))
            return None
        if len(failed) == sum(len(cluster.pool.instances) for cluster in over):
            await notes.end("failed", walk.passed, total, walk.done, len(failed))
            raise FarmUnreachable({name: str(error) for name, error in failed.items()})
        self._state_file.forget()
        await notes.end("done", walk.passed, total, walk.done, len(failed))
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
            positions.figures = list(walk.done)
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
