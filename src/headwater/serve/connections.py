"""The open connections of a process, whatever protocol they speak: timed out, and drained."""

from __future__ import annotations

import asyncio
import time
from typing import Final, Protocol

SWEEP_S: Final = 1.0


class Drainable(Protocol):
    """What a connection can do for the process that holds it."""

    def check_timeout(self, now: float) -> None:
        """Close the connection if its client has been silent for too long."""

    def finish(self) -> None:
        """Take no further request; close once the present one is answered."""

    def abort(self) -> None:
        """Close at once."""


class OpenConnections:
    """All connections of a process. A connection adds itself when it opens."""

    def __init__(self) -> None:
        self._open: set[Drainable] = set()
        self._drained: asyncio.Future[None] | None = None

    def add(self, connection: Drainable) -> None:
        """Note a connection that was opened."""
        self._open.add(connection)

    def discard(self, connection: Drainable) -> None:
        """Forget a connection that is closed."""
        self._open.discard(connection)
        if self._drained is not None and not self._open and not self._drained.done():
            self._drained.set_result(None)

    async def sweep(self) -> None:
        """Time silent connections out, until cancelled."""
        while True:
            await asyncio.sleep(SWEEP_S)
            for connection in list(self._open):
                connection.check_timeout(time.monotonic())

    async def drain(self, seconds: float) -> None:
        """Wait so long for requests that are under way, then close all connections."""
        self._drained = asyncio.get_running_loop().create_future()
        for connection in list(self._open):
            connection.finish()
        if self._open:
            await asyncio.wait([self._drained], timeout=seconds)
        for connection in list(self._open):
            connection.abort()
