"""The async store: the same operations and the same recovery, without blocking the event loop.

A store belongs to the event loop it was opened in; its tasks may all use it at once.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, TypeVar

import redis

from headwater.errors import StoreError
from headwater.store import faults
from headwater.store.aio_connections import AsyncStoreConnections, open_connections
from headwater.store.aio_pipe import AsyncPipe
from headwater.store.call import Call, Clock, Look, Operation, Wait
from headwater.store.commands import encoder
from headwater.store.directory import default_directory
from headwater.store.embedded import EmbeddedServer
from headwater.store.library import library, needs_loading
from headwater.store.store import GREETING
from headwater.store.url import Address, resolve

T = TypeVar("T")


class AsyncStore:
    """A connected store for asyncio; see Store for what it promises."""

    def __init__(self, address: Address, server: EmbeddedServer | None) -> None:
        self.where = address.safe
        self.kind = address.kind
        self.server = server
        self.connections: AsyncStoreConnections = open_connections(address, server)
        self._encode = encoder(address.kind)
        self.version = ""

    @classmethod
    async def open(cls, url: str | None = None) -> AsyncStore:
        """Connect, check the server and make sure that it has our functions."""
        address = resolve(url, default_directory())
        server = None
        if address.directory is not None:
            server = await asyncio.to_thread(EmbeddedServer.open, address.directory)
        store = cls(address, server)
        try:
            store.version = await store._first_contact()
        except BaseException:
            await store.close()
            raise
        return store

    async def _first_contact(self) -> str:
        try:
            return await self._check_and_load()
        except (redis.RedisError, OSError) as error:
            fault = error
        recovery = faults.Recovery(GREETING if self.server else None, self.where)
        return await self._retry(recovery, fault, self._check_and_load)

    async def _check_and_load(self) -> str:
        infos = [faults.parse_info(reply) for reply in await self.command("INFO", "server")]
        versions = [faults.check_server(info, self.where) for info in infos]
        if self.kind != "cluster":
            faults.refuse_node(infos[0], self.where)
        await self.load_library()
        return versions[0]

    async def load_library(self) -> None:
        """See Store.load_library."""
        lacking = []
        for server in await self.connections.servers():
            try:
                found = (await server.send("", ("FCALL", "hw_version", 0), fresh=True)).decode()
            except redis.ResponseError as error:
                if "Function not found" not in str(error):
                    raise
                found = None
            if needs_loading(found, self.where):
                lacking.append(server)
        for server in lacking:
            await server.send("", ("FUNCTION", "LOAD", "REPLACE", library().source), fresh=True)

    async def run(self, operation: Operation[T], patience_s: float | None = None) -> T:
        """See Store.run."""
        try:
            request = operation.send(None)
            while True:
                try:
                    if isinstance(request, Clock):
                        reply: Any = time.monotonic() * 1000
                    elif isinstance(request, Look):
                        reply = await self.look(request)
                    else:
                        reply = await self.ask(request, patience_s)
                except (faults.Refusal, StoreError) as error:
                    # An operation may know better than to fail: its main part may be done.
                    request = operation.throw(error)
                else:
                    request = operation.send(reply)
        except StopIteration as done:
            result: T = done.value
            return result

    async def ask(self, request: Call | Wait, patience_s: float | None = None) -> Any:
        """Run one request, recovering from what can be recovered from."""
        command = self._encode(request)
        fresh = not (isinstance(request, Wait) or request.repeatable or request.read_only)
        try:
            return await self.connections.send(request.key, command, fresh=fresh)
        except (redis.RedisError, OSError) as error:
            fault = error
        again = partial(self.connections.send, request.key, command, fresh=True)
        return await self._retry(faults.Recovery(request, self.where, patience_s), fault, again)

    async def look(self, request: Look) -> list[Any] | None:
        """See Store.look."""
        try:
            return await self.connections.send_all(request.key, request.commands)
        except (redis.RedisError, OSError):
            return None

    async def _retry(
        self, recovery: faults.Recovery, fault: Exception, attempt: Callable[[], Awaitable[T]]
    ) -> T:
        """See Store._retry."""
        while True:
            step = recovery.next_step(fault)
            try:
                await self._prepare(step, recovery.delay_s)
                return await attempt()
            except (redis.RedisError, OSError) as error:
                fault = error

    async def _prepare(self, step: faults.Step, delay_s: float) -> None:
        try:
            if step == "load":
                return await self.load_library()
            await asyncio.sleep(delay_s)
            if step == "renew":
                if self.server is not None:
                    await asyncio.to_thread(self.server.ensure_running)
                await self.connections.renew()
        except (redis.RedisError, OSError) as error:
            raise faults.unsent(error) from error

    async def command(self, *words: Any) -> list[Any]:
        """Run an administrative command on every server that takes writes."""
        servers = await self.connections.servers()
        return [await server.send("", words, fresh=True) for server in servers]

    async def pipe(self, timeout_s: float) -> AsyncPipe:
        """Open a connection to a store of one server that many calls share; raises Unsent."""
        (server,) = await self.connections.servers()
        return await server.pipe(timeout_s)

    async def close(self) -> None:
        """Close all connections and give up the hold on the embedded server."""
        await self.connections.close()
        if self.server is not None:
            await asyncio.to_thread(self.server.close)
