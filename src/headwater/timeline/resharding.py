"""Live resharding: write to both, copy what is there, switch, and clean up.

    1  the layout "copying" is announced to every instance, old and new. From then on all writes go
       to both
    2  every timeline of the old clusters is compared on old and new, and copied by the merge rule
    3  "switching" is announced. Reads go to the new clusters, writes still to both
    4  "settled" is announced. The old clusters are no longer used
    5  timelines are removed from instances that stay, but no longer have them

Reads and writes are served during all of this: an instance refuses a farm that uses an old layout;
the farm loads the new one and retries. Each step may be repeated, so when the program dies, another
run continues; what is copied twice is the same. Nothing is lost, since a step begins only when
every instance knows the layout of the one before it.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from headwater.errors import FarmUnreachable, ReshardRefused, StoreError
from headwater.timeline.cluster import Cluster
from headwater.timeline.farm.aio_farm import AsyncFarm
from headwater.timeline.farm.opening import newest_of
from headwater.timeline.farm.options import parse_farm
from headwater.timeline.layout import COPYING, SETTLED, SWITCHING, FarmLayout
from headwater.timeline.records import Repaired
from headwater.timeline.walker import Walker, WalkProgress, WalkStateFile

_STEP: Final = 500
_SAMPLED: Final = 1000


@dataclass(frozen=True, slots=True)
class Estimate:
    """What a move would cost: timelines in all, those to be copied, and how long it takes.

    ``share`` is of a sample; ``seconds`` is at the rate of the walk, over all timelines.
    """

    timelines: int
    copied: int
    share: float
    seconds: float


@dataclass(frozen=True, slots=True)
class ReshardResult:
    """What a move did: what was compared and copied, and how many timelines were removed.

    ``left`` are instances that are no longer used; they still hold what they held.
    """

    repaired: Repaired
    cleaned: int
    left: list[str]


class Resharder:
    """Moves the farm ``old`` to ``new``; ``words`` are further arguments of AsyncFarm.open."""

    def __init__(
        self,
        old: str,
        new: str,
        *,
        rate: int = 1000,
        state: Path | None = None,
        tell: Callable[[WalkProgress], None] = lambda _: None,
        **words: Any,
    ) -> None:
        self._new = "".join(new.split())
        self._rate = rate
        self._state = state
        self._state_file = WalkStateFile(state)
        self._tell = tell
        self._old = AsyncFarm.open(old, **words)
        # Only to reach its instances before the farm knows of them; never read or written.
        self._target = AsyncFarm.open(new, **words)

    async def run(self, stop: asyncio.Event | None = None) -> ReshardResult | None:
        """Move, or continue a move; returns None when ``stop`` was set, and it can be continued.

        Raises ReshardRefused when another move is under way, when an instance is unreachable, and
        when a new one is not empty; InvalidInput when ``state`` holds something else.
        """
        layout = await self._present()
        self._state_file.read(layout)
        before = self._names()
        if layout.phase == SETTLED and not _same(layout.new, self._new):
            await self._check_empty()
            layout = FarmLayout(layout.epoch + 1, COPYING, layout.new, self._new)
        repaired = Repaired()
        if layout.phase == COPYING:
            await self._announce(layout)
            copied = await self._copy(stop)
            if copied is None:
                return None
            repaired = copied
            layout = layout._replace(epoch=layout.epoch + 1, phase=SWITCHING)
        if layout.phase == SWITCHING:
            await self._announce(layout)
            layout = layout._replace(epoch=layout.epoch + 1, phase=SETTLED)
        await self._announce(layout)
        cleaned, left = await self._clean(before)
        return ReshardResult(repaired, cleaned, left)

    async def abort(self) -> ReshardResult:
        """Return to the old farm, as long as the new one is not read; raises as run does."""
        layout = await self._present()
        self._state_file.read(layout)
        before = self._names()
        if layout.phase != COPYING:
            raise ReshardRefused(
                f"there is no move to give up: the farm is {layout.phase}; run the "
                "reshard without --abort to finish one"
            )
        await self._announce(FarmLayout(layout.epoch + 1, SETTLED, layout.new, layout.old))
        self._state_file.forget()
        cleaned, left = await self._clean(before)
        return ReshardResult(Repaired(), cleaned, left)

    async def estimate(self) -> Estimate:
        """Return what a move would cost, by a sample of timelines; changes nothing."""
        layout = await self._present()
        old, new = self._old.source, self._target.clusters
        sets = [sum(one.keys for one in await cluster.look()) for cluster in old]
        keys = await self._sample(old)
        held = [_holders(old, key) for key in keys]
        moving = sum(
            not set(_holders(new, key)) <= set(now) for key, now in zip(keys, held, strict=True)
        )
        share = moving / len(keys) if keys and not _same(layout.new, self._new) else 0.0
        timelines = max(sets)
        return Estimate(timelines, round(timelines * share), share, timelines / self._rate)

    async def close(self) -> None:
        """Close all connections."""
        await self._old.close()
        await self._target.close()

    async def _present(self) -> FarmLayout:
        """Return the present layout, by all instances of both; raises ReshardRefused."""
        await self._old.follow()
        clusters = (*self._old.clusters, *self._target.clusters)
        found = [known for cluster in clusters for known in await cluster.layouts()]
        for known in found:
            if isinstance(known, StoreError):
                raise ReshardRefused(f"all instances, old and new, are needed to move: {known}")
        layout = newest_of(found) or self._old.layout
        if layout.phase != SETTLED and not _same(layout.new, self._new):
            raise ReshardRefused(
                f"a move to {layout.safe.new!r} is under way; finish that one, or give it up by "
                "--abort"
            )
        return layout

    async def _check_empty(self) -> None:
        known = {i.where for cluster in self._old.clusters for i in cluster.pool.instances}
        for cluster in self._target.clusters:
            for instance in await cluster.look():
                if instance.instance not in known and instance.keys:
                    raise ReshardRefused(
                        f"the new instance {instance.instance} holds {instance.keys} keys, which "
                        "would become part of the farm; empty it first"
                    )

    async def _announce(self, layout: FarmLayout) -> None:
        """Announce a layout to every instance; raises ReshardRefused when one knows another."""
        for cluster in (*self._old.clusters, *self._target.clusters):
            try:
                known = await cluster.announce(layout)
            except StoreError as error:
                raise ReshardRefused(
                    f"the move could not be announced to an instance: {error}; nothing is lost: "
                    "run the same reshard again when it is available"
                ) from error
            if any(one != layout for one in known):
                raise ReshardRefused(
                    "another program moves this farm at the same time; check it, and run again"
                )
        await self._old.follow()

    async def _copy(self, stop: asyncio.Event | None) -> Repaired | None:
        walker = Walker(
            self._old,
            rate=self._rate,
            state=self._state,
            tell=self._tell,
            over=self._old.source,
            noted_as="move",
        )
        try:
            walked = await walker.walk(stop)
        except FarmUnreachable as error:
            raise _not_copied(str(error)) from error
        if walked is None:
            return None
        if not walked.whole:
            away = "; ".join(f"{name}: {error}" for name, error in walked.unscanned.items())
            raise _not_copied(away or "an instance failed")
        return walked.repaired

    async def _clean(self, before: set[str]) -> tuple[int, list[str]]:
        """Remove timelines from instances that are not theirs; returns the instances not used."""
        await self._old.follow()
        homes: dict[str, list[tuple[Cluster, int]]] = {}
        for cluster in self._old.clusters:
            for place, instance in enumerate(cluster.pool.instances):
                homes.setdefault(instance.where, []).append((cluster, place))
        cleaned = 0
        for roles in homes.values():
            cleaned += await _clean_instance(roles)
        return cleaned, sorted(before - homes.keys())

    def _names(self) -> set[str]:
        """Return the names of all instances, old and new."""
        clusters = (*self._old.clusters, *self._target.clusters)
        return {instance.where for cluster in clusters for instance in cluster.pool.instances}

    async def _sample(self, clusters: Sequence[Cluster]) -> list[bytes]:
        chance = random.Random()
        found: dict[bytes, None] = {}
        for place in range(len(clusters[0].pool.instances)):
            found.update(dict.fromkeys(await clusters[0].random_keys(place, _SAMPLED, chance)))
        return list(found)


def _not_copied(why: str) -> ReshardRefused:
    return ReshardRefused(
        f"some timelines could not be copied ({why}); nothing is lost, and all is served as "
        "before: run the same reshard again"
    )


async def _clean_instance(roles: list[tuple[Cluster, int]]) -> int:
    """Remove from an instance what it has in none of its roles; returns how many timelines.

    No program writes them there any more: such calls are refused.
    """
    scanner, place = roles[0]
    cleaned = cursor = 0
    while True:
        cursor, sets = await scanner.scan(place, cursor, _STEP)
        keys = dict.fromkeys(name[:-1] for name in sets)
        strange = [k for k in keys if all(c.pool.index(k) != own for c, own in roles)]
        if strange:
            await scanner.drop(place, strange)
            cleaned += len(strange)
        if not cursor:
            return cleaned


def _holders(clusters: Sequence[Cluster], key: bytes) -> list[str]:
    return [cluster.pool.instances[cluster.pool.index(key)].where for cluster in clusters]


def _same(one: str, other: str) -> bool:
    return parse_farm(one) == parse_farm(other)
