"""Repair of whole keys: all that any cluster has of them, tombstones too, goes to all clusters.

Reads notice only differences among what they show. This compares all of a key, and brings every
cluster to the same state: what the merge rule says of all that the clusters hold together.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Final, NamedTuple

from headwater.errors import AllReplicasFailed, StoreError
from headwater.timeline.cluster.calls import (
    MOST_REMOVED,
    Change,
    Changes,
    ReadBatch,
    TimelinePage,
    Window,
    WriteBatch,
)
from headwater.timeline.cluster.cluster import Cluster
from headwater.timeline.farm.reporting import FarmReports
from headwater.timeline.merging import State, States, behind, kept, merge
from headwater.timeline.records import Cursor, Repaired, Written

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
    if not changes:
        return Repaired()
    began = time.perf_counter()
    outcome = await cluster.write(WriteBatch(changes, horizon))
    count_removed(reports, outcome.written)
    trimmed, forgotten = outcome.written.trimmed, outcome.written.forgotten
    failed = sum(size_of(changes[key]) for key in outcome.failed)
    written = sum(map(size_of, changes.values())) - failed
    failures = set(outcome.failed)
    while outcome.written.removed >= MOST_REMOVED:
        # There may be more than one call removes; an empty write continues.
        rest: Changes = {key: Change([], []) for key in changes if key not in failures}
        outcome = await cluster.write(WriteBatch(rest, horizon))
        count_removed(reports, outcome.written)
        trimmed += outcome.written.trimmed
        forgotten += outcome.written.forgotten
        failures |= outcome.failed.keys()
    reports.took("farm.repair_write", time.perf_counter() - began)
    reports.count("farm.repair_write_failure", failed)
    reports.count("farm.repair_write_success", written)
    return Repaired(written=written, failures=len(failures), trimmed=trimmed, forgotten=forgotten)


def count_removed(reports: FarmReports, written: Written) -> None:
    """Count the elements that a repair removed from a cluster."""
    reports.count("farm.repair_trimmed", written.trimmed)
    reports.count("farm.repair_forgotten", written.forgotten)


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
