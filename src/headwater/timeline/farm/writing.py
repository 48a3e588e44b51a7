"""How a farm writes: to all clusters at once, done when a quorum of them has all of it.

The other clusters are written in the background. Operations commute and may be repeated, so a write
that failed for lack of a quorum is retried as it was, whatever part of it was done.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Coroutine, Iterable, Sequence
from typing import Any, TypeVar

from headwater.errors import QuorumFailed, StoreError
from headwater.timeline.cluster.calls import Change, Changes, WriteBatch
from headwater.timeline.cluster.cluster import Cluster, WriteOutcome
from headwater.timeline.records import Spelled, Written

T = TypeVar("T")


class Background:
    """Tasks whose callers do not wait for them; kept here so that none is lost half-way."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()

    def start(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Start a task, which continues when the task that waits for it is cancelled."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def finish(self) -> None:
        """Wait until no task is running."""
        while self._tasks:
            await asyncio.wait(self._tasks)


def changes_of(operations: Iterable[Spelled], *, deleted: bool) -> Changes:
    """Sort inserts, or deletes, by key."""
    changes: Changes = {}
    for key, score, member in operations:
        change = changes.get(key)
        if change is None:
            change = changes[key] = Change([], [])
        change[deleted].extend((score, member))
    return changes


async def write(
    clusters: Sequence[Cluster], batch: WriteBatch, quorum: int, background: Background
) -> Written:
    """Write to all clusters; returns as soon as every key is on ``quorum`` of them.

    Raises QuorumFailed when all have answered and some key is on fewer.
    """
    vote = _Vote(len(clusters), quorum)
    for cluster in clusters:
        background.start(vote.hear(cluster, batch))
    return await vote.done


class _Vote:
    """The outcomes of one write, as they come; ``done`` once they suffice, or cannot suffice."""

    def __init__(self, clusters: int, quorum: int) -> None:
        self.done: asyncio.Future[Written] = asyncio.get_running_loop().create_future()
        self._clusters = clusters
        self._quorum = quorum
        self._best = Written()
        self._answered = self._complete = 0
        self._missing: Counter[bytes] = Counter()
        self._causes: list[StoreError] = []

    async def hear(self, cluster: Cluster, batch: WriteBatch) -> None:
        """Write to one cluster, and count its answer."""
        try:
            self._count(await cluster.write(batch))
        except Exception as error:
            if self.done.done():
                raise
            self.done.set_exception(error)

    def _count(self, outcome: WriteOutcome) -> None:
        self._best = max(self._best, outcome.written)
        self._answered += 1
        if outcome.failed:
            self._missing.update(outcome.failed.keys())
            self._causes += {id(error): error for error in outcome.failed.values()}.values()
        else:
            self._complete += 1
        if self.done.done():
            return
        if self._answered - max(self._missing.values(), default=0) >= self._quorum:
            self.done.set_result(self._best)
        elif self._answered == self._clusters:
            raise QuorumFailed(self._complete, self._quorum, self._clusters, self._causes)
