"""A private store for a test: a client of a server that nobody else uses, empty at its begin.

with headwater.testing.store() as hw:
    hw.queue("mail").push(b"hello", delay_ms=60_000)
    hw.clock.advance(60_000)
    assert len(hw.queue("mail").pop()) == 1
"""

from __future__ import annotations

import contextlib
from urllib.parse import quote

from headwater.aio_client import AsyncHeadwater
from headwater.client import Headwater
from headwater.store.directory import default_directory
from headwater.store.interception import intercepted
from headwater.store.url import resolve
from headwater.testing.clock import StoreClock
from headwater.testing.faults import StoreFaults
from headwater.testing.late_clients import LateAsyncStore
from headwater.testing.servers import pool


class PrivateStore(Headwater):
    """A client of a store that is private to a test, with its clock and its faults.

    ``url`` is the address of the store for other clients; it ends with the store and everything
    that was written, even if clients are still connected.
    """

    url: str
    clock: StoreClock
    faults: StoreFaults

    def __init__(self) -> None:
        self._server = pool.take()
        self._address = self._server.open_address()
        self.url = f"unix://{quote(str(self._address))}"
        safe = resolve(self.url, default_directory()).safe
        self.clock = StoreClock(self._server.command)
        self.faults = StoreFaults(safe)
        self._late: list[LateAsyncStore] = []
        self._met = contextlib.ExitStack()
        self._met.enter_context(intercepted(safe, self.faults))
        self._closed = False
        try:
            super().__init__(self.url)
        except BaseException:
            self._end()
            raise

    def async_client(self) -> AsyncHeadwater:
        """Return an async client of this store, which connects with its first call.

        It may be made outside of any loop, and used in one loop after the other. It is closed with
        its loop or with this store, whichever ends first.
        """
        store = LateAsyncStore(self.url)
        self._late.append(store)
        return AsyncHeadwater(store)

    def kill(self) -> None:
        """Kill the server, as a crash does; what it acknowledged is kept. ``start`` ends that."""
        self._server.kill()

    def start(self) -> None:
        """Start the server again after ``kill``; clients that wait for it continue."""
        self._server.start()

    def close(self) -> None:
        """Close all connections to the store, and remove what is in it. May be called again."""
        if not self._closed:
            self._closed = True
            for store in self._late:
                store.end()
            super().close()
            self._end()

    def _end(self) -> None:
        self._met.close()
        with contextlib.suppress(Exception):
            # A server that was killed is discarded with its functions.
            self.clock.restore()
        pool.give_back(self._server, self._address)


def store() -> PrivateStore:
    """Return a private store, which is empty; use it in ``with``, or close it.

    The first one of a process starts a server, and so does each that is open beside others; all
    others take a millisecond. Raises EmbeddedServerFailed.
    """
    return PrivateStore()
