"""The merge rule of timelines, without I/O: what is true of a member, and what a key keeps.

A member's state is its newest operation: a higher score wins, and of equal scores the delete. That
is a maximum, so the order, number and grouping of operations do not matter. A key keeps the newest
``keep`` of its states by (score, member), inserts and deletes counted together, and none below
the horizon. Both keep an upper end of one order in which a state only ever rises; hence whatever
falls out can never be part of a later result, and keeping commutes with merging:

    kept(merge(kept(a), kept(b))) == kept(merge(a, b))

Of what is kept, the newest ``max_size`` that are inserted are shown. Roshi keeps ``max_size``
inserts and as many deletes, and all of them fit into twice ``max_size``, which is the default.

The functions in the server mirror this rule; unions of reads, repairs and tests use this module.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import NamedTuple, TypeAlias

NO_HORIZON = -math.inf


class State(NamedTuple):
    """The newest operation on a member; of two states the greater one is true."""

    score: float
    deleted: bool


# Where an element stands in its key; the newest is the greatest.
Place: TypeAlias = "tuple[float, bytes]"
# What is known of a key: the states of its members.
States: TypeAlias = "dict[bytes, State]"


def newest(states: Iterable[State | None]) -> State | None:
    """Merge what several replicas know of a member; None stands for one that does not know it."""
    return max((state for state in states if state is not None), default=None)


def merge(replicas: Iterable[Mapping[bytes, State]]) -> States:
    """Merge what several replicas know of a key."""
    merged: States = {}
    for replica in replicas:
        for member, state in replica.items():
            known = merged.get(member)
            if known is None or state > known:
                merged[member] = state
    return merged


def kept(states: Mapping[bytes, State], keep: int, horizon: float = NO_HORIZON) -> States:
    """Return what a key keeps of states that were merged into it."""
    living = [item for item in states.items() if item[1].score >= horizon]
    living.sort(key=lambda item: (item[1].score, item[0]), reverse=True)
    return dict(living[:keep])


def shown(states: Mapping[bytes, State], max_size: int) -> list[tuple[bytes, float]]:
    """Return what reads show of what a key keeps: the newest inserted members, with scores."""
    inserted = [(state.score, member) for member, state in states.items() if not state.deleted]
    return [(member, score) for score, member in sorted(inserted, reverse=True)[:max_size]]


def behind(replica: Mapping[bytes, State], truth: Mapping[bytes, State]) -> States:
    """Return the states that a replica lacks, or has in an older version."""
    return {member: state for member, state in truth.items() if replica.get(member) != state}
