"""A request to stop, which threads can wait for together with other things."""

from __future__ import annotations

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


def _close(*ends: int) -> None:
    for end in ends:
        os.close(end)
