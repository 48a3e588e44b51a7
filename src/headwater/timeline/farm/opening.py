"""How both farms are opened, and the layout in force: which clusters are written and read."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import NamedTuple, Self

from headwater.errors import InvalidInput, StoreError
from headwater.kernel.inputs import Duration, check_int, check_ms
from headwater.timeline.cluster import Changes, Cluster, WriteBatch
from headwater.timeline.farm.options import (
    DEFAULT_QUORUM,
    DEFAULT_TIMEOUT_MS,
    MAX_RATE,
    MAX_TIMEOUT_MS,
    FarmOptions,
    FarmReports,
    Horizon,
    RisingHorizon,
    parse_farm,
    parse_quorum,
)
from headwater.timeline.farm.reading import READ_STRATEGIES, Background, Reader, write
from headwater.timeline.farm.repairing import REPAIR_STRATEGIES, Repairer
from headwater.timeline.layout import SETTLED, SWITCHING, FarmLayout, safe_farm
from headwater.timeline.records import DEFAULT_SIZE, Written, check_keep, check_max_size

# ── Active layout ─────────────────────────────────────────────────────────────────────────────────
# The layout in force: which clusters a farm writes to, which it reads, and what repairs them.
#
# Most farms are never moved, and have one group of clusters. A farm that is being moved has two,
# and a write is done when a quorum of each group has it.


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


# ── Opening ───────────────────────────────────────────────────────────────────────────────────────


class OpenedFarm(ABC):
    """What is opened by a farm's text and options: Farm and AsyncFarm."""

    @abstractmethod
    def __init__(self, farm: str, options: FarmOptions) -> None: ...

    @classmethod
    def open(
        cls,
        farm: str,
        *,
        write_quorum: int | str = DEFAULT_QUORUM,
        read_strategy: str = "SendAllReadAll",
        repair_strategy: str = "AllRepairs",
        max_size: int = DEFAULT_SIZE,
        keep: int | None = None,
        horizon: Horizon = None,
        hash: str = "murmur3",
        read_rate: int = 2000,
        promote_after_ms: Duration = 50,
        repair_rate: int = 1000,
        timeout_ms: Duration = DEFAULT_TIMEOUT_MS,
    ) -> Self:
        """Open a farm: clusters separated by ";", their instances by ",", as "a:1,b:1;c:1".

        An instance is host:port or the URL of one server. Connections are opened with their first
        use, so a farm opens although servers are down. All programs that use the same servers must
        agree on the number and order of instances, on ``hash`` (murmur3, fnv or fnva), on
        ``max_size`` and on ``keep``. A cluster that has the word WRITEONLY among its instances
        takes writes, and counts for the quorum, but is not read.

        ``write_quorum`` is how many clusters must take a write, or a percentage of them, rounded
        up. ``read_strategy`` is SendOneReadOne, SendAllReadAll, SendAllReadFirstLinger or
        SendVarReadFirstLinger; the latter asks all clusters for up to ``read_rate`` keys a second,
        and beyond that one, and the others when it has not answered after ``promote_after_ms``.
        ``repair_strategy`` is AllRepairs, NoRepairs or RateLimitedRepairs, which repairs up to
        ``repair_rate`` elements a second.

        A key keeps the newest ``keep`` elements, deleted ones counted, by default twice
        ``max_size``, and shows at most ``max_size`` of them. What Roshi wrote fits into the
        default; ``keep`` may be as low as ``max_size`` where Roshi never wrote. With a
        ``horizon``, a score or a function that returns one, what is below it is forgotten and
        rejected. An instance that does not answer within ``timeout_ms`` has failed.

        Raises InvalidInput.
        """
        options = FarmOptions(
            write_quorum=write_quorum,
            hash=hash,
            read_strategy=_known(read_strategy, READ_STRATEGIES, "read_strategy"),
            repair_strategy=_known(repair_strategy, REPAIR_STRATEGIES, "repair_strategy"),
            max_size=check_max_size(max_size),
            keep=check_keep(keep, max_size),
            read_rate=check_int(read_rate, "read_rate", 0, MAX_RATE),
            promote_after_ms=check_ms(promote_after_ms, "promote_after_ms", 0, MAX_TIMEOUT_MS),
            repair_rate=check_int(repair_rate, "repair_rate", 0, MAX_RATE),
            timeout_ms=check_ms(timeout_ms, "timeout_ms", 1, MAX_TIMEOUT_MS),
            horizon=RisingHorizon(horizon),
            reports=FarmReports(safe_farm(farm) if isinstance(farm, str) else ""),
        )
        return cls(farm, options)


def _known(name: str, strategies: Iterable[str], what: str) -> str:
    """Return the name of a strategy, which may be given in any case; raises InvalidInput."""
    found = {strategy.lower(): strategy for strategy in strategies}
    if not isinstance(name, str) or name.lower() not in found:
        raise InvalidInput(f"{what} must be one of {', '.join(strategies)}, not {name!r}")
    return found[name.lower()]
