"""Consumers "c" of one stream as processes of their own, which may be killed: see members.py."""

from __future__ import annotations

import signal
from typing import Any

from tests.support.zygote import Zygote


class ConsumerProcesses:
    """Starts consumers of one name, on one database, one store and one stream or topic."""

    def __init__(self, members: Zygote, database_url: str, store_url: str, stream: str) -> None:
        self._members = members
        self._places = (database_url, store_url)
        self._stream = stream

    def start(self, **order: Any) -> int:
        """Start a consumer; members.py tells what can be ordered. Returns its pid."""
        return self._members.start(*self._places, name="c", stream=self._stream, **order)

    def run(self, **order: Any) -> int:
        """Start a consumer that ends by itself, and wait for that; returns its exit code."""
        return self.wait(self.start(**order))

    def wait(self, pid: int) -> int:
        """Wait for the end of a process; returns its exit code, -9 for kill -9."""
        return self._members.wait(pid)

    def end(self, pid: int, number: int = signal.SIGTERM) -> int:
        """Send a process a signal, and wait for its end."""
        return self._members.end(pid, number)
