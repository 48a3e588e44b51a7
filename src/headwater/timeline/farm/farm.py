"""AsyncFarm: several clusters, each a copy of all timelines, behind one set of verbs.

It belongs to the event loop it is first used in; its tasks may all use it at once. What it
promises stands at Farm, which drives it from any thread.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Sequence
from types import TracebackType
from typing import Self

from headwater.errors import QuorumFailed
from headwater.inputs import check_int
from headwater.timeline.cluster.calls import Window
from headwater.timeline.cluster.cluster import Cluster
from headwater.timeline.farm.background import Background
from headwater.timeline.farm.options import (
    MAX_RATE,
    MAX_TIMEOUT_MS,
    READ_STRATEGIES,
    REPAIR_STRATEGIES,
    Horizon,
    Options,
    RisingHorizon,
    parse_farm,
    parse_quorum,
    parse_strategy,
)
from headwater.timeline.farm.reading import Query, Reader
from headwater.timeline.farm.repairing import Repairer
from headwater.timeline.farm.scoring import score_of
from headwater.timeline.farm.shaping import check_keys, check_pairs, group, shape
from headwater.timeline.farm.whole import compare_whole, repair_whole, size_of
from headwater.timeline.farm.writing import write
from headwater.timeline.law import State
from headwater.timeline.metrics import Metrics, NoMetrics
from headwater.timeline.records import (
    DEFAULT_SIZE,
    MAX_SIZE,
    InstanceStatus,
    Key,
    Member,
    Place,
    Repaired,
    Selected,
    Tuple,
    Written,
    check_max_size,
    check_place,
)


class AsyncFarm:
    """A farm of clusters for asyncio; see Farm for what it promises."""

    def __init__(
        self,
        clusters: Sequence[Cluster],
        readable: Sequence[Cluster],
        options: Options,
        horizon: Horizon,
    ) -> None:
        self.clusters = tuple(clusters)
        self._options = options
        self._metrics = options.metrics
        self._horizon = RisingHorizon(horizon)
        self._background = Background()
        self._readable = tuple(readable)
        self._repairer = Repairer(clusters, options, self._horizon)
        self._reader = Reader(readable, options, self._repairer, self._background)

    @classmethod
    def open(
        cls,
        farm: str,
        *,
        write_quorum: int | str = "51%",
        read_strategy: str = "SendAllReadAll",
        repair_strategy: str = "AllRepairs",
        max_size: int = DEFAULT_SIZE,
        horizon: Horizon = None,
        hash: str = "murmur3",
        read_rate: int = 2000,
        promote_after_ms: int = 50,
        repair_rate: int = 1000,
        timeout_ms: int = 3000,
        metrics: Metrics | None = None,
    ) -> AsyncFarm:
        """See Farm.open; nothing is sent yet."""
        plans = parse_farm(farm)
        options = Options(
            write_quorum=parse_quorum(write_quorum, len(plans)),
            read_strategy=parse_strategy(read_strategy, READ_STRATEGIES, "read_strategy"),
            repair_strategy=parse_strategy(repair_strategy, REPAIR_STRATEGIES, "repair_strategy"),
            max_size=check_max_size(max_size),
            read_rate=check_int(read_rate, "read_rate", 0, MAX_RATE),
            promote_after_ms=check_int(promote_after_ms, "promote_after_ms", 0, MAX_TIMEOUT_MS),
            repair_rate=check_int(repair_rate, "repair_rate", 0, MAX_RATE),
            timeout_ms=check_int(timeout_ms, "timeout_ms", 1, MAX_TIMEOUT_MS),
            metrics=NoMetrics() if metrics is None else metrics,
        )
        clusters = [
            Cluster.open(plan.urls, hash, options.timeout_ms, options.max_size) for plan in plans
        ]
        readable = [c for c, plan in zip(clusters, plans, strict=True) if not plan.write_only]
        return cls(clusters, readable, options, horizon)

    async def insert(self, tuples: Iterable[Tuple]) -> Written:
        """See Farm.insert."""
        return await self._write(tuples, "insert")

    async def delete(self, tuples: Iterable[Tuple]) -> Written:
        """See Farm.delete."""
        return await self._write(tuples, "delete")

    async def _write(self, tuples: Iterable[Tuple], verb: str) -> Written:
        changes, count = group(tuples, deleted=verb == "delete")
        began = time.perf_counter()
        self._metrics.count(f"{verb}_call")
        self._metrics.count(f"{verb}_record_count", count)
        if not changes:
            return Written()
        quorum = self._options.write_quorum
        try:
            written = await write(self.clusters, changes, self._horizon(), quorum, self._background)
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
        limit = min(window.limit, self._options.max_size - window.offset)
        if not asked or limit <= 0:
            return shape(asked, {}, [])
        window = window._replace(limit=limit)
        query = Query(list(dict.fromkeys(asked.values())), window, self._horizon())
        answer = await self._reader.read(query)
        return shape(asked, answer.columns, answer.failures)

    async def score(
        self, pairs: Iterable[tuple[Key, Member]]
    ) -> dict[tuple[Key, Member], State | None]:
        """See Farm.score."""
        asked = check_pairs(pairs)
        return await score_of(self._readable, asked, self._horizon())

    async def repair(self, keys: Iterable[Key]) -> Repaired:
        """See Farm.repair."""
        asked = list(dict.fromkeys(check_keys(keys).values()))
        return await repair_whole(
            self.clusters, asked, self._options.max_size, self._horizon(), self._metrics
        )

    async def compare(self, keys: Iterable[Key]) -> list[dict[Key, int]]:
        """See Farm.compare."""
        asked = check_keys(keys)
        raw = list(dict.fromkeys(asked.values()))
        changes, _ = await compare_whole(
            self.clusters, raw, self._options.max_size, self._horizon(), self._metrics
        )
        return [
            {key: size_of(lacking[one]) for key, one in asked.items() if one in lacking}
            for lacking in changes
        ]

    async def status(self) -> list[InstanceStatus]:
        """See Farm.status."""
        found = await asyncio.gather(*(cluster.look() for cluster in self.clusters))
        return [s._replace(cluster=n) for n, cluster in enumerate(found, 1) for s in cluster]

    async def settle(self) -> None:
        """See Farm.settle."""
        await self._background.finish()
        await self._repairer.finish()

    async def close(self) -> None:
        """See Farm.close."""
        await self._background.finish()
        await self._repairer.close()
        for cluster in self.clusters:
            await cluster.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()
