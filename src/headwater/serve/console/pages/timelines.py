"""Timelines: the instances of a farm, walks and moves of it, and the copies of a key."""

from __future__ import annotations

import asyncio
import random
import time
from typing import TYPE_CHECKING, Final, NamedTuple

from headwater.errors import StoreError
from headwater.serve.console.calls import Context, PageCall, page
from headwater.timeline.farm.repairing import read_whole
from headwater.timeline.records import State, encode, merge
from headwater.timeline.walker import SILENT_MS, read_notes, sample

if TYPE_CHECKING:
    from headwater.timeline.farm.aio_farm import AsyncFarm

_SHOWN: Final = 200
_SAMPLED: Final = 500
# What reads by the processes of this server have counted since they began.
_COUNTS: Final = {
    "divergent": "farm.select_divergent_keys",
    "repaired": "farm.repair_write_success",
    "failed": "farm.repair_write_failure",
}


class CopiedMember(NamedTuple):
    """A member of a timeline: what each cluster knows of it, and what is true.

    ``lacking`` are the clusters, from 1 on, to which a repair would write the true state.
    """

    member: bytes
    truth: State
    copies: list[State | None]
    lacking: list[int]


class KeyCopies(NamedTuple):
    """The copies of a key; ``unread`` are clusters that could not be read, with why."""

    key: str
    members: list[CopiedMember]
    clusters: int
    total: int
    differing: int
    unread: dict[int, str]


@page("/timelines", "timelines.html", "Timelines", whole=True)
async def show_timelines(call: PageCall) -> Context:
    """Show the instances of the farm, walks and moves, and the copies of a key side by side."""
    farm = call.served.farm
    key = call.query.get("key", "")
    if farm is None:
        return {"instances": None, "copies": None, "key": key}
    # It asks the farm whether it has moved, before anything else is said of it.
    instances = await farm.status()
    copies = await _copies(farm, key) if key else None
    wanted = min(call.number("sample", 0) or 0, _SAMPLED)
    found = await sample(farm, wanted, random.Random()) if wanted > 0 else None
    return {
        "instances": instances,
        "layout": farm.layout.safe,
        "samples": found,
        "behind": sum(one.behind for one in found.values()) if found else 0,
        "walks": await read_notes(farm.clusters),
        "silent_ms": SILENT_MS,
        "counts": {word: call.served.metrics.counted(name) for word, name in _COUNTS.items()},
        "now_ms": int(time.time() * 1000),
        "copies": copies,
        "key": key,
    }


async def _copies(farm: AsyncFarm, key: str) -> KeyCopies:
    """Read a key on all clusters, as a repair does; changes nothing."""
    name = encode(key, "key")
    read = await asyncio.gather(*(read_whole(cluster, [name]) for cluster in farm.clusters))
    found = [replica[name] for replica in read]
    unread = {
        place: f"{type(one).__name__}: {one}"
        for place, one in enumerate(found, 1)
        if isinstance(one, StoreError)
    }
    states = [{} if isinstance(one, StoreError) else one.states for one in found]
    truth = merge(states)
    members = [
        CopiedMember(
            member,
            true,
            [one.get(member) for one in states],
            [
                place
                for place, one in enumerate(states, 1)
                if place not in unread and one.get(member) != true
            ],
        )
        for member, true in truth.items()
    ]
    members.sort(key=lambda one: (not one.lacking, -one.truth.score))
    differing = sum(bool(one.lacking) for one in members)
    return KeyCopies(key, members[:_SHOWN], len(states), len(members), differing, unread)
