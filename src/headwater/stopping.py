"""A request to stop, which threads can wait for together with other things; and one for tasks."""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import weakref


class StopSignal:
    """Set once, for ever; may be set from another thread or in a signal handler."""

    def __init__(self) -> None:
        # A pipe: unlike an Event it can be polled along with a socket. Never read, so it stays
        # readable once something was written.
        self._ask, self._tell = os.pipe()
        self._set = False
        weakref.finalize(self, _close, self._ask, self._tell)

    def set(self) -> None:
        """Ask for the end."""
        if not self._set:
            self._set = True
            os.write(self._tell, b".")

    def is_set(self) -> bool:
        """Say whether somebody asked for the end."""
        return self._set

    def fileno(self) -> int:
        """Give what becomes readable when somebody asks for the end."""
        return self._ask

    def wait(self, seconds: float) -> bool:
        """Wait for the request; says whether it came."""
        poll = select.poll()
        poll.register(self._ask, select.POLLIN)
        return bool(poll.poll(seconds * 1000))


class AsyncStopSignal:
    """The same for one event loop; may be set from anywhere."""

    def __init__(self) -> None:
        self._set = False
        self._event = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None

    def set(self) -> None:
        """Ask for the end."""
        self._set = True
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._event.set)

    def is_set(self) -> bool:
        """Say whether somebody asked for the end."""
        return self._set

    async def wait(self, seconds: float) -> bool:
        """Wait for the request; says whether it came."""
        self._loop = asyncio.get_running_loop()
        if seconds and not self._set:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._event.wait(), seconds)
        return self._set


def _close(*ends: int) -> None:
    for end in ends:
        os.close(end)
