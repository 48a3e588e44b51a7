"""A private store for a test: a client of a server that nobody else uses, empty at its begin.

with headwater.testing.store() as hw:
    hw.queue("mail").push(b"hello", delay_ms=60_000)
    hw.clock.advance(60_000)
    assert len(hw.queue("mail").pop()) == 1
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import os
import secrets
import shutil
import signal
import tempfile
import threading
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from headwater.aio_client import AsyncHeadwater
from headwater.client import Headwater
from headwater.errors import EmbeddedServerFailed
from headwater.store import embedded, supervisor
from headwater.store.aio_connections import open_connections
from headwater.store.aio_store import AsyncStore
from headwater.store.call import Request
from headwater.store.directory import default_directory
from headwater.store.embedded import EmbeddedServer
from headwater.store.faults import RequestObservation
from headwater.store.interception import intercepted
from headwater.store.url import resolve
from headwater.testing.clock import StoreClock
from headwater.testing.faults import StoreFaults

# ── Servers ───────────────────────────────────────────────────────────────────────────────────────
# The servers of this process for tests: each serves one store at a time, and is emptied after it.
#
# A server is started when there is none that is free, which takes about a tenth of a second, and
# ends with the process, however that ends. What it acknowledged survives a kill of the server, not
# of the machine: it writes its file without waiting for the disk.
#
# Each store has an address of its own, which ends with it. So nothing that a test leaves behind,
# as a worker in a thread or a blocked reader, can reach the store of the next test.


_PATIENCE_S = 10.0


class PooledServer:
    """A private server, which stores use one after the other."""

    def __init__(self) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="hw-test-"))
        self._data = self._folder / "data"
        try:
            self._hold = EmbeddedServer.open(self._data)
        except BaseException:
            shutil.rmtree(self._folder, ignore_errors=True)
            raise
        # One that reports a broken connection at once: the server may have been killed.
        self._admin = redis.Redis(
            unix_socket_path=self._hold.socket_path, retry=Retry(NoBackoff(), 0)
        )
        self._settle_in()

    def command(self, *words: Any) -> Any:
        """Run a command of the server; its replies are bytes."""
        return self._admin.execute_command(*words)

    def open_address(self) -> Path:
        """Return the path of a socket that leads to this server until it is closed."""
        address = self._folder / f"{secrets.token_hex(4)}.sock"
        address.symlink_to(self._hold.socket_path)
        return address

    def close_address(self, address: Path) -> None:
        """End an address: nobody can connect with it again, and open connections are closed."""
        address.unlink(missing_ok=True)
        self.command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
        self.command("FLUSHALL", "SYNC")

    def kill(self) -> None:
        """End the server as a crash does; returns when it is gone."""
        if (pid := embedded.status(self._data).pid) is not None:
            os.kill(pid, signal.SIGKILL)
        until = time.monotonic() + _PATIENCE_S
        while not supervisor.is_free(self._data / supervisor.SERVER_LOCK):
            if time.monotonic() > until:
                raise EmbeddedServerFailed(f"the server of {self._data} does not end; kill it")
            time.sleep(0.001)

    def start(self) -> None:
        """Start the server again on what it had acknowledged; costs a round trip if it runs."""
        self._hold.ensure_running()
        self._settle_in()

    def discard(self) -> None:
        """End the server and remove its files."""
        self._admin.close()
        self._hold.close()
        embedded.discard(self._data)
        shutil.rmtree(self._folder, ignore_errors=True)

    def _settle_in(self) -> None:
        self.command("CONFIG", "SET", "appendfsync", "no")


class ServerPool:
    """The servers of a process that no store uses just now."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._free: list[PooledServer] = []
        self._pid = os.getpid()
        atexit.register(self.close)

    def take(self) -> PooledServer:
        """Return a server that nobody else uses: a free one, or a new one."""
        with self._lock:
            if self._pid != os.getpid():
                # A forked child: those are its parent's.
                self._free, self._pid = [], os.getpid()
            if self._free:
                return self._free.pop()
        return PooledServer()

    def give_back(self, server: PooledServer, address: Path) -> None:
        """Empty a server for the next store; one that does not answer is discarded."""
        try:
            server.close_address(address)
        except (redis.RedisError, OSError):
            server.discard()
        else:
            with self._lock:
                self._free.append(server)

    def close(self) -> None:
        """End all servers that nobody uses."""
        with self._lock:
            free, self._free = self._free, []
            if self._pid != os.getpid():
                return
        for server in free:
            server.discard()


pool = ServerPool()


# ── Late clients ──────────────────────────────────────────────────────────────────────────────────
# Async clients for tests, which connect with their first call, in whatever loop that runs.
#
# So a fixture can make one before any loop runs, whichever plugin runs the tests. A client closes
# its connections when its loop ends in order, as loops of asyncio.run and of the plugins do, and
# connects again in another loop.


class LateAsyncStore(AsyncStore):
    """An async store that connects with its first call."""

    def __init__(self, url: str) -> None:
        self._address = resolve(url, default_directory())
        super().__init__(self._address, None)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._meeting: asyncio.Task[None] | None = None
        self._ending: AsyncIterator[None] | None = None

    async def ask(
        self,
        request: Request,
        patience_s: float | None = None,
        observation: RequestObservation | None = None,
    ) -> Any:
        """Do one request, after the first contact with the store in this loop."""
        await self._ensure_connected()
        return await super().ask(request, patience_s, observation)

    async def command(self, *words: Any) -> list[Any]:
        """Run an administrative command, after the first contact with the store in this loop."""
        await self._ensure_connected()
        return await super().command(*words)

    def end(self) -> None:
        """Close the connections from outside of the loop, if that is still open and at rest."""
        loop = self._loop
        if loop is not None and not loop.is_closed() and not loop.is_running():
            loop.run_until_complete(self.close())

    async def _ensure_connected(self) -> None:
        loop = asyncio.get_running_loop()
        if self._loop is not loop:
            self._loop = loop
            self.connections = open_connections(self._address, None)
            self._meeting = loop.create_task(self._connect())
        if self._meeting is not None:
            await asyncio.shield(self._meeting)

    async def _connect(self) -> None:
        # A loop that ends closes the generators that were begun in it.
        self._ending = self._end_with_loop()
        await anext(self._ending)
        await self._meet(None)
        self._meeting = None

    async def _end_with_loop(self) -> AsyncIterator[None]:
        try:
            yield
        finally:
            await self.close()


# ── Store ─────────────────────────────────────────────────────────────────────────────────────────


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
