"""AsyncFarm: several clusters, each a copy of all timelines, behind one set of verbs."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Final, Self, TypeVar

from headwater.errors import TimelineError
from headwater.kernel.inputs import check_int
from headwater.kernel.instrument import Instrument
from headwater.timeline.cluster import MOST_CURSOR_ROWS, MOST_ROWS, NO_LIMIT, Cluster, Window
from headwater.timeline.farm.opening import ActiveLayout, OpenedFarm
from headwater.timeline.farm.options import FarmOptions
from headwater.timeline.farm.reading import Answer, Background, SelectQuery, changes_of, read_scores
from headwater.timeline.farm.repairing import (
    Failures,
    compare_whole,
    read_merged,
    repair_whole,
    size_of,
)
from headwater.timeline.layout import SETTLED, FarmLayout
from headwater.timeline.records import (
    MAX_SIZE,
    Columns,
    Compared,
    Cursor,
    InstanceStatus,
    Key,
    Member,
    Place,
    Repaired,
    Selected,
    Spelled,
    State,
    Tuple,
    Written,
    check_keys,
    check_pairs,
    check_place,
    check_tuples,
    records_of,
)

if TYPE_CHECKING:
    from headwater.store.scrubbing import ScrubProgress, ScrubReport

T = TypeVar("T")

ON_A_THREAD: Final = True  # the twin runs each verb of AsyncFarm on a thread of its own
_WRITTEN: Final = tuple(f"farm.write_{name}" for name in Written._fields)
# How often a farm may move during one call.
_MOST_MOVES: Final = 5


class WorkingFarm(OpenedFarm):
    """A farm at work: the layout in force, and what is written and read by it once checked."""

    def __init__(self, farm: str, options: FarmOptions) -> None:
        self._options = options
        self._reports = options.reports
        self._horizon = options.horizon
        self._background = Background()
        self._following = asyncio.Lock()
        self._active = self._activate(FarmLayout(0, SETTLED, "", farm))

    def _activate(self, layout: FarmLayout) -> ActiveLayout:
        return ActiveLayout(layout, self._options, self._background)

    @property
    def clusters(self) -> tuple[Cluster, ...]:
        """All clusters that writes go to."""
        return self._active.clusters

    @property
    def source(self) -> tuple[Cluster, ...]:
        """The clusters that have all timelines: while a farm is moved, the old ones."""
        return self._active.source

    @property
    def max_size(self) -> int:
        """How many elements a key shows at most."""
        return self._options.max_size

    @property
    def keep(self) -> int:
        """How many elements a key keeps at most, deleted ones counted."""
        return self._options.keep

    @property
    def horizon(self) -> float:
        """The score below which nothing is kept, as of now."""
        return self._horizon()

    @property
    def layout(self) -> FarmLayout:
        """The layout of the farm, as far as is known here."""
        return self._active.layout

    def report_to(self, instrument: Instrument) -> None:
        """Report to an instrument of its own, instead of the installed one.

        An installed instrument receives every call to an instance, too, which costs more than the
        reports of the farm alone.
        """
        self._reports.own = instrument

    async def _by_layout(self, work: Callable[[ActiveLayout], Awaitable[T]]) -> T:
        """Do something by the present layout, and again by the next if the farm has moved.

        Work that was done in part by an old layout is harmless.
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
        """Learn whether the farm has moved away from a layout; by default, from the present one."""
        active = active or self._active
        async with self._following:
            if self._active is not active:
                return
            newer = await active.newer()
            if newer is not None:
                self._active = self._activate(newer)
                self._background.start(active.close())

    async def write(self, verb: str, operations: Sequence[Spelled]) -> Written:
        """Insert or delete operations that were checked already."""
        changes = changes_of(operations, deleted=verb == "delete")

        async def work() -> Written:
            if not changes:
                return Written()
            return await self._by_layout(lambda active: active.write(changes))

        written = await self._reports.operation(f"farm.{verb}", work(), len(operations))
        for name, n in zip(_WRITTEN, written, strict=True):
            if n:
                self._reports.count(name, n)
        return written

    async def read(self, keys: Iterable[bytes], window: Window) -> Answer:
        """Select keys that were checked already; a key without elements may be left out."""
        asked = list(dict.fromkeys(keys))
        most = self._options.max_size
        limit = min(window.limit, most - window.offset)
        if not asked or limit <= 0:
            return Answer.empty()
        by_rank = not (window.start or window.stop)
        # Ranks differ where clusters do, so that a page by rank is read from the first one on.
        long = window.offset + limit > MOST_ROWS if by_rank else limit > MOST_CURSOR_ROWS
        # A page by rank ends by its limit; where one by cursor ends, only the server knows.
        shown = NO_LIMIT if by_rank and not long else most
        window = window._replace(limit=limit, shown=shown)
        work = self._read_by_pages(asked, window) if long else self._read_page(asked, window)
        return await self._reports.operation("farm.select", work, Answer.elements)

    async def _read_page(self, keys: list[bytes], window: Window) -> Answer:
        query = SelectQuery(keys, window, self._horizon())
        return await self._by_layout(lambda active: active.reader.read(query))

    async def _read_by_pages(self, keys: list[bytes], window: Window) -> Answer:
        """Read long windows by cursor in several steps, so that no server is blocked for long."""
        found: dict[bytes, Columns] = {}
        failures, blocked_s = Failures(), 0.0
        most, pages = window.offset + window.limit, window._replace(offset=0)
        for key in keys:
            members: list[bytes] = []
            scores: list[float] = []
            start, whole = window.start, False
            while not whole:
                limit = min(MOST_CURSOR_ROWS, most - len(members))
                answer = await self._read_page([key], pages._replace(start=start, limit=limit))
                more_members, more_scores = answer.columns.get(key, ([], []))
                members += more_members
                scores += more_scores
                whole = len(more_members) < limit or len(members) >= most
                start = Cursor(scores[-1], members[-1]) if scores else None
                for error in answer.failures.errors:
                    failures.add(key, error)
                blocked_s += answer.blocked_s
            found[key] = (members[window.offset :], scores[window.offset :])
        return Answer(found, failures, blocked_s)

    async def close(self) -> None:
        """Wait for writes in progress, drop queued repairs, and close all connections."""
        await self._background.finish()
        await self._active.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


class AsyncFarm(WorkingFarm):
    """Timelines on several clusters, each of which has a copy of all of them.

    A timeline is a key with members, each with a score, newest first: by score, equal scores by
    member, both descending. Insert and delete are last-writer-wins: the higher score counts, and
    of equal scores the delete. Whatever the order in which operations arrive, however often and
    wherever, clusters that know of the same ones are in the same state.

    An async one belongs to the event loop in which it is first used, and the tasks of that loop may
    all use it at once. One for blocking code may be used by several threads at once.
    """

    async def insert(self, tuples: Iterable[Tuple]) -> Written:
        """Insert (key, score, member) tuples; returns when a quorum of clusters has them all.

        The other clusters are written in the background. Each key's part of a batch is one atomic
        step on each cluster, up to 1000 operations or 1 MiB. Raises QuorumFailed, which may leave
        some clusters with the batch, and InvalidInput. A repeat changes nothing.
        """
        return await self.write("insert", check_tuples(tuples))

    async def delete(self, tuples: Iterable[Tuple]) -> Written:
        """Delete (key, score, member) tuples: inserts up to that score lose; see insert.

        What was never inserted can be deleted: an insert that comes later with a score that is not
        higher changes nothing.
        """
        return await self.write("delete", check_tuples(tuples))

    async def select(self, keys: Iterable[Key], offset: int = 0, limit: int = 10) -> Selected:
        """Return records of each key, newest first, from rank ``offset`` on, ``limit`` at most.

        Raises AllReplicasFailed when no cluster that was asked could answer for some key. An
        answer without the records of a cluster that failed is ``partial``. Cost: O(offset + limit)
        for each key and cluster, in several steps where that is more than 20,000; deep pages are
        cheaper by select_range.
        """
        check_int(offset, "offset", 0, MAX_SIZE)
        return await self._select(keys, Window(offset, check_int(limit, "limit", 1, MAX_SIZE)))

    async def select_range(
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
        check_int(limit, "limit", 1, MAX_SIZE)
        window = Window(0, limit, check_place(start, "start"), check_place(stop, "stop"))
        return await self._select(keys, window)

    async def _select(self, keys: Iterable[Key], window: Window) -> Selected:
        asked = check_keys(keys)
        answer = await self.read(asked.values(), window)
        partial = {key for key, raw in asked.items() if raw in answer.failures.keys}
        return Selected(records_of(asked, answer.columns), answer.failures.errors, partial)

    async def score(
        self, pairs: Iterable[tuple[Key, Member]]
    ) -> dict[tuple[Key, Member], State | None]:
        """Return the newest operation on each (key, member): its score, and whether it is a delete.

        None: no operation is known, or no longer. Asks all clusters; raises AllReplicasFailed.
        """
        asked = check_pairs(pairs)
        work = self._by_layout(lambda active: read_scores(active.readable, asked, self._horizon()))
        return await self._reports.operation("farm.score", work, len(asked))

    async def repair(self, keys: Iterable[Key]) -> Repaired:
        """Bring keys as a whole, deletes included, to one state on all available clusters.

        Reads repair only what they see to differ; this compares all of a key. Cost: all elements
        of the keys, from each cluster.
        """
        asked = list(dict.fromkeys(check_keys(keys).values()))
        keep, reports = self._options.keep, self._reports
        work = self._by_layout(
            lambda active: repair_whole(active.clusters, asked, keep, self._horizon(), reports)
        )
        return await reports.operation("farm.repair", work, len(asked))

    async def compare(self, keys: Iterable[Key]) -> Compared:
        """Return how far each cluster is behind; changes nothing. Costs as much as repair."""
        asked = check_keys(keys)
        raw = list(dict.fromkeys(asked.values()))
        keep, reports = self._options.keep, self._reports
        changes, figures, excess = await self._by_layout(
            lambda active: compare_whole(active.clusters, raw, keep, self._horizon(), reports)
        )
        behind = [
            {key: size_of(lacking[one]) for key, one in asked.items() if one in lacking}
            for lacking in changes
        ]
        return Compared(behind, figures.elements, figures.differing, figures.failures, excess)

    async def states(self, keys: Iterable[Key]) -> dict[Key, dict[bytes, State]]:
        """Return all that is known of keys, deletes included, by all clusters and the merge rule.

        Raises AllReplicasFailed when no cluster could be read for some key. Cost: all elements of
        the keys, from each cluster.
        """
        asked = check_keys(keys)
        raw = list(dict.fromkeys(asked.values()))
        keep = self._options.keep
        found = await self._by_layout(
            lambda active: read_merged(active.readable, raw, keep, self._horizon())
        )
        return {key: found[one] for key, one in asked.items()}

    async def status(self) -> list[InstanceStatus]:
        """Return for each instance whether it is available, and how much it holds.

        Of a farm that has moved meanwhile, those of its present layout.
        """
        await self.follow()
        found = await asyncio.gather(*(cluster.look() for cluster in self.clusters))
        return [s._replace(cluster=n) for n, cluster in enumerate(found, 1) for s in cluster]

    async def scrub(
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
        from headwater.timeline.scrubbing import scrub_farm

        return await scrub_farm(self, rate_mb_s=rate_mb_s, progress=progress, stop=stop)

    async def settle(self) -> None:
        """Wait until writes and repairs in the background are done."""
        await self._background.finish()
        await self._active.repairer.finish()
