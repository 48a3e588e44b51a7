"""Blocked readers: waiting until they block, and how long they take to wake."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from headwater import Group
from tests.support.servers import until


def wait_for_members(group: Group, count: int) -> None:
    """Return when so many members of a group are blocked."""
    until(lambda: group.info().waiting == count)


def wake_ms(
    pool: ThreadPoolExecutor,
    wait: Callable[[], Any],
    ready: Callable[[], Any],
    act: Callable[[], Any],
) -> float:
    """Measure how long after ``act`` a blocked ``wait`` returns; the quickest of five counts."""
    quickest = math.inf
    for _ in range(5):
        waiting = pool.submit(lambda: (wait(), time.perf_counter()))
        until(ready)
        begun = time.perf_counter()
        act()
        found, woken = waiting.result(20)
        assert found
        quickest = min(quickest, (woken - begun) * 1000)
    return quickest
