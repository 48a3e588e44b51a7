"""The async store: the same operations and the same recovery, without blocking the event loop.

A store belongs to the event loop it was opened in; its tasks may all use it at once.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, TypeVar

import redis

from headwater import instrument
from headwater.errors import StoreError
from headwater.instrument import Instrument
from headwater.store import faults, rights
from headwater.store.aio_connections import AsyncStoreConnections, open_connections
from headwater.store.aio_pipe import AsyncPipe
from headwater.store.call import Call, Clock, Look, Many, Operation, Request, Token, Wait
from headwater.store.commands import encoder
from headwater.store.directory import default_directory
from headwater.store.embedded import EmbeddedServer
from headwater.store.library import library, needs_loading
from headwater.store.many import chunks
from headwater.store.observing import Observed, RequestObservation
from headwater.store.store import GREETING, random_token
from headwater.store.url import Address, resolve

T = TypeVar("T")


class AsyncStore:
    """A connected store for asyncio; see Store for what it promises."""

    def __init__(
        self,
        address: Address,
        server: EmbeddedServer | None,
        clock: Callable[[], float],
        token: Callable[[], str],
        *,
        check_rights: bool,
    ) -> None:
        self.clock, self.token = clock, token
        self._check_rights = check_rights
        self.where = address.safe
        self.kind = address.kind
        self.server = server
        self.connections: AsyncStoreConnections = open_connections(address, server)
        self._encode = encoder(address.kind)
        self.version = ""

    @classmethod
    async def open(
        cls,
        url: str | None = None,
        *,
        check_rights: bool = True,
        clock: Callable[[], float] = time.monotonic,
        token: Callable[[], str] = random_token,
    ) -> AsyncStore:
        """Connect, check the server and make sure that it has our functions.

        Without ``check_rights``, the user need not have rights on our own keys: timelines lie under
        keys that their users chose. ``clock`` and ``token`` are what operations and names are given
        for time and for chance.
        """
        address = resolve(url, default_directory())
        server = None
        if address.directory is not None:
            server = await asyncio.to_thread(EmbeddedServer.open, address.directory)
        store = cls(address, server, clock, token, check_rights=check_rights)
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
        recovery = self._recovery(GREETING if self.server else None, None)
        return await self._retry(recovery, fault, self._check_and_load)

    async def _check_and_load(self) -> str:
        infos = [faults.parse_info(reply) for reply in await self.command("INFO", "server")]
        versions = [faults.check_server(info, self.where) for info in infos]
        if self.kind != "cluster":
            faults.refuse_node(infos[0], self.where)
        await self.load_library()
        cluster = self.kind == "cluster"
        for denied in await self.command(*rights.request(cluster)) if self._check_rights else ():
            rights.check(denied, self.where, cluster)
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
                    reply = await self.ask(request, patience_s)
                except (faults.Refusal, StoreError) as error:
                    # An operation may know better than to fail: its main part may be done.
                    request = operation.throw(error)
                else:
                    request = operation.send(reply)
        except StopIteration as done:
            result: T = done.value
            return result

    async def ask(
        self,
        request: Request,
        patience_s: float | None = None,
        observation: RequestObservation | None = None,
    ) -> Any:
        """Do one request, recovering from what can be recovered from, and report it."""
        found = instrument.current()
        if found is not None and observation is None and not isinstance(request, (Clock, Token)):
            return await self._ask_observed(found, request, patience_s)
        if not isinstance(request, (Call, Wait)):
            if isinstance(request, Look):
                return await self._look(request)
            if isinstance(request, Many):
                return await self._ask_many(request, patience_s, observation)
            return self.token() if isinstance(request, Token) else self.clock() * 1000
        command = self._encode(request)
        fresh = not (isinstance(request, Wait) or request.repeatable or request.read_only)
        try:
            return await self.connections.send(request.key, command, fresh=fresh)
        except (redis.RedisError, OSError) as error:
            fault = error
        again = partial(self.connections.send, request.key, command, fresh=True)
        recovery = self._recovery(request, patience_s)
        if observation is not None:
            observation.retried = True
        return await self._retry(recovery, fault, again)

    async def _ask_observed(
        self, found: Instrument, request: Observed, patience_s: float | None
    ) -> Any:
        observation = RequestObservation(found, request, self.where)
        try:
            reply = await self.ask(request, patience_s, observation)
        except BaseException as error:
            observation.fail(error)
            raise
        observation.succeed(reply)
        return reply

    async def _ask_many(
        self, request: Many, patience_s: float | None, observation: RequestObservation | None
    ) -> list[Any]:
        """Run calls, thousands in a round trip; each recovers as a single one does."""
        replies: list[Any] = []
        for chunk in chunks(request, partial(self._recovery, patience_s=patience_s)):
            found = await self._send_all(chunk.unanswered)
            while (before := chunk.take(found)) is not None:
                if observation is not None:
                    observation.retried = True
                try:
                    await self._prepare(*before)
                except (redis.RedisError, OSError) as error:
                    found = [error] * len(chunk.unanswered)
                else:
                    found = await self._send_all(chunk.unanswered)
            replies += chunk.replies
        return replies

    async def _send_all(self, calls: Sequence[Call]) -> list[Any]:
        keyed = [(call.key, self._encode(call)) for call in calls]
        return await self.connections.send_all(keyed)

    async def _look(self, request: Look) -> list[Any] | None:
        """Run commands that only read, in one round trip; None when that did not work at once."""
        keyed = [(request.key, command) for command in request.commands]
        replies = await self.connections.send_all(keyed)
        return None if any(isinstance(reply, Exception) for reply in replies) else replies

    def _recovery(self, request: Call | Wait | None, patience_s: float | None) -> faults.Recovery:
        return faults.Recovery(request, self.where, patience_s, self.clock)

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
        return await server.pipe(timeout_s, self.where)

    async def close(self) -> None:
        """Close all connections and give up the hold on the embedded server."""
        await self.connections.close()
        if self.server is not None:
            await asyncio.to_thread(self.server.close)
