"""Runs of ids: ascending ids without a gap, as first and last; written as 1-1000,1007."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

# Ids without a gap between the first and the last of each, both included; ascending.
Runs: TypeAlias = list[tuple[int, int]]


def runs_of(ids: Sequence[int]) -> Runs:
    """Return the runs of ascending ids without a gap: they hold these ids, and no others."""
    if ids and ids[-1] - ids[0] == len(ids) - 1:
        return [(ids[0], ids[-1])]
    runs: Runs = []
    start = 0
    for place in range(1, len(ids) + 1):
        if place == len(ids) or ids[place] != ids[place - 1] + 1:
            runs.append((ids[start], ids[place - 1]))
            start = place
    return runs


def spell_runs(runs: Runs) -> str:
    """Write runs of ids as 1-1000,1007."""
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)


def read_runs(text: str) -> Runs:
    """Read what spell_runs wrote."""
    runs: Runs = []
    for run in text.split(",") if text else ():
        first, _, last = run.partition("-")
        runs.append((int(first), int(last or first)))
    return runs


def count_ids(runs: Runs) -> int:
    """Return how many ids are in runs."""
    return sum(last - first + 1 for first, last in runs)


def id_at(runs: Runs, place: int) -> int | None:
    """Return the id at a place, counted from 0; None beyond the end."""
    for first, last in runs:
        if 0 <= place <= last - first:
            return first + place
        place -= last - first + 1
    return None


def place_of(runs: Runs, number: int) -> int | None:
    """Return the place of an id, counted from 0; None when it is not there."""
    before = 0
    for first, last in runs:
        if first <= number <= last:
            return before + number - first
        before += last - first + 1
    return None
