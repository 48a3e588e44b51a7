"""Repairs: clusters that differ are brought to one state, by the same merge as a write.

    AllRepairs           repairs all that is asked for and finds room in the queue
    NoRepairs            repairs nothing
    RateLimitedRepairs   repairs up to ``repair_rate`` elements a second

REPAIR_STRATEGIES has them by name. Reads ask for repairs and never wait for them. A queue holds
each element once; what finds no room there, or exceeds the rate, is discarded and counted, and a
later read asks for it again. Before anything is written, every cluster is asked what it knows; so
a repair never brings back what was deleted.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Final, TypeAlias

from headwater.errors import StoreError
from headwater.timeline.cluster.calls import Changes, Known, WriteBatch
from headwater.timeline.cluster.cluster import Cluster
from headwater.timeline.farm.disputes import verdict
from headwater.timeline.farm.full_repair import add_change, count_removed, repair_whole, size_of
from headwater.timeline.farm.options import FarmOptions

MOST_QUEUED: Final = 10_000
MOST_AT_ONCE: Final = 500


class Bucket:
    """Grants ``rate`` tokens a second, and as many at once after a second of rest."""

    def __init__(self, rate: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._rate = rate
        self._clock = clock
        self._tokens = float(rate)
        self._filled = clock()

    def take(self, n: int) -> bool:
        """Take n tokens, or none; returns whether they were taken.

        More than the bucket can ever hold are taken from a full one, and what is missing is owed.
        """
        self._fill()
        if not self._rate or self._tokens < min(n, self._rate):
            return False
        self._tokens -= n
        return True

    def take_some(self, n: int) -> int:
        """Take up to n tokens; returns how many were taken."""
        self._fill()
        granted = max(0, min(n, int(self._tokens)))
        self._tokens -= granted
        return granted

    def _fill(self) -> None:
        now = self._clock()
        self._tokens = min(self._rate, self._tokens + (now - self._filled) * self._rate)
        self._filled = now


class Repairer:
    """The queue of repairs, and the task that works it off."""

    def __init__(self, clusters: Sequence[Cluster], options: FarmOptions) -> None:
        self._clusters = list(clusters)
        self._strategy = REPAIR_STRATEGIES[options.repair_strategy]
        self._keep = options.keep
        self._reports = options.reports
        self._horizon = options.horizon
        self._bucket = Bucket(options.repair_rate)
        self._queue: dict[tuple[bytes, bytes], None] = {}
        self._worker: asyncio.Task[None] | None = None

    def request(self, asked: Mapping[bytes, Sequence[bytes]]) -> None:
        """Ask for the repair of members, by key; never waits."""
        pairs = [(key, member) for key, members in asked.items() for member in members]
        self._reports.count("farm.repair_call")
        self._reports.count("farm.repair_request", len(pairs))
        new = [pair for pair in pairs if pair not in self._queue]
        room = min(MOST_QUEUED - len(self._queue), len(new))
        granted = self._strategy(self, room)
        if len(new) > granted:
            self._reports.count("farm.repair_discarded", len(new) - granted)
        self._queue.update(dict.fromkeys(new[:granted]))
        if self._queue and self._worker is None:
            self._worker = asyncio.get_running_loop().create_task(self._work())

    def all_repairs(self, n: int) -> int:
        """Grant all of n repairs."""
        return n

    def no_repairs(self, n: int) -> int:  # noqa: ARG002
        """Grant none of n repairs."""
        return 0

    def rate_limited_repairs(self, n: int) -> int:
        """Grant as many of n repairs as the rate allows."""
        return self._bucket.take_some(n)

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
            self._reports.count("farm.repair_discarded", len(self._queue))
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
        self._reports.took("farm.repair_check", time.perf_counter() - began)
        horizon = self._horizon()
        changes: list[Changes] = [{} for _ in self._clusters]
        pushed_out: list[bytes] = []
        for key, members in asked.items():
            if self._compare(key, members, replies, horizon, changes):
                pushed_out.append(key)
        writes = zip(self._clusters, changes, strict=True)
        await asyncio.gather(*(self._write(*write, horizon) for write in writes))
        if pushed_out:
            await repair_whole(self._clusters, pushed_out, self._keep, horizon, self._reports)

    def _compare(
        self,
        key: bytes,
        members: list[bytes],
        replies: list[dict[bytes, Known | StoreError]],
        horizon: float,
        changes: list[Changes],
    ) -> bool:
        """Add to the changes of each cluster what it lacks of a key.

        Returns whether a cluster holds an element that newer ones push out: it lacks those, and
        only a repair of the whole key brings them.
        """
        known = {place: r[key] for place, r in enumerate(replies) if isinstance(r[key], Known)}
        if failed := len(replies) - len(known):
            self._reports.count("farm.repair_check_partial_failure", failed)
        answers = [answer for answer in known.values() if isinstance(answer, Known)]
        pushed_out = False
        for at, (member, truth) in enumerate(zip(members, verdict(members, answers), strict=True)):
            needed = False
            if truth is None:
                pushed_out = pushed_out or any(answer.states[at] for answer in answers)
            elif truth.score >= horizon:
                for place, answer in zip(known, answers, strict=True):
                    if answer.states[at] != truth or at in answer.torn:
                        add_change(changes[place], key, member, truth)
                        needed = True
            if not needed:
                self._reports.count("farm.repair_check_redundant")
        return pushed_out

    async def _write(self, cluster: Cluster, changes: Changes, horizon: float) -> None:
        if not changes:
            return
        began = time.perf_counter()
        outcome = await cluster.write(WriteBatch(changes, horizon))
        self._reports.took("farm.repair_write", time.perf_counter() - began)
        count_removed(self._reports, outcome.written)
        failed = sum(map(size_of, (changes[key] for key in outcome.failed)))
        self._reports.count("farm.repair_write_failure", failed)
        self._reports.count(
            "farm.repair_write_success", sum(map(size_of, changes.values())) - failed
        )


RepairStrategy: TypeAlias = Callable[[Repairer, int], int]

# All repair strategies; each returns how many of n repairs are granted.
REPAIR_STRATEGIES: Final[Mapping[str, RepairStrategy]] = {
    "AllRepairs": Repairer.all_repairs,
    "NoRepairs": Repairer.no_repairs,
    "RateLimitedRepairs": Repairer.rate_limited_repairs,
}
