"""How a farm reads and writes: which clusters it asks, whose answers it waits for.

SendOneReadOne           one cluster, at random; no union, no repair
    SendAllReadAll           all clusters; the union of all answers by the merge rule
    SendAllReadFirstLinger   all clusters; the first answer for each key, while the others are
                             awaited in the background and compared
    SendVarReadFirstLinger   the same for up to ``read_rate`` keys a second; beyond that one
                             cluster, and all of them when it fails or takes too long

READ_STRATEGIES has them by name. A key for which no cluster could answer is an error, never an
empty answer.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeAlias, TypeVar

from headwater.errors import AllReplicasFailed, QuorumFailed, StoreError
from headwater.timeline.cluster import (
    Change,
    Changes,
    Cluster,
    Found,
    Known,
    ReadBatch,
    TimelinePage,
    Window,
    WriteBatch,
    WriteOutcome,
    columns_of,
)
from headwater.timeline.farm.options import FarmOptions
from headwater.timeline.farm.repairing import Answers, Bucket, Disputes, Failures, Repairer, verdict
from headwater.timeline.records import NO_HORIZON, Columns, Key, Member, Spelled, State, Written

# ── Writing ───────────────────────────────────────────────────────────────────────────────────────
# How a farm writes: to all clusters at once, done when a quorum of them has all of it.
#
# The other clusters are written in the background. Operations commute and may be repeated, so a
# write that failed for lack of a quorum is retried as it was, whatever part of it was done.


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


# ── Reading ───────────────────────────────────────────────────────────────────────────────────────


class SelectQuery(NamedTuple):
    """What is asked for: keys, a window of each, and the horizon below which nothing counts."""

    keys: list[bytes]
    window: Window
    horizon: float

    @property
    def full_window(self) -> Window:
        """The window from its first rank: ranks differ where clusters do, so none is skipped."""
        return self.window._replace(offset=0, limit=self.window.offset + self.window.limit)


class Answer(NamedTuple):
    """Elements by key, clusters that did not answer, and how long clusters were waited for."""

    columns: dict[bytes, Columns]
    failures: Failures
    blocked_s: float

    @classmethod
    def empty(cls) -> Answer:
        """Return an answer without elements, for which no cluster was asked."""
        return cls({}, Failures(), 0.0)

    def elements(self) -> int:
        """Count the elements of all keys."""
        return sum(len(members) for members, _ in self.columns.values())


class Reader:
    """Reads from clusters by one of the strategies; asks for repairs where they differ."""

    def __init__(
        self,
        clusters: Sequence[Cluster],
        options: FarmOptions,
        repairer: Repairer,
        background: Background,
        choose: Callable[[Sequence[Cluster]], Cluster] = random.choice,
    ) -> None:
        self._clusters = list(clusters)
        self._options = options
        self._reports = options.reports
        self._repairer = repairer
        self._background = background
        self._choose = choose
        self._permits = Bucket(options.read_rate)
        self._strategy = READ_STRATEGIES[options.read_strategy]

    async def read(self, query: SelectQuery) -> Answer:
        """Answer a query by the strategy of the farm; raises AllReplicasFailed."""
        began = time.perf_counter()
        self._reports.count("farm.select_keys", len(query.keys))
        answer = await self._strategy(self, query)
        self._reports.took("farm.select_wait", answer.blocked_s)
        overhead_s = time.perf_counter() - began - answer.blocked_s
        self._reports.took("farm.select_overhead", overhead_s)
        return answer

    async def send_one_read_one(self, query: SelectQuery) -> Answer:
        """Ask one cluster, at random, and return its answer."""
        wait = _PendingAnswers(self, query, query.window)
        wait.send([self._choose(self._clusters)], query.keys)
        await wait.finish()
        answers = wait.answers()
        columns = _first_of(answers, query.window._replace(offset=0))
        return Answer(columns, answers.failures, wait.blocked_s)

    async def send_all_read_all(self, query: SelectQuery) -> Answer:
        """Ask all clusters, and return the union of their answers."""
        wait = _PendingAnswers(self, query, query.full_window)
        wait.send(self._clusters, query.keys)
        await wait.finish()
        agreed = wait.agreed()
        if agreed is not None:
            return Answer(_cut(agreed, query.window), Failures(), wait.blocked_s)
        answers = wait.answers()
        disputes = Disputes(answers, query.full_window, query.horizon)
        columns = _cut(await disputes.columns(), query.window)
        self._ask_for_repairs(disputes.disputed)
        return Answer(columns, answers.failures, wait.blocked_s)

    async def send_all_read_first_linger(self, query: SelectQuery) -> Answer:
        """Ask all clusters, and return the first answer for each key."""
        return await self._read_first(query, send_all=True)

    async def send_var_read_first_linger(self, query: SelectQuery) -> Answer:
        """Ask all clusters while the rate allows it, else one; return the first answers."""
        granted = self._permits.take(len(query.keys))
        word = "granted" if granted else "rejected"
        self._reports.count(f"farm.select_send_all_permit_{word}")
        return await self._read_first(query, send_all=granted)

    async def _read_first(self, query: SelectQuery, *, send_all: bool) -> Answer:
        wait = _PendingAnswers(self, query, query.full_window)
        chosen = self._clusters if send_all else [self._choose(self._clusters)]
        wait.send(chosen, query.keys)
        if not send_all:
            await wait.first_answers(self._options.promote_after_ms / 1000)
            if wait.unanswered:
                self._reports.count("farm.select_send_all_promotion")
                others = [cluster for cluster in self._clusters if cluster not in chosen]
                wait.send(others, list(wait.unanswered))
        await wait.first_answers(None)
        answers, blocked_s = wait.answers(), wait.blocked_s
        self._background.start(self._linger(wait, query.horizon))
        columns = _first_of(answers, query.window)
        return Answer(columns, answers.failures.copy(), blocked_s)

    async def _linger(self, wait: _PendingAnswers, horizon: float) -> None:
        """Wait for the answers that the caller did not wait for, and compare them all."""
        await wait.finish()
        self._ask_for_repairs(Disputes(wait.answers(), wait.window, horizon).differences())

    def _ask_for_repairs(self, disputed: dict[bytes, list[bytes]]) -> None:
        if disputed:
            self._reports.count("farm.select_divergent_keys", len(disputed))
            self._reports.count("farm.select_repair_needed", sum(map(len, disputed.values())))
            self._repairer.request(disputed)

    async def ask(self, cluster: Cluster, reading: ReadBatch) -> Found:
        """Ask one cluster, and count what it returns."""
        found = await cluster.select(reading)
        instrument, farm = self._reports.instrument, self._reports.farm
        if instrument is not None:
            instrument.count("farm.select_send_to", farm)
            if found.failed:
                instrument.count("farm.select_partial_error", farm, len(found.failed))
            retrieved = sum(map(len, found.raw.values())) // 2
            instrument.count("farm.select_retrieved", farm, retrieved)
        return found

    def took(self, name: str, seconds: float) -> None:
        """Report how long a part of a read took."""
        self._reports.took(name, seconds)


Strategy: TypeAlias = Callable[[Reader, SelectQuery], Awaitable[Answer]]

# All read strategies; checks of options, tests and the documentation use this list.
READ_STRATEGIES: Final[Mapping[str, Strategy]] = {
    "SendOneReadOne": Reader.send_one_read_one,
    "SendAllReadAll": Reader.send_all_read_all,
    "SendAllReadFirstLinger": Reader.send_all_read_first_linger,
    "SendVarReadFirstLinger": Reader.send_var_read_first_linger,
}


def _first_of(answers: Answers, window: Window) -> dict[bytes, Columns]:
    """Take the answer that came first for each key."""
    pages = {key: next(iter(found.values())) for key, found in answers.pages.items()}
    return _cut({key: columns_of(page.raw) for key, page in pages.items()}, window)


def _cut(columns: dict[bytes, Columns], window: Window) -> dict[bytes, Columns]:
    """Return the part of each key that was asked for."""
    if not window.offset and all(len(found[0]) <= window.limit for found in columns.values()):
        return columns
    part = slice(window.offset, window.offset + window.limit)
    return {key: (found[0][part], found[1][part]) for key, found in columns.items()}


class _PendingAnswers:
    """The answers to one query, as they come."""

    def __init__(self, reader: Reader, query: SelectQuery, window: Window) -> None:
        self._reader = reader
        self._keys = query.keys
        self._horizon = query.horizon
        self.window = window
        self._found: dict[Cluster, Found] = {}
        self.unanswered = dict.fromkeys(query.keys)
        self._failures = Failures()
        self._tasks: list[asyncio.Task[None]] = []
        self._began = time.perf_counter()
        self._heard = False
        self.blocked_s = 0.0

    def send(self, clusters: Sequence[Cluster], keys: list[bytes]) -> None:
        """Ask clusters for keys."""
        loop, reading = asyncio.get_running_loop(), ReadBatch(keys, self.window)
        self._tasks += [loop.create_task(self._hear(cluster, reading)) for cluster in clusters]

    async def _hear(self, cluster: Cluster, reading: ReadBatch) -> None:
        found = self._found[cluster] = await self._reader.ask(cluster, reading)
        for key, error in found.failed.items():
            self._failures.add(key, error)
        if self.unanswered:
            self.unanswered = {key: None for key in self.unanswered if key not in found.raw}
        if not self._heard and found.raw:
            self._heard = True
            self._reader.took("farm.select_first_answer", time.perf_counter() - self._began)

    async def first_answers(self, within_s: float | None) -> None:
        """Wait until every key has an answer, nothing is to come, or the time is over."""
        deadline = None if within_s is None else time.perf_counter() + within_s
        while self.unanswered and (coming := [task for task in self._tasks if not task.done()]):
            left = None if deadline is None else deadline - time.perf_counter()
            if left is not None and left <= 0:
                break
            await self._wait(coming, asyncio.FIRST_COMPLETED, left)

    async def finish(self) -> None:
        """Wait for all answers."""
        await self._wait(self._tasks, asyncio.ALL_COMPLETED)

    async def _wait(
        self, tasks: list[asyncio.Task[None]], until: str, timeout_s: float | None = None
    ) -> None:
        done, _ = await asyncio.wait(tasks, timeout=timeout_s, return_when=until)
        self.blocked_s = time.perf_counter() - self._began
        for task in done:
            task.result()

    def agreed(self) -> dict[bytes, Columns] | None:
        """Return what is in every key when all clusters agree; None when they differ."""
        first, *others = self._found.values()
        if self._failures.keys or any(found.raw != first.raw for found in others):
            return None
        if self._horizon == NO_HORIZON:
            return {key: columns_of(raw) for key, raw in first.raw.items()}
        return {key: columns_of(page.above(self._horizon).raw) for key, page in first.pages()}

    def answers(self) -> Answers:
        """Return the answers so far; raises AllReplicasFailed when a key has none."""
        if self.unanswered:
            raise AllReplicasFailed(list(self.unanswered), len(self._tasks), self._failures.errors)
        pages: dict[bytes, dict[Cluster, TimelinePage]] = {key: {} for key in self._keys}
        for cluster, found in self._found.items():
            for key, page in found.pages():
                pages[key][cluster] = page.above(self._horizon)
        return Answers(pages, self._failures)


async def read_scores(
    clusters: Sequence[Cluster],
    asked: dict[tuple[Key, Member], tuple[bytes, bytes]],
    horizon: float,
) -> dict[tuple[Key, Member], State | None]:
    """Return the newest operation on each member, by the merge rule; raises AllReplicasFailed."""
    members: dict[bytes, list[bytes]] = {}
    for key, member in dict.fromkeys(asked.values()):
        members.setdefault(key, []).append(member)
    replies = await asyncio.gather(*(cluster.score(members) for cluster in clusters))
    truths: dict[tuple[bytes, bytes], State | None] = {}
    for key, of_key in members.items():
        answers = [reply[key] for reply in replies]
        known = [answer for answer in answers if isinstance(answer, Known)]
        if not known:
            causes = [answer for answer in answers if isinstance(answer, StoreError)]
            raise AllReplicasFailed([key], len(clusters), causes)
        for member, state in zip(of_key, verdict(of_key, known), strict=True):
            truths[key, member] = None if state is None or state.score < horizon else state
    return {pair: truths[raw] for pair, raw in asked.items()}
