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
from typing import Final, NamedTuple, TypeAlias

from headwater.errors import AllReplicasFailed, StoreError
from headwater.timeline.cluster import (
    MOST_REMOVED,
    Change,
    Changes,
    Cluster,
    Known,
    ReadBatch,
    TimelinePage,
    Window,
    WriteBatch,
    columns_of,
)
from headwater.timeline.farm.options import FarmOptions, FarmReports
from headwater.timeline.records import (
    Columns,
    Cursor,
    Rank,
    Repaired,
    Row,
    State,
    States,
    behind,
    kept,
    merge,
    newest,
)

# ── Disputes ──────────────────────────────────────────────────────────────────────────────────────
# Answers of several clusters for a key, united by the merge rule.
#
# Pages show inserted members only, and end somewhere. An element is *agreed* when every cluster
# shows it with one score; else it is *disputed*: a cluster may lack it, or know that it was
# deleted, which its page does not show. Below the end of any page that is not whole nothing is
# certain.
#
# An answer in which all clusters agree costs nothing. For disputed members every cluster that
# answered is asked once more, for their scores, tombstones included; and where deletes shorten a
# page, for more of it.


class Union(NamedTuple):
    """Agreed elements, newest first, disputed members with their highest score, and the bound.

    Both are complete down to ``bound``, itself included; without a bound they are all there is.
    """

    agreed: Columns
    disputed: dict[bytes, float]
    bound: Rank | None


def unite(pages: Sequence[TimelinePage]) -> Union:
    """Compare the pages that clusters gave of one window."""
    first = pages[0]
    ends = [(float(page.raw[-1]), page.raw[-2]) for page in pages if not page.whole]
    bound = max(ends, default=None)
    if all(page == first for page in pages[1:]):
        return Union(columns_of(first.raw), {}, bound)
    scores = [dict(page.rows) for page in pages]
    highest: dict[bytes, float] = {}
    for shown in scores:
        for member, score in shown.items():
            highest[member] = max(score, highest.get(member, score))
    agreed: list[Row] = []
    disputed: dict[bytes, float] = {}
    for member, score in highest.items():
        if bound is not None and (score, member) < bound:
            continue
        if all(shown.get(member) == score for shown in scores):
            agreed.append((member, score))
        else:
            disputed[member] = score
    return Union(newest_first(agreed), disputed, bound)


def newest_first(rows: list[Row]) -> Columns:
    """Sort rows by score, equal ones by member, both descending."""
    rows = sorted(rows, key=lambda row: (row[1], row[0]), reverse=True)
    return [member for member, _ in rows], [score for _, score in rows]


def verdict(members: Sequence[bytes], known: Sequence[Known]) -> list[State | None]:
    """Return the true state of members, out of what each cluster that could be asked knows.

    It is None for a member that is not in the key: no cluster knows it, or it is below the floor of
    a full key, where enough newer elements push it out wherever it still is.
    """
    floor = max((replica.floor for replica in known if replica.floor is not None), default=None)
    truths: list[State | None] = []
    for place, member in enumerate(members):
        truth = newest(replica.states[place] for replica in known)
        lost = truth is not None and floor is not None and (truth.score, member) < floor
        truths.append(None if lost else truth)
    return truths


def within(row: Row, window: Window, bound: Rank | None) -> bool:
    """Return whether an element is in a window and above the bound of what is certain."""
    place = (row[1], row[0])
    return (
        (bound is None or place >= bound)
        and (window.start is None or place < tuple(window.start))
        and (window.stop is None or place > tuple(window.stop))
    )


class Failures:
    """Errors of clusters that did not answer, each once, and the keys that they affect."""

    def __init__(self) -> None:
        self.errors: list[StoreError] = []
        self.keys: set[bytes] = set()

    def add(self, key: bytes, error: StoreError) -> None:
        """Note that a cluster did not answer for a key; one error may be that of many keys."""
        self.keys.add(key)
        if not any(error is known for known in self.errors):
            self.errors.append(error)

    def copy(self) -> Failures:
        """Return a copy of what is known so far, as more may come."""
        copied = Failures()
        copied.errors, copied.keys = self.errors.copy(), self.keys.copy()
        return copied


class Answers(NamedTuple):
    """The pages of each key, by cluster, and the failures of clusters that gave none."""

    pages: dict[bytes, dict[Cluster, TimelinePage]]
    failures: Failures


class Disputes:
    """Turns the answers to one query into rows that obey the merge rule."""

    def __init__(self, answers: Answers, window: Window, horizon: float) -> None:
        self._pages = answers.pages
        self._failures = answers.failures
        self._window = window
        self._horizon = horizon
        self._settled: dict[bytes, dict[bytes, State | None]] = {}

    @property
    def disputed(self) -> dict[bytes, list[bytes]]:
        """The members on which clusters were found to differ, by key."""
        return {key: list(members) for key, members in self._settled.items() if members}

    def differences(self) -> dict[bytes, list[bytes]]:
        """Return the members on which clusters differ, by key; asks no cluster."""
        found = {key: list(unite([*p.values()]).disputed) for key, p in self._pages.items()}
        return {key: members for key, members in found.items() if members}

    async def columns(self) -> dict[bytes, Columns]:
        """Return what is in the window of every key; raises AllReplicasFailed."""
        found: dict[bytes, Columns] = {}
        keys = list(self._pages)
        while keys:
            unions = {key: unite(list(self._pages[key].values())) for key in keys}
            await self._settle(unions)
            short: list[bytes] = []
            for key, union in unions.items():
                found[key] = members, _ = self._columns_of(key, union)
                if len(members) < self._window.limit and union.bound is not None:
                    short.append(key)
            await asyncio.gather(*(self._read_on(key) for key in short))
            keys = short
        return found

    def _columns_of(self, key: bytes, union: Union) -> Columns:
        if not union.disputed:
            return union.agreed
        rows = list(zip(*union.agreed, strict=True))
        for member in union.disputed:
            state = self._settled[key][member]
            if state is not None and not state.deleted and state.score >= self._horizon:
                row = (member, state.score)
                if within(row, self._window, union.bound):
                    rows.append(row)
        return newest_first(rows)

    async def _settle(self, unions: dict[bytes, Union]) -> None:
        """Ask for the scores of members that are disputed and not settled yet."""
        asked: dict[bytes, list[bytes]] = {}
        for key, union in unions.items():
            settled = self._settled.setdefault(key, {})
            if new := [member for member in union.disputed if member not in settled]:
                asked[key] = new
        if not asked:
            return
        clusters = {cluster for key in asked for cluster in self._pages[key]}
        replies = await asyncio.gather(*(self._ask(cluster, asked) for cluster in clusters))
        for key, members in asked.items():
            known = [reply[key] for reply in replies if key in reply]
            known += [_shown(page, members) for page in self._pages[key].values()]
            self._settled[key].update(zip(members, verdict(members, known), strict=True))

    async def _ask(self, cluster: Cluster, asked: dict[bytes, list[bytes]]) -> dict[bytes, Known]:
        mine = {key: members for key, members in asked.items() if cluster in self._pages[key]}
        known: dict[bytes, Known] = {}
        for key, reply in (await cluster.score(mine)).items():
            if isinstance(reply, StoreError):
                self._failures.add(key, reply)
            else:
                known[key] = reply
        return known

    async def _read_on(self, key: bytes) -> None:
        """Fetch the next page of a key from each cluster that has more of it."""

        async def extend(cluster: Cluster, page: TimelinePage) -> None:
            last = Cursor(float(page.raw[-1]), page.raw[-2])
            window = self._window._replace(start=last)
            further = (await cluster.select(ReadBatch([key], window)))[key]
            if isinstance(further, StoreError):
                self._failures.add(key, further)
                del self._pages[key][cluster]
            else:
                self._pages[key][cluster] = page.plus(further.above(self._horizon))

        pages = [item for item in self._pages[key].items() if not item[1].whole]
        await asyncio.gather(*(extend(*item) for item in pages))
        if not self._pages[key]:
            raise AllReplicasFailed([key], len(pages), self._failures.errors)


def _shown(page: TimelinePage, members: list[bytes]) -> Known:
    """Return the state of members by a page alone: those it shows are inserted."""
    scores = dict(page.rows)
    states = [State(scores[m], False) if m in scores else None for m in members]
    return Known(None, states)


# ── Full repair ───────────────────────────────────────────────────────────────────────────────────
# Repair of whole keys: all that any cluster has of them, tombstones too, goes to all clusters.
#
# Reads notice only differences among what they show. This compares all of a key, and brings every
# cluster to the same state: what the merge rule says of all that the clusters hold together.


_PAGE: Final = 1000


def add_change(changes: Changes, key: bytes, member: bytes, state: State) -> None:
    """Add to changes the operation that leads to a state."""
    change = changes.setdefault(key, Change([], []))
    change[state.deleted].extend((repr(state.score), member))


def size_of(change: Change) -> int:
    """Count the operations of a change."""
    return (len(change.inserts) + len(change.deletes)) // 2


class KeyComparison(NamedTuple):
    """What each cluster lacks to be in the one true state, and the counts of that.

    ``excess`` are the elements that clusters hold and the true state does not.
    """

    changes: list[Changes]
    figures: Repaired
    excess: int


async def compare_whole(
    clusters: Sequence[Cluster],
    keys: Sequence[bytes],
    keep: int,
    horizon: float,
    reports: FarmReports,
) -> KeyComparison:
    """Compare keys as a whole on all clusters that can be read; changes nothing."""
    reports.count("farm.walk_keys", len(keys))
    began = time.perf_counter()
    replicas = await asyncio.gather(*(read_whole(cluster, keys) for cluster in clusters))
    reports.took("farm.repair_check", time.perf_counter() - began)
    done, excess = Repaired(keys=len(keys)), 0
    changes: list[Changes] = [{} for _ in clusters]
    for key in keys:
        found = {place: replica[key] for place, replica in enumerate(replicas)}
        known = {p: whole for p, whole in found.items() if isinstance(whole, WholeKey)}
        unread = len(clusters) - len(known)
        if unread:
            reports.count("farm.repair_check_partial_failure", unread)
        truth = kept(merge(whole.states for whole in known.values()), keep, horizon)
        differing: set[bytes] = set()
        for place, whole in known.items():
            lacking = behind(whole.states, truth)
            # Writing the true state once more removes the other one.
            lacking.update((member, truth[member]) for member in whole.torn & truth.keys())
            for member, state in lacking.items():
                add_change(changes[place], key, member, state)
            beyond = len(whole.states.keys() - truth.keys())
            if beyond:
                # It holds elements that are no longer kept: an empty write trims them.
                changes[place].setdefault(key, Change([], []))
                excess += beyond
            differing.update(lacking)
        done = done.plus(Repaired(elements=len(truth), differing=len(differing), failures=unread))
    return KeyComparison(changes, done, excess)


async def read_merged(
    clusters: Sequence[Cluster], keys: Sequence[bytes], keep: int, horizon: float
) -> dict[bytes, States]:
    """Read keys as a whole from all clusters, merged; raises AllReplicasFailed."""
    replicas = await asyncio.gather(*(read_whole(cluster, keys) for cluster in clusters))
    merged: dict[bytes, States] = {}
    for key in keys:
        known = [f.states for replica in replicas if isinstance(f := replica[key], WholeKey)]
        if not known:
            causes = [e for replica in replicas if isinstance(e := replica[key], StoreError)]
            raise AllReplicasFailed([key], len(clusters), causes)
        merged[key] = kept(merge(known), keep, horizon)
    return merged


async def repair_whole(
    clusters: Sequence[Cluster],
    keys: Sequence[bytes],
    keep: int,
    horizon: float,
    reports: FarmReports,
) -> Repaired:
    """Compare keys as a whole on all clusters that can be read, and bring them to one state."""
    changes, done, _ = await compare_whole(clusters, keys, keep, horizon, reports)
    writes = zip(clusters, changes, strict=True)
    for result in await asyncio.gather(*(_write(*write, horizon, reports) for write in writes)):
        done = done.plus(result)
    return done


async def _write(
    cluster: Cluster, changes: Changes, horizon: float, reports: FarmReports
) -> Repaired:
    """Bring a cluster to a state, and trim what it has beyond that."""
    done, rest, failures = Repaired(), changes, set[bytes]()
    began = time.perf_counter()
    while rest:
        outcome = await cluster.write(WriteBatch(rest, horizon))
        written = sum(size_of(rest[key]) for key in rest.keys() - outcome.failed.keys())
        trimmed, forgotten = outcome.written.trimmed, outcome.written.forgotten
        done = done.plus(Repaired(written=written, trimmed=trimmed, forgotten=forgotten))
        failures |= outcome.failed.keys()
        # There may be more than one call removes; an empty write continues.
        more = outcome.written.removed >= MOST_REMOVED
        rest = {key: Change([], []) for key in changes if more and key not in failures}
    if changes:
        reports.took("farm.repair_write", time.perf_counter() - began)
        failed = sum(map(size_of, changes.values())) - done.written
        reports.count("farm.repair_write_failure", failed)
        reports.count("farm.repair_write_success", done.written)
        reports.count("farm.repair_trimmed", done.trimmed)
        reports.count("farm.repair_forgotten", done.forgotten)
    return done._replace(failures=len(failures))


class WholeKey(NamedTuple):
    """All that a cluster has of a key, and the members that it has in both sets."""

    states: States
    torn: set[bytes]


async def read_whole(cluster: Cluster, keys: Sequence[bytes]) -> dict[bytes, WholeKey | StoreError]:
    """Read both sets of keys, page by page.

    What moves from one to the other meanwhile may be missed or seen twice; both are harmless, since
    everything that follows is a merge of true states.
    """
    found: dict[bytes, WholeKey | StoreError] = {key: WholeKey({}, set()) for key in keys}
    for deleted in (False, True):
        unread, window = list(keys), Window(0, _PAGE)
        pages = await cluster.select(ReadBatch(unread, window, deleted=deleted))
        for key in keys:
            page = pages[key]
            while isinstance(whole := found[key], WholeKey):
                if isinstance(page, StoreError):
                    found[key] = page
                    break
                _note(whole, page, deleted)
                if page.whole:
                    break
                start = Cursor(float(page.raw[-1]), page.raw[-2])
                further = ReadBatch([key], window._replace(start=start), deleted=deleted)
                page = (await cluster.select(further))[key]
    return found


def _note(whole: WholeKey, page: TimelinePage, deleted: bool) -> None:
    for member, score in page.rows:
        state = State(score, deleted)
        known = whole.states.get(member)
        if known is not None and known.deleted != deleted:
            whole.torn.add(member)
        whole.states[member] = state if known is None else max(state, known)


# ── Repairing ─────────────────────────────────────────────────────────────────────────────────────


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
        await asyncio.gather(*(_write(*write, horizon, self._reports) for write in writes))
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


RepairStrategy: TypeAlias = Callable[[Repairer, int], int]

# All repair strategies; each returns how many of n repairs are granted.
REPAIR_STRATEGIES: Final[Mapping[str, RepairStrategy]] = {
    "AllRepairs": Repairer.all_repairs,
    "NoRepairs": Repairer.no_repairs,
    "RateLimitedRepairs": Repairer.rate_limited_repairs,
}
