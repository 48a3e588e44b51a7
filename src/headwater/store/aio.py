"""The async store: the same operations and the same recovery, without blocking the event loop.

A store belongs to the event loop it was opened in; its tasks may all use it at once, and each may
be cancelled: a connection whose reply was not awaited is closed, never used again.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Protocol, TypeVar

import redis
import redis.asyncio.connection
import redis.exceptions
from hiredis import pack_command

from headwater.store import faults
from headwater.store.call import Call, Clock, Operation, Wait
from headwater.store.embedded import EmbeddedServer, default_directory
from headwater.store.library import library, needs_loading
from headwater.store.slots import MOST_REDIRECTIONS, Node, SlotMap
from headwater.store.sync import (
    ASKING,
    CONNECT_TIMEOUT_S,
    GREETING,
    REPLY_TIMEOUT_S,
    command_of,
    command_of_cluster,
    connection_maker,
    has_news,
    refuse_closed,
)
from headwater.store.url import Address, resolve

T = TypeVar("T")


class AsyncLine(Protocol):
    """How commands reach the server or the cluster that an address names; see Line."""

    async def send(self, key: str, command: tuple[Any, ...], *, fresh: bool) -> Any:
        """See Line."""

    async def servers(self) -> list[AsyncServerLine]:
        """See Line."""

    async def renew(self) -> None:
        """See Line."""

    async def close(self) -> None:
        """See Line."""


class AsyncServerLine:
    """Connections to one server, the warmest first."""

    def __init__(self, make: Callable[[], Any]) -> None:
        self._make = make
        self._idle: deque[Any] = deque()

    async def send(
        self,
        key: str,  # noqa: ARG002  one server has every key
        command: tuple[Any, ...],
        *,
        fresh: bool,
        asking: bool = False,
    ) -> Any:
        """See ServerLine.send."""
        connection = self._idle.pop() if self._idle else self._make()
        packed = pack_command(command)
        try:
            if fresh and connection.is_connected and _has_news(connection):
                await connection.disconnect(nowait=True)
            if not connection.is_connected:
                await _connect(connection)
            async with asyncio.timeout(REPLY_TIMEOUT_S):
                await connection.send_packed_command(ASKING + packed if asking else packed, False)
                if asking:
                    await connection.read_response()
                reply = await connection.read_response(disable_decoding=True)
        except redis.ResponseError:
            if asking:
                await connection.disconnect(nowait=True)
            self._idle.append(connection)
            raise
        except BaseException:
            await connection.disconnect(nowait=True)
            raise
        self._idle.append(connection)
        return reply

    async def servers(self) -> list[AsyncServerLine]:
        """See Line."""
        return [self]

    async def renew(self) -> None:
        """See ServerLine.renew."""
        while self._idle:
            await self._idle.pop().disconnect(nowait=True)

    async def close(self) -> None:
        """See Line."""
        self._make = refuse_closed
        while self._idle:
            await self._idle.pop().disconnect()


async def _connect(connection: Any) -> None:
    try:
        async with asyncio.timeout(CONNECT_TIMEOUT_S):
            await connection.connect()
    except (redis.RedisError, OSError) as error:
        raise faults.unsent(error) from error


def _has_news(connection: Any) -> bool:
    """Say whether an idle connection was closed by its peer, also when the loop has not heard."""
    writer, reader = connection._writer, connection._reader
    if writer.is_closing() or reader.at_eof() or reader.exception() is not None:
        return True
    return has_news(writer.get_extra_info("socket"))


class AsyncClusterLine:
    """Connections to the servers of a cluster; follows slots as they move."""

    def __init__(self, nodes: tuple[Node, ...], make: Callable[..., Any]) -> None:
        self._make = make
        self._slots = SlotMap(nodes)
        self._lines: dict[Node, AsyncServerLine] = {}

    async def send(self, key: str, command: tuple[Any, ...], *, fresh: bool) -> Any:
        """See Line."""
        if self._slots.stale:
            await self._learn()
        node, asking = self._slots.owner(key), False
        for _ in range(MOST_REDIRECTIONS):
            try:
                return await self._line(node).send(key, command, fresh=fresh, asking=asking)
            except redis.exceptions.AskError as error:
                asking = not isinstance(error, redis.exceptions.MovedError)
                node = self._slots.redirect(error, node, moved=not asking)
        raise redis.exceptions.TryAgainError("the slot is moving", status_code="TRYAGAIN")

    async def servers(self) -> list[AsyncServerLine]:
        """See Line."""
        await self._learn()
        return [self._line(node) for node in self._slots.primaries()]

    async def renew(self) -> None:
        """See ClusterLine.renew."""
        self._slots.stale = True

    async def close(self) -> None:
        """See Line."""
        self._make = refuse_closed
        while self._lines:
            await self._lines.popitem()[1].close()

    async def _learn(self) -> None:
        """Ask for the owners of slots; any server may answer."""
        fault: BaseException = redis.ConnectionError("no server is known")
        for node in self._slots.candidates():
            try:
                reply = await self._line(node).send("", ("CLUSTER", "SLOTS"), fresh=True)
            except (redis.RedisError, OSError) as error:
                fault = error
            else:
                return self._slots.learn(reply, node)
        raise faults.unsent(fault)

    def _line(self, node: Node) -> AsyncServerLine:
        if node not in self._lines:
            host, port = node
            self._lines[node] = AsyncServerLine(partial(self._make, host=host, port=port))
        return self._lines[node]


class AsyncStore:
    """A connected store for asyncio; see Store for what it promises."""

    def __init__(self, address: Address, server: EmbeddedServer | None) -> None:
        self.where = address.safe
        self.kind = address.kind
        self.server = server
        options = {"unix_socket_path": server.socket_path} if server else address.options
        make = connection_maker(redis.asyncio.connection, options, socket_timeout=None)
        clustered = address.kind == "cluster"
        self.line: AsyncLine = (
            AsyncClusterLine(address.nodes, make) if clustered else AsyncServerLine(make)
        )
        self._spell = command_of_cluster if clustered else command_of
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
            store.version = await store._greet()
        except BaseException:
            await store.close()
            raise
        return store

    async def _greet(self) -> str:
        try:
            return await self._introduce()
        except (redis.RedisError, OSError) as error:
            fault = error
        trouble = faults.Trouble(GREETING if self.server else None, self.where)
        return await self._insist(trouble, fault, self._introduce)

    async def _introduce(self) -> str:
        infos = [faults.parse_info(reply) for reply in await self.command("INFO", "server")]
        versions = [faults.check_server(info, self.where) for info in infos]
        await self.load_library()
        return versions[0]

    async def load_library(self) -> None:
        """See Store.load_library."""
        lacking = []
        for server in await self.line.servers():
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
        command = self._spell(request)
        fresh = not (isinstance(request, Wait) or request.repeatable)
        try:
            return await self.line.send(request.key, command, fresh=fresh)
        except (redis.RedisError, OSError) as error:
            fault = error
        again = partial(self.line.send, request.key, command, fresh=True)
        return await self._insist(faults.Trouble(request, self.where), fault, again)

    async def _insist(
        self, trouble: faults.Trouble, fault: Exception, attempt: Callable[[], Awaitable[T]]
    ) -> T:
        """See Store._insist."""
        while True:
            step = trouble.judge(fault)
            try:
                await self._prepare(step, trouble.delay_s)
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
                await self.line.renew()
        except (redis.RedisError, OSError) as error:
            raise faults.unsent(error) from error

    async def command(self, *words: Any) -> list[Any]:
        """Run an administrative command on every server that takes writes."""
        servers = await self.line.servers()
        return [await server.send("", words, fresh=True) for server in servers]

    async def close(self) -> None:
        """Close all connections and give up the hold on the embedded server."""
        await self.line.close()
        if self.server is not None:
            await asyncio.to_thread(self.server.close)
