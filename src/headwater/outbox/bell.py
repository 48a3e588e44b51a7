"""A wish to stop, rung from any thread or from a signal handler, and heard between two waits."""

from __future__ import annotations

import asyncio
import contextlib
from queue import Empty, SimpleQueue


class Bell:
    """Once rung it stays rung.

    On a queue, not an event: a signal may come while the thread it interrupts holds an event's
    lock, and would then wait for itself.
    """

    def __init__(self) -> None:
        self.rung = False
        self._queue: SimpleQueue[None] = SimpleQueue()

    def ring(self) -> None:
        """Wake whoever waits, now and later."""
        self.rung = True
        self._queue.put(None)

    def wait(self, seconds: float) -> bool:
        """Wait, unless and until it rings; says whether it did."""
        if seconds and not self.rung:
            try:
                self._queue.get(timeout=seconds)
            except Empty:
                pass
            else:
                self._queue.put(None)
        return self.rung


class AsyncBell:
    """The same for asyncio: waited for in one event loop, rung from anywhere."""

    def __init__(self) -> None:
        self.rung = False
        self._event = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None

    def ring(self) -> None:
        """Wake whoever waits, now and later."""
        self.rung = True
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._event.set)

    async def wait(self, seconds: float) -> bool:
        """Wait, unless and until it rings; says whether it did."""
        self._loop = asyncio.get_running_loop()
        if seconds and not self.rung:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._event.wait(), seconds)
        return self.rung
