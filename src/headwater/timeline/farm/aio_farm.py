"""AsyncFarm: several clusters, each a copy of all timelines, behind one set of verbs.

It belongs to the event loop it is first used in; its tasks may all use it at once. What it
promises stands at Farm, which drives it from any thread.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from types import TracebackType
from typing import Final, Self, TypeVar

from headwater.errors import QuorumFailed, TimelineError
from headwater.inputs import check_int
from headwater.timeline.cluster.calls import Window
from headwater.timeline.cluster.cluster import Cluster
from headwater.timeline.farm.active_layout import ActiveLayout
from headwater.timeline.farm.background import Background
from headwater.timeline.farm.disputes import Failures
from headwater.timeline.farm.full_repair import (
    compare_whole,
    read_merged,
    repair_whole,
    size_of,
)
from headwater.timeline.farm.options import (
    DEFAULT_QUORUM,
    DEFAULT_TIMEOUT_MS,
    MAX_RATE,
    MAX_TIMEOUT_MS,
    READ_STRATEGIES,
    REPAIR_STRATEGIES,
    FarmOptions,
    Horizon,
    RisingHorizon,
    parse_strategy,
)
from headwater.timeline.farm.reading import Answer, SelectQuery
from headwater.timeline.farm.scoring import score_of
from headwater.timeline.farm.shaping import check_keys, check_pairs, check_tuples, group, shape
from headwater.timeline.law import State
from headwater.timeline.layout import SETTLED, FarmLayout
from headwater.timeline.metrics import Metrics, NoMetrics
from headwater.timeline.records import (
    DEFAULT_SIZE,
    MAX_SIZE,
    Compared,
    InstanceStatus,
    Key,
    Member,
    Place,
    Repaired,
    Selected,
    Spelled,
    Tuple,
    Written,
    check_max_size,
    check_place,
)

T = TypeVar("T")

# How often a farm may move during one call.
_MOST_MOVES: Final = 5


class AsyncFarm:
    """A farm of clusters for asyncio; see Farm for what it promises."""

    def __init__(self, farm: str, options: FarmOptions, horizon: Horizon) -> None:
        self._options = options
        self._metrics = options.metrics
        self._horizon = RisingHorizon(horizon)
        self._background = Background()
        self._following = asyncio.Lock()
        self._active = self._activate(FarmLayout(0, SETTLED, "", farm))

    def _activate(self, layout: FarmLayout) -> ActiveLayout:
        return ActiveLayout(layout, self._options, self._horizon, self._background)

    @property
    def clusters(self) -> tuple[Cluster, ...]:
        """All clusters that writes go to."""
        return self._active.clusters

    @property
    def source(self) -> tuple[Cluster, ...]:
        """The clusters that have all timelines: while a farm is moved, the old ones."""
        return self._active.source

    @property
    def layout(self) -> FarmLayout:
        """How the farm lies, as far as is known here."""
        return self._active.layout

    @classmethod
    def open(
        cls,
        farm: str,
        *,
        write_quorum: int | str = DEFAULT_QUORUM,
        read_strategy: str = "SendAllReadAll",
        repair_strategy: str = "AllRepairs",
        max_size: int = DEFAULT_SIZE,
        horizon: Horizon = None,
        hash: str = "murmur3",
        read_rate: int = 2000,
        promote_after_ms: int = 50,
        repair_rate: int = 1000,
        timeout_ms: int = DEFAULT_TIMEOUT_MS,
        metrics: Metrics | None = None,
    ) -> AsyncFarm:
        """See Farm.open; nothing is sent yet."""
        options = FarmOptions(
            write_quorum=write_quorum,
            hash=hash,
            read_strategy=parse_strategy(read_strategy, READ_STRATEGIES, "read_strategy"),
            repair_strategy=parse_strategy(repair_strategy, REPAIR_STRATEGIES, "repair_strategy"),
            max_size=check_max_size(max_size),
            read_rate=check_int(read_rate, "read_rate", 0, MAX_RATE),
            promote_after_ms=check_int(promote_after_ms, "promote_after_ms", 0, MAX_TIMEOUT_MS),
            repair_rate=check_int(repair_rate, "repair_rate", 0, MAX_RATE),
            timeout_ms=check_int(timeout_ms, "timeout_ms", 1, MAX_TIMEOUT_MS),
            metrics=NoMetrics() if metrics is None else metrics,
        )
        return cls(farm, options, horizon)

    async def _by_layout(self, work: Callable[[ActiveLayout], Awaitable[T]]) -> T:
        """Do something by the present layout, and again by the next should the farm have moved.

        Whatever was done in part by an old layout does no harm.
        """
        for _ in range(_MOST_MOVES):
            active = self._active
            if not active.outdated:
                try:
                    result = await work(active)
                except TimelineError:
                    if not active.outdated:
                        raise
                else:
                    if not active.outdated:
                        return result
            await self.follow(active)
        return await work(self._active)

    async def follow(self, active: ActiveLayout | None = None) -> None:
        """Look whether the farm has moved from a active, the present one if not said."""
        active = active or self._active
        async with self._following:
            if self._active is not active:
                return
            newer = await active.newer()
            if newer is not None:
                self._active = self._activate(newer)
                self._background.start(active.close())

    async def insert(self, tuples: Iterable[Tuple]) -> Written:
        """See Farm.insert."""
        return await self.write("insert", check_tuples(tuples))

    async def delete(self, tuples: Iterable[Tuple]) -> Written:
        """See Farm.delete."""
        return await self.write("delete", check_tuples(tuples))

    async def write(self, verb: str, operations: Sequence[Spelled]) -> Written:
        """Insert or delete what was checked already."""
        changes = group(operations, deleted=verb == "delete")
        count = len(operations)
        began = time.perf_counter()
        self._metrics.count(f"{verb}_call")
        self._metrics.count(f"{verb}_record_count", count)
        if not changes:
            return Written()
        try:
            written = await self._by_layout(lambda active: active.write(changes))
        except QuorumFailed:
            self._metrics.count(f"{verb}_quorum_failure")
            raise
        finally:
            elapsed = time.perf_counter() - began
            self._metrics.time(f"{verb}_call_duration", elapsed)
            self._metrics.time(f"{verb}_record_duration", elapsed / count)
        for name, n in written._asdict().items():
            if n:
                self._metrics.count(f"write_{name}", n)
        return written

    async def select(self, keys: Iterable[Key], offset: int = 0, limit: int = 10) -> Selected:
        """See Farm.select."""
        check_int(offset, "offset", 0, MAX_SIZE)
        return await self._select(keys, Window(offset, check_int(limit, "limit", 1, MAX_SIZE)))

    async def select_range(
        self,
        keys: Iterable[Key],
        start: Place = None,
        stop: Place = None,
        limit: int = 10,
    ) -> Selected:
        """See Farm.select_range."""
        check_int(limit, "limit", 1, MAX_SIZE)
        window = Window(0, limit, check_place(start, "start"), check_place(stop, "stop"))
        return await self._select(keys, window)

    async def _select(self, keys: Iterable[Key], window: Window) -> Selected:
        asked = check_keys(keys)
        answer = await self.read(asked.values(), window)
        return shape(asked, answer.columns, answer.failures)

    async def read(self, keys: Iterable[bytes], window: Window) -> Answer:
        """Select what was checked already; a key that has nothing may be left out."""
        asked = list(dict.fromkeys(keys))
        limit = min(window.limit, self._options.max_size - window.offset)
        if not asked or limit <= 0:
            return Answer({}, Failures(), 0.0)
        query = SelectQuery(asked, window._replace(limit=limit), self._horizon())
        return await self._by_layout(lambda active: active.reader.read(query))

    async def score(
        self, pairs: Iterable[tuple[Key, Member]]
    ) -> dict[tuple[Key, Member], State | None]:
        """See Farm.score."""
        asked = check_pairs(pairs)
        return await self._by_layout(
            lambda active: score_of(active.readable, asked, self._horizon())
        )

    async def repair(self, keys: Iterable[Key]) -> Repaired:
        """See Farm.repair."""
        asked = list(dict.fromkeys(check_keys(keys).values()))
        size, metrics = self._options.max_size, self._metrics
        return await self._by_layout(
            lambda active: repair_whole(active.clusters, asked, size, self._horizon(), metrics)
        )

    async def compare(self, keys: Iterable[Key]) -> Compared:
        """See Farm.compare."""
        asked = check_keys(keys)
        raw = list(dict.fromkeys(asked.values()))
        size, metrics = self._options.max_size, self._metrics
        changes, figures = await self._by_layout(
            lambda active: compare_whole(active.clusters, raw, size, self._horizon(), metrics)
        )
        behind = [
            {key: size_of(lacking[one]) for key, one in asked.items() if one in lacking}
            for lacking in changes
        ]
        return Compared(behind, figures.elements, figures.differing, figures.failures)

    async def states(self, keys: Iterable[Key]) -> dict[Key, dict[bytes, State]]:
        """See Farm.states."""
        asked = check_keys(keys)
        raw = list(dict.fromkeys(asked.values()))
        size = self._options.max_size
        found = await self._by_layout(
            lambda active: read_merged(active.readable, raw, size, self._horizon())
        )
        return {key: found[one] for key, one in asked.items()}

    async def status(self) -> list[InstanceStatus]:
        """See Farm.status."""
        found = await asyncio.gather(*(cluster.look() for cluster in self.clusters))
        return [s._replace(cluster=n) for n, cluster in enumerate(found, 1) for s in cluster]

    async def settle(self) -> None:
        """See Farm.settle."""
        await self._background.finish()
        await self._active.repairer.finish()

    async def close(self) -> None:
        """See Farm.close."""
        await self._background.finish()
        await self._active.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()
