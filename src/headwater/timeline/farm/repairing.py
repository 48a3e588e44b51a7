"""Repairs: clusters that differ are brought to what is true, by the same merge as a write.

Reads ask for repairs and never wait for them. A queue holds what is asked for, each element once;
what finds no room in it, or no rate, is discarded and counted, and asked for again by a later read.
Before anything is written, every cluster is asked what it knows; so a repair never brings back what
was deleted, whatever made somebody ask for it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from headwater.errors import StoreError
from headwater.timeline.cluster.calls import Changes, Known, WriteBatch
from headwater.timeline.cluster.cluster import Cluster
from headwater.timeline.farm.full_repair import add_change, repair_whole, size_of
from headwater.timeline.farm.options import FarmOptions
from headwater.timeline.farm.rates import Bucket
from headwater.timeline.farm.union import verdict

MOST_QUEUED: Final = 10_000
MOST_AT_ONCE: Final = 500


class Repairer:
    """The queue of repairs, and the task that works it off."""

    def __init__(
        self, clusters: Sequence[Cluster], options: FarmOptions, horizon: Callable[[], float]
    ) -> None:
        self._clusters = list(clusters)
        self._strategy = options.repair_strategy
        self._max_size = options.max_size
        self._metrics = options.metrics
        self._horizon = horizon
        self._bucket = Bucket(options.repair_rate)
        self._queue: dict[tuple[bytes, bytes], None] = {}
        self._worker: asyncio.Task[None] | None = None

    def request(self, asked: Mapping[bytes, Sequence[bytes]]) -> None:
        """Ask for the repair of members, by key; never waits."""
        pairs = [(key, member) for key, members in asked.items() for member in members]
        self._metrics.count("repair_call")
        self._metrics.count("repair_request", len(pairs))
        new = [pair for pair in pairs if pair not in self._queue]
        room = MOST_QUEUED - len(self._queue)
        if self._strategy == "NoRepairs":
            room = 0
        elif self._strategy == "RateLimitedRepairs":
            room = self._bucket.take_some(min(room, len(new)))
        if len(new) > room:
            self._metrics.count("repair_discarded", len(new) - room)
        self._queue.update(dict.fromkeys(new[:room]))
        if self._queue and self._worker is None:
            self._worker = asyncio.get_running_loop().create_task(self._work())

    async def finish(self) -> None:
        """Wait until the queue is empty and what was in it is done."""
        while self._worker is not None:
            await asyncio.wait([self._worker])

    async def close(self) -> None:
        """Stop; what is still queued is discarded, and counted."""
        if self._worker is not None:
            self._worker.cancel()
            await asyncio.wait([self._worker])
        if self._queue:
            self._metrics.count("repair_discarded", len(self._queue))
            self._queue.clear()

    async def _work(self) -> None:
        try:
            while self._queue:
                asked: dict[bytes, list[bytes]] = {}
                for key, member in list(self._queue)[:MOST_AT_ONCE]:
                    del self._queue[key, member]
                    asked.setdefault(key, []).append(member)
                await self._repair(asked)
        finally:
            self._worker = None

    async def _repair(self, asked: dict[bytes, list[bytes]]) -> None:
        began = time.perf_counter()
        replies = await asyncio.gather(*(cluster.score(asked) for cluster in self._clusters))
        self._metrics.time("repair_check_duration", time.perf_counter() - began)
        horizon = self._horizon()
        changes: list[Changes] = [{} for _ in self._clusters]
        pushed_out: list[bytes] = []
        for key, members in asked.items():
            if self._compare(key, members, replies, horizon, changes):
                pushed_out.append(key)
        writes = zip(self._clusters, changes, strict=True)
        await asyncio.gather(*(self._write(*write, horizon) for write in writes))
        if pushed_out:
            await repair_whole(self._clusters, pushed_out, self._max_size, horizon, self._metrics)

    def _compare(
        self,
        key: bytes,
        members: list[bytes],
        replies: list[dict[bytes, Known | StoreError]],
        horizon: float,
        changes: list[Changes],
    ) -> bool:
        """Note for each cluster what it must be told of a key.

        Says whether one holds an element that newer ones push out: it lacks those, and only a
        repair of the whole key brings them.
        """
        known = {place: r[key] for place, r in enumerate(replies) if isinstance(r[key], Known)}
        if failed := len(replies) - len(known):
            self._metrics.count("repair_check_partial_failure", failed)
        answers = [answer for answer in known.values() if isinstance(answer, Known)]
        pushed_out = False
        for at, (member, truth) in enumerate(zip(members, verdict(members, answers), strict=True)):
            needed = False
            if truth is None:
                pushed_out = pushed_out or any(answer.states[at] for answer in answers)
            elif truth.score >= horizon:
                for place, answer in zip(known, answers, strict=True):
                    if answer.states[at] != truth:
                        add_change(changes[place], key, member, truth)
                        needed = True
            if not needed:
                self._metrics.count("repair_check_redundant")
        return pushed_out

    async def _write(self, cluster: Cluster, changes: Changes, horizon: float) -> None:
        if not changes:
            return
        began = time.perf_counter()
        outcome = await cluster.write(WriteBatch(changes, horizon))
        self._metrics.time("repair_write_duration", time.perf_counter() - began)
        failed = sum(map(size_of, (changes[key] for key in outcome.failed)))
        self._metrics.count("repair_write_failure", failed)
        self._metrics.count("repair_write_success", sum(map(size_of, changes.values())) - failed)
