"""The layout in force: which clusters a farm writes to, which it reads, and what repairs them.

Most farms are never moved, and have one group of clusters. A farm that is being moved has two, and
a write is done when a quorum of each group has it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import NamedTuple

from headwater.errors import StoreError
from headwater.timeline.cluster.calls import Changes, WriteBatch
from headwater.timeline.cluster.cluster import Cluster
from headwater.timeline.farm.options import FarmOptions, parse_farm, parse_quorum
from headwater.timeline.farm.reading import Reader
from headwater.timeline.farm.repairing import Repairer
from headwater.timeline.farm.writing import Background, write
from headwater.timeline.layout import SETTLED, SWITCHING, FarmLayout
from headwater.timeline.records import Written


class ClusterGroup(NamedTuple):
    """Clusters with copies of the same timelines, those of them that are read, and their quorum."""

    clusters: list[Cluster]
    readable: list[Cluster]
    quorum: int

    @classmethod
    def open(cls, farm: str, options: FarmOptions, epoch: int) -> ClusterGroup:
        """Make the clusters that a text names; nothing is sent yet. Raises InvalidInput."""
        plans = parse_farm(farm)
        clusters = [
            Cluster.open(plan.urls, options.hash, options.timeout_ms, options.keep, epoch)
            for plan in plans
        ]
        readable = [c for c, plan in zip(clusters, plans, strict=True) if not plan.write_only]
        return cls(clusters, readable, parse_quorum(options.write_quorum, len(plans)))


class ActiveLayout:
    """One layout of a farm, in use."""

    def __init__(
        self,
        layout: FarmLayout,
        options: FarmOptions,
        background: Background,
    ) -> None:
        self.layout = layout
        farms = [layout.new] if layout.phase == SETTLED else [layout.old, layout.new]
        self._groups = [ClusterGroup.open(farm, options, layout.epoch) for farm in farms]
        read = self._groups[-1 if layout.phase == SWITCHING else 0]
        self.readable = tuple(read.readable)
        self.clusters = tuple(c for group in self._groups for c in group.clusters)
        self.source = tuple(self._groups[0].clusters)
        self._horizon = options.horizon
        self._background = background
        self.repairer = Repairer(self.clusters, options)
        self.reader = Reader(read.readable, options, self.repairer, background)

    @property
    def outdated(self) -> bool:
        """Whether an instance has refused a call because there is a newer layout."""
        return any(cluster.outdated for cluster in self.clusters)

    async def write(self, changes: Changes) -> Written:
        """Write to all clusters; done when a quorum of each group has it. Raises QuorumFailed."""
        batch = WriteBatch(changes, self._horizon())
        first, *others = (
            write(group.clusters, batch, group.quorum, self._background) for group in self._groups
        )
        if not others:
            return await first
        return (await asyncio.gather(first, *others))[0]

    async def newer(self) -> FarmLayout | None:
        """Return a newer layout that an instance knows, or None."""
        found = await asyncio.gather(*(cluster.layouts() for cluster in self.clusters))
        newest = newest_of([layout for of_cluster in found for layout in of_cluster])
        if newest is not None and newest.epoch > self.layout.epoch:
            return newest
        for cluster in self.clusters:
            # The instance that refused the call is unreachable by now.
            cluster.outdated = False
        return None

    async def close(self) -> None:
        """Drop queued repairs, and close all connections."""
        await self.repairer.close()
        for cluster in self.clusters:
            await cluster.close()


def newest_of(found: Sequence[FarmLayout | StoreError | None]) -> FarmLayout | None:
    """Return the layout of the highest epoch that instances know."""
    return max((item for item in found if isinstance(item, FarmLayout)), default=None)
