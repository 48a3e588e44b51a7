"""The async store: the same operations and the same recovery, without blocking the event loop."""

from __future__ import annotations

import asyncio
import time
from typing import Any, Protocol, TypeVar

import redis
import redis.asyncio
import redis.exceptions
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from headwater.store import faults
from headwater.store.call import Call, Clock, Operation, Wait
from headwater.store.embedded import EmbeddedServer, default_directory
from headwater.store.library import library, needs_loading
from headwater.store.slots import MOST_REDIRECTIONS, Node, SlotMap
from headwater.store.sync import command_of, connection_options
from headwater.store.url import Address, resolve

T = TypeVar("T")


class AsyncLine(Protocol):
    """How commands reach the server or the cluster that an address names."""

    async def send(self, key: str, command: tuple[Any, ...]) -> Any:
        """Run one command and give its reply."""

    async def each(self, command: tuple[Any, ...]) -> list[Any]:
        """Run one command on every server that takes writes."""

    async def close(self) -> None:
        """Close all connections."""


class AsyncServerLine:
    """Connections to one server."""

    def __init__(self, options: dict[str, Any]) -> None:
        self._client = redis.asyncio.Redis(**options, retry=Retry(NoBackoff(), 0))
        self._client.response_callbacks.clear()

    async def send(self, key: str, command: tuple[Any, ...]) -> Any:  # noqa: ARG002
        """See AsyncLine; one server has every key."""
        return await self._client.execute_command(*command)

    async def send_asking(self, command: tuple[Any, ...]) -> Any:
        """Run one command on a slot that is moving to this server."""
        async with self._client.client() as one:
            await one.execute_command("ASKING")
            return await one.execute_command(*command)

    async def each(self, command: tuple[Any, ...]) -> list[Any]:
        """See AsyncLine."""
        return [await self.send("", command)]

    async def close(self) -> None:
        """See AsyncLine."""
        await self._client.aclose()


class AsyncClusterLine:
    """Connections to the servers of a cluster; follows slots as they move."""

    def __init__(self, address: Address, options: dict[str, Any]) -> None:
        self._options = options
        self._slots = SlotMap(address.nodes)
        self._lines: dict[Node, AsyncServerLine] = {}

    async def send(self, key: str, command: tuple[Any, ...]) -> Any:
        """See AsyncLine."""
        await self._learn()
        node, asking = self._slots.owner(key), False
        for _ in range(MOST_REDIRECTIONS):
            line = self._line(node)
            try:
                if asking:
                    return await line.send_asking(command)
                return await line.send(key, command)
            except redis.exceptions.AskError as error:
                asking = not isinstance(error, redis.exceptions.MovedError)
                node = self._slots.redirect(error, node, moved=not asking)
            except (redis.ConnectionError, redis.TimeoutError, OSError):
                self._slots.stale = True
                raise
        raise redis.exceptions.TryAgainError(f"TRYAGAIN the slot of {key} is moving")

    async def each(self, command: tuple[Any, ...]) -> list[Any]:
        """See AsyncLine."""
        self._slots.stale = True
        await self._learn()
        return [await self._line(node).send("", command) for node in self._slots.primaries()]

    def _line(self, node: Node) -> AsyncServerLine:
        if node not in self._lines:
            host, port = node
            self._lines[node] = AsyncServerLine({**self._options, "host": host, "port": port})
        return self._lines[node]

    async def _learn(self) -> None:
        """Ask for the owners of slots when that is due; any server may answer."""
        fault: BaseException | None = None
        for node in self._slots.candidates() if self._slots.stale else ():
            try:
                reply = await self._line(node).send("", ("CLUSTER SLOTS",))
            except (redis.ConnectionError, redis.TimeoutError, OSError) as error:
                fault = error
            else:
                self._slots.learn(reply, node)
                return
        if fault is not None:
            raise fault

    async def close(self) -> None:
        """See AsyncLine."""
        for line in self._lines.values():
            await line.close()


class AsyncStore:
    """A connected store for asyncio; see Store for what it promises."""

    def __init__(self, address: Address, server: EmbeddedServer | None, line: AsyncLine) -> None:
        self.where = address.safe
        self.kind = address.kind
        self.server = server
        self.line = line
        self.version = ""

    @classmethod
    async def open(cls, url: str | None = None) -> AsyncStore:
        """Connect, check the server and make sure that it has our functions."""
        address = resolve(url, default_directory())
        options = connection_options(address)
        server = None
        if address.directory is not None:
            server = await asyncio.to_thread(EmbeddedServer.open, address.directory)
            options["unix_socket_path"] = server.socket_path
        line: AsyncLine = (
            AsyncClusterLine(address, options)
            if address.kind == "cluster"
            else AsyncServerLine(options)
        )
        store = cls(address, server, line)
        try:
            infos = [faults.parse_info(reply) for reply in await line.each(("INFO", "server"))]
            store.version = next(faults.check_version(info, store.where) for info in infos)
            await store.load_library()
        except BaseException as error:
            await store.close()
            if isinstance(error, redis.RedisError | OSError):
                faults.raise_connecting(error, store.where)
            raise
        return store

    async def load_library(self) -> None:
        """Give every server our function library unless it has this one or a newer."""
        try:
            found = await self.line.each(("FCALL", "hw_version", "0"))
        except redis.ResponseError as error:
            if "Function not found" not in str(error):
                raise
            found = [None]
        if any(needs_loading(name and name.decode(), self.where) for name in found):
            await self.line.each(("FUNCTION LOAD", "REPLACE", library().source))

    async def run(self, operation: Operation[T]) -> T:
        """Drive an operation to its end."""
        try:
            request = operation.send(None)
            while True:
                try:
                    if isinstance(request, Clock):
                        reply: Any = time.monotonic() * 1000
                    else:
                        reply = await self.ask(request)
                except faults.Refusal as refusal:
                    request = operation.throw(refusal)
                else:
                    request = operation.send(reply)
        except StopIteration as done:
            result: T = done.value
            return result

    async def ask(self, request: Call | Wait) -> Any:
        """Run one request, recovering from what can be recovered from."""
        command = command_of(request)
        began, tries = time.monotonic(), 0
        while True:
            try:
                return await self.line.send(request.key, command)
            except (redis.RedisError, OSError) as error:
                verdict = faults.judge(error, request, self.where, tries, time.monotonic() - began)
            tries += 1
            if verdict.action == "load":
                await self.load_library()
            else:
                await asyncio.sleep(verdict.delay_s)
                if self.server is not None:
                    await asyncio.to_thread(self.server.ensure_running)

    async def command(self, *words: Any) -> list[Any]:
        """Run an administrative command on every server."""
        return await self.line.each(words)

    async def close(self) -> None:
        """Close all connections and give up the hold on the embedded server."""
        await self.line.close()
        if self.server is not None:
            await asyncio.to_thread(self.server.close)
