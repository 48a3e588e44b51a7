"""Time limits of handlers: which threads have been working since when, and which took too long.

A thread cannot be stopped. When its handler has run past the limit, the crew gives the message up
and replaces the thread; what the handler returns later is ignored.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Hashable
from typing import Generic, NamedTuple

from headwater.errors import HandlerTimeout
from headwater.kernel.inputs import Duration, check_ms
from headwater.workers.outcomes import Item


def check_timeout(timeout_ms: Duration | None) -> int | None:
    """Accept how long a handler may run, in milliseconds; None is no limit."""
    return None if timeout_ms is None else check_ms(timeout_ms, "timeout_ms", 1)


class RunningHandler(NamedTuple, Generic[Item]):
    """A thread and the message that it handles since ``began``, by the monotonic clock."""

    item: Item
    began: float
    thread: threading.Thread


class TimedHandlers(Generic[Item]):
    """The handlers that run, in the order in which they began, which is that of their ends."""

    def __init__(self, timeout_ms: int, clock: Callable[[], float] = time.monotonic) -> None:
        self.timeout_ms = timeout_ms
        self._clock = clock
        self._running: dict[Hashable, RunningHandler[Item]] = {}
        self._lock = threading.Lock()

    def begin(self, key: Hashable, item: Item, began: float) -> None:
        """Note that this thread begins to handle a message."""
        with self._lock:
            self._running[key] = RunningHandler(item, began, threading.current_thread())

    def end(self, key: Hashable) -> bool:
        """Note that a handler ended; returns whether that was in time."""
        with self._lock:
            found = self._running.get(key)
            if found is None or found.thread is not threading.current_thread():
                return False
            del self._running[key]
            return True

    def next_end(self) -> float:
        """Return when the next handler will have run too long, by the monotonic clock."""
        with self._lock:
            for running in self._running.values():
                return running.began + self.timeout_ms / 1000
        return self._clock() + self.timeout_ms / 1000

    def take_overdue(self) -> list[RunningHandler[Item]]:
        """Return the handlers that have run too long, and forget them."""
        limit = self._clock() - self.timeout_ms / 1000
        with self._lock:
            overdue = [key for key, running in self._running.items() if running.began <= limit]
            return [self._running.pop(key) for key in overdue]

    def error(self) -> HandlerTimeout:
        """Return the error of a message whose handler has run too long."""
        return HandlerTimeout(self.timeout_ms)
