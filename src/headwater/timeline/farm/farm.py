# Generated from aio_farm.py by `make derived`, which renews it: change that file.
"""Farm: the farm for blocking code, whose verbs run on a thread of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from headwater.timeline.farm.threaded_farm import ThreadedFarm
from headwater.timeline.records import (
    Compared,
    InstanceStatus,
    Key,
    Member,
    Place,
    Repaired,
    Selected,
    State,
    Tuple,
    Written,
)

if TYPE_CHECKING:
    from headwater.store.scrubbing import ScrubProgress, ScrubReport


class Farm(ThreadedFarm):
    """Timelines on several clusters, each of which has a copy of all of them.

    A timeline is a key with members, each with a score, newest first: by score, equal scores by
    member, both descending. Insert and delete are last-writer-wins: the higher score counts, and
    of equal scores the delete. Whatever the order in which operations arrive, however often and
    wherever, clusters that know of the same ones are in the same state.

    An async one belongs to the event loop in which it is first used, and the tasks of that loop may
    all use it at once. One for blocking code may be used by several threads at once.
    """

    def insert(self, tuples: Iterable[Tuple]) -> Written:
        """Insert (key, score, member) tuples; returns when a quorum of clusters has them all.

        The other clusters are written in the background. Each key's part of a batch is one atomic
        step on each cluster, up to 1000 operations or 1 MiB. Raises QuorumFailed, which may leave
        some clusters with the batch, and InvalidInput. A repeat changes nothing.
        """
        return self._run(self._farm.insert(tuples))

    def delete(self, tuples: Iterable[Tuple]) -> Written:
        """Delete (key, score, member) tuples: inserts up to that score lose; see insert.

        What was never inserted can be deleted: an insert that comes later with a score that is not
        higher changes nothing.
        """
        return self._run(self._farm.delete(tuples))

    def select(self, keys: Iterable[Key], offset: int = 0, limit: int = 10) -> Selected:
        """Return records of each key, newest first, from rank ``offset`` on, ``limit`` at most.

        Raises AllReplicasFailed when no cluster that was asked could answer for some key. An
        answer without the records of a cluster that failed is ``partial``. Cost: O(offset + limit)
        for each key and cluster, in several steps where that is more than 20,000; deep pages are
        cheaper by select_range.
        """
        return self._run(self._farm.select(keys, offset, limit))

    def select_range(
        self,
        keys: Iterable[Key],
        start: Place = None,
        stop: Place = None,
        limit: int = 10,
    ) -> Selected:
        """Return records of each key after ``start`` and before ``stop``, newest first.

        Both are excluded, and are places, not elements: a cursor or its text, a record, or
        (score, member); None is either end. The next page starts at the last record of a page.
        More than 2000 records of a key are read in several steps. See select for what it raises.
        """
        return self._run(self._farm.select_range(keys, start, stop, limit))

    def score(self, pairs: Iterable[tuple[Key, Member]]) -> dict[tuple[Key, Member], State | None]:
        """Return the newest operation on each (key, member): its score, and whether it is a delete.

        None: no operation is known, or no longer. Asks all clusters; raises AllReplicasFailed.
        """
        return self._run(self._farm.score(pairs))

    def repair(self, keys: Iterable[Key]) -> Repaired:
        """Bring keys as a whole, deletes included, to one state on all available clusters.

        Reads repair only what they see to differ; this compares all of a key. Cost: all elements
        of the keys, from each cluster.
        """
        return self._run(self._farm.repair(keys))

    def compare(self, keys: Iterable[Key]) -> Compared:
        """Return how far each cluster is behind; changes nothing. Costs as much as repair."""
        return self._run(self._farm.compare(keys))

    def states(self, keys: Iterable[Key]) -> dict[Key, dict[bytes, State]]:
        """Return all that is known of keys, deletes included, by all clusters and the merge rule.

        Raises AllReplicasFailed when no cluster could be read for some key. Cost: all elements of
        the keys, from each cluster.
        """
        return self._run(self._farm.states(keys))

    def status(self) -> list[InstanceStatus]:
        """Return for each instance whether it is available, and how much it holds.

        Of a farm that has moved meanwhile, those of its present layout.
        """
        return self._run(self._farm.status())

    def scrub(
        self,
        *,
        rate_mb_s: float | None = None,
        progress: Callable[[ScrubProgress], object] | None = None,
        stop: Callable[[], bool] | None = None,
    ) -> ScrubReport:
        """Read every timeline on every cluster, and report what is wrong; changes nothing.

        It works while the farm is in use. ``rate_mb_s`` bounds how much is read in a second;
        ``progress`` is called from time to time; once ``stop`` returns True it ends, with what it
        has seen. Both are called on the thread of the farm. Raises StoreError when an instance
        cannot be read.
        """
        return self._run(self._farm.scrub(rate_mb_s=rate_mb_s, progress=progress, stop=stop))

    def settle(self) -> None:
        """Wait until writes and repairs in the background are done."""
        self._run(self._farm.settle())
