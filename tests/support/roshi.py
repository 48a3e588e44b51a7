"""Roshi's own law, as a model: what its servers leave in the two sorted sets of a key.

Each set is bounded by itself: Roshi keeps up to ``max_size`` inserts, and up to as many deletes.
Which of them, depends on the order of operations. Written from what its cluster package does.
"""

from __future__ import annotations

from collections.abc import Iterable

from headwater.timeline.records import State, States


def roshi_keeps(operations: Iterable[tuple[bytes, State]], max_size: int) -> States:
    """Return what a key of Roshi holds after some operations, in their order."""
    states: States = {}
    for member, state in operations:
        same = sorted(s.score for s in states.values() if s.deleted == state.deleted)
        if len(same) >= max_size and state.score < same[0]:
            continue
        known = states.get(member)
        if known is not None and (
            state.score <= known.score if known.deleted else state.score < known.score
        ):
            continue
        states[member] = state
        _trim(states, state.deleted, max_size)
    return states


def _trim(states: States, deleted: bool, max_size: int) -> None:
    same = sorted((s.score, member) for member, s in states.items() if s.deleted == deleted)
    for _, member in same[: max(0, len(same) - max_size)]:
        del states[member]
