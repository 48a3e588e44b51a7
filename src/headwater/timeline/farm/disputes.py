"""Answers of several clusters for a key, united by the merge rule.

Pages show inserted members only, and end somewhere. An element is *agreed* when every cluster shows
it with one score; else it is *disputed*: a cluster may lack it, or know that it was deleted, which
its page does not show. Below the end of any page that is not whole nothing is certain.

An answer in which all clusters agree costs nothing. For disputed members every cluster that
answered is asked once more, for their scores, tombstones included; and where deletes shorten a
page, for more of it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import NamedTuple

from headwater.errors import AllReplicasFailed, StoreError
from headwater.timeline.cluster.calls import Known, ReadBatch, TimelinePage, Window, columns_of
from headwater.timeline.cluster.cluster import Cluster
from headwater.timeline.merging import Place, State, newest
from headwater.timeline.records import Columns, Cursor, Row


class Union(NamedTuple):
    """Agreed elements, newest first, disputed members with their highest score, and the bound.

    Both are complete down to ``bound``, itself included; without a bound they are all there is.
    """

    agreed: Columns
    disputed: dict[bytes, float]
    bound: Place | None


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


def within(row: Row, window: Window, bound: Place | None) -> bool:
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
