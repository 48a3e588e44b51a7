"""Returns every timeline of some clusters once, in random order, wherever a copy of it is.

Instances are scanned in turn, the next one chosen at random, and their keys are shuffled: so no
server has all the work at a time, and keys that were made together are far apart. A timeline is two
sets on each cluster; it is returned at the first of them that exists, and skipped at the others.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Sequence
from typing import Final, NamedTuple

from headwater.errors import StoreError
from headwater.timeline.cluster.calls import ReadBatch, Window
from headwater.timeline.cluster.cluster import Cluster
from headwater.timeline.walker.positions import END, ScanPosition, WalkPositions

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
