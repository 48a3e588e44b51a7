"""Farm: the farm for programs without an event loop; drives AsyncFarm on a thread of its own."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Iterable
from types import TracebackType
from typing import Any, Self, TypeVar

from headwater.errors import StoreError
from headwater.timeline.farm.aio_farm import AsyncFarm
from headwater.timeline.farm.options import DEFAULT_QUORUM, DEFAULT_TIMEOUT_MS, Horizon
from headwater.timeline.law import State
from headwater.timeline.metrics import Metrics
from headwater.timeline.records import (
    DEFAULT_SIZE,
    Compared,
    InstanceStatus,
    Key,
    Member,
    Place,
    Repaired,
    Selected,
    Tuple,
    Written,
)

T = TypeVar("T")


class Farm:
    """Timelines on several clusters, each of which has a copy of all of them.

    A timeline is a key with members, each with a score, newest first: by score, equal scores by
    member, both descending. Insert and delete are last-writer-wins: the higher score counts, and
    of equal scores the delete. Whatever the order in which operations arrive, however often and
    wherever, clusters that know of the same ones are in the same state.

    May be used by several threads at once.
    """

    def __init__(self, farm: AsyncFarm) -> None:
        self._farm = farm
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(
            target=self._loop.run_forever, name="headwater-farm", daemon=True
        )
        self._thread.start()

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
    ) -> Farm:
        """Open a farm: clusters separated by ";", their instances by ",", as "a:1,b:1;c:1".

        An instance is host:port or the URL of one server. Connections are made with first use, so
        a farm opens although servers are down. All that use the same servers must agree on the
        number and order of instances, on ``hash`` and on ``max_size``. A cluster that has the word
        WRITEONLY among its instances takes writes, and counts, but is not read.

        ``write_quorum`` is how many clusters must take a write, or a percentage of them, rounded
        up. ``read_strategy`` is SendOneReadOne, SendAllReadAll, SendAllReadFirstLinger or
        SendVarReadFirstLinger; the latter asks all clusters for up to ``read_rate`` keys a second,
        and beyond that one, and the others when it has not answered after ``promote_after_ms``.
        ``repair_strategy`` is AllRepairs, NoRepairs or RateLimitedRepairs, which repairs up to
        ``repair_rate`` elements a second.

        A key keeps the newest ``max_size`` elements, deleted ones counted. With a ``horizon``, a
        score or a function that gives one, what is below it is forgotten and not taken. An
        instance that does not answer within ``timeout_ms`` has failed.

        Raises InvalidInput.
        """
        return cls(
            AsyncFarm.open(
                farm,
                write_quorum=write_quorum,
                read_strategy=read_strategy,
                repair_strategy=repair_strategy,
                max_size=max_size,
                horizon=horizon,
                hash=hash,
                read_rate=read_rate,
                promote_after_ms=promote_after_ms,
                repair_rate=repair_rate,
                timeout_ms=timeout_ms,
                metrics=metrics,
            )
        )

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        if self._loop.is_closed():
            work.close()
            raise StoreError("the farm is closed; open it again")
        task = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return task.result()
        except BaseException:
            task.cancel()
            raise

    def insert(self, tuples: Iterable[Tuple]) -> Written:
        """Insert (key, score, member) tuples; returns when a quorum of clusters has them all.

        The others go on in the background. Each key's part of a batch is one atomic step on each
        cluster, up to 2000 operations or 1 MiB. Raises QuorumFailed, which may leave some clusters
        with the batch, and InvalidInput. A repeat changes nothing.
        """
        return self._run(self._farm.insert(tuples))

    def delete(self, tuples: Iterable[Tuple]) -> Written:
        """Delete (key, score, member) tuples: inserts up to that score lose; see insert.

        What was never inserted can be deleted: an insert that comes later with a score that is not
        higher changes nothing.
        """
        return self._run(self._farm.delete(tuples))

    def select(self, keys: Iterable[Key], offset: int = 0, limit: int = 10) -> Selected:
        """Give records of each key, newest first, from rank ``offset`` on, ``limit`` at most.

        Raises AllReplicasFailed when no cluster that was asked could answer for some key. An
        answer that lacks the word of a cluster is ``partial``. Cost: O(offset + limit) for each
        key and cluster; deep pages are cheaper by select_range.
        """
        return self._run(self._farm.select(keys, offset, limit))

    def select_range(
        self, keys: Iterable[Key], start: Place = None, stop: Place = None, limit: int = 10
    ) -> Selected:
        """Give records of each key that come behind ``start`` and before ``stop``, newest first.

        Both are excluded, and are places, not elements: a cursor or its text, a record, or
        (score, member); None is either end. To go on, start at the last record of a page. See
        select for what it raises.
        """
        return self._run(self._farm.select_range(keys, start, stop, limit))

    def score(self, pairs: Iterable[tuple[Key, Member]]) -> dict[tuple[Key, Member], State | None]:
        """Tell the newest operation on each (key, member): its score, and whether it is a delete.

        None: it is not known, or no longer. Asks all clusters; raises AllReplicasFailed.
        """
        return self._run(self._farm.score(pairs))

    def repair(self, keys: Iterable[Key]) -> Repaired:
        """Bring keys as a whole, deletes included, to one state on all clusters that serve.

        Reads ask for repairs of what they see to differ; this compares all of a key. Cost: all
        elements of the keys, from each cluster.
        """
        return self._run(self._farm.repair(keys))

    def compare(self, keys: Iterable[Key]) -> Compared:
        """Tell how far each cluster is behind; changes nothing. Costs as much as repair."""
        return self._run(self._farm.compare(keys))

    def states(self, keys: Iterable[Key]) -> dict[Key, dict[bytes, State]]:
        """Give all that is known of keys, deletes included, by all clusters and the merge law.

        Raises AllReplicasFailed when no cluster could be read for some key. Cost: all elements of
        the keys, from each cluster.
        """
        return self._run(self._farm.states(keys))

    def status(self) -> list[InstanceStatus]:
        """Tell of each instance whether it serves, and how much it holds."""
        return self._run(self._farm.status())

    def settle(self) -> None:
        """Wait until writes and repairs that go on in the background are done."""
        self._run(self._farm.settle())

    def close(self) -> None:
        """Let writes that are under way end, drop queued repairs, and close all connections."""
        if not self._loop.is_closed():
            self._run(self._farm.close())
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
