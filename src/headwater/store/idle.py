"""Idle connections of one server: the most recently used is taken first, unused ones are closed.

A burst may need thousands of connections at once. Connections that were not needed for IDLE_S are
closed, except the few that are always kept. A pool that has only those costs nothing; for the
others one thread watches all pools of a process, and ends when there is nothing to close.
"""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections import deque
from typing import Any, Protocol

IDLE_S = 30.0
KEPT = 4


class IdleConnections:
    """Connections that serve no call; safe to share between threads."""

    __slots__ = ("_found",)

    def __init__(self) -> None:
        # The one that was put back last is at the right end.
        self._found: deque[tuple[Any, float]] = deque()

    def take(self) -> Any:
        """Return the warmest connection; raises IndexError when there is none."""
        return self._found.pop()[0]

    def put(self, connection: Any) -> bool:
        """Put a connection back; returns whether there are more than are always kept."""
        self._found.append((connection, time.monotonic()))
        return len(self._found) > KEPT

    def take_unused(self) -> list[Any]:
        """Return the connections that were unused for IDLE_S, to be closed."""
        unused = []
        until = time.monotonic() - IDLE_S
        try:
            # Another thread may take one in between: then a warmer one is closed, which is
            # harmless.
            while len(self._found) > KEPT and self._found[0][1] <= until:
                unused.append(self._found.popleft()[0])
        except IndexError:
            pass
        return unused

    @property
    def has_many(self) -> bool:
        """Whether there are more than are always kept."""
        return len(self._found) > KEPT


class ClosesUnused(Protocol):
    """A pool that the thread watches."""

    def close_unused(self) -> bool:
        """Close connections that were unused for long; returns whether to check again later."""


class _Watch:
    """The thread that watches all pools with many idle connections; it ends with the last."""

    def __init__(self) -> None:
        self.begin_anew()
        # A forked child has the lock as it was, and not the thread.
        os.register_at_fork(after_in_child=self.begin_anew)

    def begin_anew(self) -> None:
        """Begin without pools and without a thread."""
        self._lock = threading.Lock()
        self._pools: weakref.WeakSet[ClosesUnused] = weakref.WeakSet()
        self._running = False

    def add(self, pool: ClosesUnused) -> None:
        """Watch a pool until it has few idle connections."""
        with self._lock:
            self._pools.add(pool)
            if not self._running:
                self._running = True
                threading.Thread(target=self._run, name="headwater-idle", daemon=True).start()

    def _run(self) -> None:
        while True:
            time.sleep(IDLE_S / 4)
            with self._lock:
                pools = list(self._pools)
            done = [pool for pool in pools if not pool.close_unused()]
            with self._lock:
                self._pools.difference_update(done)
                if not self._pools:
                    self._running = False
                    return
            # This thread must not keep a pool alive that is no longer used.
            del pools, done


watch = _Watch().add
