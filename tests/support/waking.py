"""Blocked readers: waiting until they block, and how long they take to wake."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from headwater import Group
from tests.support.servers import until

MOST_ROUNDS = 40


def wait_for_members(group: Group, count: int) -> None:
    """Return when so many members of a group are blocked."""
    until(lambda: group.info().waiting == count)


def check_quick(took_ms: Callable[[], float], within_ms: float, *, least: int = 1) -> int:
    """Check that what is measured takes less than so long; returns how often it was measured.

    A busy machine adds to what is measured, and never takes anything away: one round that is quick
    enough proves that the others could have been. ``least`` rounds are done in any case.
    """
    took: list[float] = []
    while len(took) < MOST_ROUNDS:
        took.append(took_ms())
        if len(took) >= least and min(took) < within_ms:
            return len(took)
    rounds = ", ".join(f"{ms:.0f}" for ms in took)
    raise AssertionError(f"it never took less than {within_ms} ms, but {rounds} ms")


def check_wakes(
    pool: ThreadPoolExecutor,
    wait: Callable[[], Any],
    ready: Callable[[], Any],
    act: Callable[[], Any],
    *,
    within_ms: float,
    not_before_ms: float = 0,
) -> int:
    """Check how long after ``act`` a blocked ``wait`` returns; returns how many rounds that took.

    It returns with something, in no round too early, and in one of five or more soon enough.
    """

    def took_ms() -> float:
        waiting = pool.submit(lambda: (wait(), time.perf_counter()))
        until(ready)
        begun = time.perf_counter()
        act()
        found, woken = waiting.result(60)
        assert found
        took = (woken - begun) * 1000
        assert took >= not_before_ms
        return took

    return check_quick(took_ms, within_ms, least=5)
