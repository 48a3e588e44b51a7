"""Scrubbing a farm: finds timelines that are damaged, misplaced, or differ between clusters.

It changes nothing; a walk repairs what it can. It works while the farm is in use: what seems wrong
is looked at twice more, and reported only if it was the same both times. While a farm is moved, the
clusters that have all timelines are compared, and the new ones are not.
"""

from __future__ import annotations

import asyncio
import math
import random
import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from headwater.errors import StoreError
from headwater.store.scrubbing import ScrubLedger, ScrubPace, ScrubProgress, ScrubReport, shown
from headwater.timeline.cluster import Cluster
from headwater.timeline.farm.aio_farm import AsyncFarm
from headwater.timeline.farm.repairing import WholeKey, read_whole
from headwater.timeline.records import States, behind, kept, merge
from headwater.timeline.walker import AT_ONCE, STEP, Scan, WalkPositions

# A write that is under way has reached all clusters after this time, unless one is in trouble.
SETTLE_S: Final = 0.2
# The types of keys that a timeline cannot have.
_OTHERS: Final = ("string", "list", "set", "hash", "stream")
_WALK: Final = "headwater timeline walk"
_WHO: Final = "find out who wrote it"


@dataclass(slots=True)
class _Faults:
    """What is wrong with the copy that one cluster has of a timeline."""

    torn: set[bytes] = field(default_factory=set)
    infinite: set[tuple[bytes, float]] = field(default_factory=set)
    excess: int = 0
    behind: States = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.torn or self.infinite or self.excess or self.behind)


async def scrub_farm(
    farm: AsyncFarm,
    *,
    rate_mb_s: float | None = None,
    progress: Callable[[ScrubProgress], object] | None = None,
    stop: Callable[[], bool] | None = None,
) -> ScrubReport:
    """Read every timeline on every cluster, and report what is wrong.

    ``rate_mb_s`` bounds how much is read in a second; ``progress`` is called from time to time;
    once ``stop`` returns True it ends, with what it has seen. Raises StoreError when an instance
    cannot be read: what it holds could not be compared.
    """
    await farm.follow()
    scrub = _FarmScrub(farm, ScrubPace(rate_mb_s, progress, stop, time.monotonic))
    return await scrub.run()


class _FarmScrub:
    def __init__(self, farm: AsyncFarm, pace: ScrubPace) -> None:
        self._farm, self._pace = farm, pace
        # Timelines that cannot be read, since a key has another type.
        self._unreadable: set[bytes] = set()

    async def run(self) -> ScrubReport:
        for look in (self._check_names(), self._check_timelines()):
            async for _ in look:
                for pause_s in self._pace.pauses():
                    await asyncio.sleep(pause_s)
                if self._pace.stopped:
                    return self._pace.report(complete=False)
        return self._pace.report(complete=True)

    # ── Keys of each instance ────────────────────────────────────────────────────────────────────

    async def _check_names(self) -> AsyncIterator[None]:
        """Find keys of other types, and keys on an instance to which no cluster sends them."""
        for number, cluster in enumerate(self._farm.clusters, 1):
            for place, instance in enumerate(cluster.pool.instances):
                where = f"cluster {number}, {instance.where}"
                for kind in (*_OTHERS, "zset"):
                    cursor = -1
                    while cursor:
                        cursor, names = await cluster.scan(place, max(cursor, 0), STEP, kind)
                        self._pace.ledger.bytes += sum(map(len, names))
                        for name in names:
                            if kind != "zset":
                                self._found_other(name, kind, where)
                            elif not self._is_home(instance.where, name[:-1]):
                                home = cluster.pool.instances[cluster.pool.index(name[:-1])].where
                                cure = "check the order of the instances, --hash and who wrote it"
                                self._of(name[:-1]).found(
                                    f"{where}, key {shown(name)}", f"on {home}", "here", cure
                                )
                        yield

    def _is_home(self, where: str, key: bytes) -> bool:
        """Return whether a cluster sends the key there; while a farm is moved, two may."""
        pools = (cluster.pool for cluster in self._farm.clusters)
        return any(pool.instances[pool.index(key)].where == where for pool in pools)

    def _found_other(self, name: bytes, kind: str, where: str) -> None:
        self._unreadable.add(name[:-1])
        place, cure = f"{where}, key {shown(name)}", f"{_WHO}; rename it"
        self._of(name[:-1]).found(place, "a sorted set", f"a {kind}", cure)

    def _of(self, key: bytes) -> ScrubLedger:
        ledger = self._pace.ledger
        ledger.kind, ledger.name = "timeline", shown(key)
        return ledger

    # ── Timelines ────────────────────────────────────────────────────────────────────────────────

    async def _check_timelines(self) -> AsyncIterator[None]:
        """Read each timeline on all clusters; what seems wrong is looked at again."""
        scan = Scan(self._farm.source, WalkPositions(), random.Random())
        async for batch in scan.batches():
            keys = [key for key in batch.keys if key not in self._unreadable]
            doubtful: list[bytes] = []
            for at in range(0, len(keys), AT_ONCE):
                part = keys[at : at + AT_ONCE]
                self._pace.begin("timeline", shown(part[0]))
                self._pace.ledger.objects += len(part)
                looked = await self._look(part)
                doubtful += [key for key, faults in looked.items() if any(faults)]
                yield
            for at in range(0, len(doubtful), AT_ONCE):
                await asyncio.sleep(SETTLE_S)
                first = await self._look(doubtful[at : at + AT_ONCE])
                yield
                await asyncio.sleep(SETTLE_S)
                second = await self._look(list(first))
                for key, faults in second.items():
                    self._report(key, first[key], faults)
                yield
        for error in scan.failed.values():
            raise error

    async def _look(self, keys: list[bytes]) -> dict[bytes, list[_Faults]]:
        """Return what is wrong with each copy of some timelines, in the order of the clusters."""
        clusters = self._farm.source
        copies = await asyncio.gather(*(self._read(cluster, keys) for cluster in clusters))
        keep, horizon = self._farm.keep, self._farm.horizon
        found: dict[bytes, list[_Faults]] = {}
        for key in keys:
            wholes = [copy[key] for copy in copies]
            truth = kept(merge(whole.states for whole in wholes), keep, horizon)
            found[key] = [_judged(whole, truth, keep) for whole in wholes]
        return found

    async def _read(self, cluster: Cluster, keys: Sequence[bytes]) -> dict[bytes, WholeKey]:
        """Read a copy of timelines; raises StoreError."""
        copies: dict[bytes, WholeKey] = {}
        for key, whole in (await read_whole(cluster, keys)).items():
            if isinstance(whole, StoreError):
                raise whole
            # Sets are read one after the other, so that a member may have changed its set.
            torn = sorted(whole.torn)
            if torn:
                known = (await cluster.score({key: torn}))[key]
                if isinstance(known, StoreError):
                    raise known
                torn = [torn[place] for place in known.torn]
            copies[key] = WholeKey(whole.states, set(torn))
            self._pace.ledger.bytes += sum(len(member) + 8 for member in whole.states)
        return copies

    def _report(self, key: bytes, first: list[_Faults], second: list[_Faults]) -> None:
        """Report what two reads found alike."""
        ledger = self._of(key)
        for number, (cluster, one, two) in enumerate(
            zip(self._farm.source, first, second, strict=True), 1
        ):
            place = f"cluster {number}, {cluster.pool.instances[cluster.pool.index(key)].where}"
            for member in sorted(one.torn & two.torn):
                cure = f"{_WALK}: completes the write that stopped half-way"
                ledger.found(f"{place}, member {shown(member)}", "in one set", "in both", cure)
            for member, score in sorted(one.infinite & two.infinite):
                cure = f"{_WHO}; remove it from the sets by ZREM on each cluster"
                ledger.found(f"{place}, member {shown(member)}", "a finite score", score, cure)
            if one.excess and two.excess:
                most, cure = self._farm.keep, f"{_WALK}: trims it; use the same --keep everywhere"
                ledger.found(place, f"at most {most} elements", most + two.excess, cure)
            if lacking := sorted(one.behind.items() & two.behind.items()):
                member, state = lacking[0]
                verb = "deleted" if state.deleted else "inserted"
                example = f"member {shown(member)} {verb} at {state.score!r}"
                found = f"{len(lacking)} elements are missing or older"
                ledger.found(place, f"as elsewhere: {example}", found, _WALK)


def _judged(whole: WholeKey, truth: States, keep: int) -> _Faults:
    states = whole.states
    return _Faults(
        torn=whole.torn,
        infinite={(m, state.score) for m, state in states.items() if math.isinf(state.score)},
        excess=max(len(states) + len(whole.torn) - keep, 0),
        behind=behind(states, truth),
    )
