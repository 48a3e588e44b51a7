"""Which parts run in which process."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from headwater.app.child_messages import PartPlan


class ProcessPlan(NamedTuple):
    """A process that should exist: its number, and the names of its parts."""

    number: int
    parts: tuple[str, ...]


def plan_processes(parts: Sequence[PartPlan], workers: int) -> list[ProcessPlan]:
    """Return the processes for parts: so many workers, and those that parts ask for themselves.

    A part that is spread runs in each worker, any other in the first one; a part that asks for
    processes runs in that many of its own, and in no worker.
    """
    shared = [part for part in parts if part.processes is None]
    found: list[tuple[str, ...]] = []
    for number in range(workers):
        names = tuple(part.name for part in shared if part.spread or number == 0)
        if names:
            found.append(names)
    for part in parts:
        found += [(part.name,)] * (part.processes or 0)
    return [ProcessPlan(number, names) for number, names in enumerate(found)]
