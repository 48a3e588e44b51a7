"""Connections to the server or the cluster of a store; a call may be intercepted on its way."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final, Protocol

import redis
import redis.exceptions

from headwater.errors import HeadwaterError
from headwater.store import faults
from headwater.store.aio_transport import AsyncServerConnections, server_maker
from headwater.store.call import Key
from headwater.store.connecting import (
    MOST_REDIRECTIONS,
    Node,
    SlotMap,
    refuse_closed,
    still_moving,
)
from headwater.store.embedded import EmbeddedServer
from headwater.store.interception import Interceptor, Interference, interceptor_of
from headwater.store.url import Address

ASYNC: Final = True  # the twin has what is under else


class AsyncStoreConnections(Protocol):
    """How commands reach the server or the cluster that an address names."""

    async def send(
        self, key: Key, command: tuple[Any, ...], *, fresh: bool, wait_s: float | None = None
    ) -> Any:
        """Run one command and return its reply; ``fresh`` asks for a connection known to be alive.

        ``wait_s`` is how long a blocking command blocks, by the clock of this machine; its reply is
        None then. Raises Unsent when it certainly did not happen, for lack of a connection.
        """

    async def send_all(self, commands: Sequence[tuple[Key, tuple[Any, ...]]]) -> list[Any]:
        """Run commands, each with its key, and return the replies; one round trip per server.

        In place of a reply stands the error of the server or of the connection, if there was one.
        """

    async def servers(self) -> list[AsyncServerConnections]:
        """Return the connections to every server that takes writes."""

    async def renew(self) -> None:
        """Forget what may be out of date: connections, or which node serves what."""

    async def close(self) -> None:
        """Close all connections."""


class AsyncClusterConnections:
    """Connections to the servers of a cluster; follows slots as they move."""

    def __init__(self, nodes: tuple[Node, ...], make: Callable[..., Any]) -> None:
        self._make = make
        self._slots = SlotMap(nodes)
        self._servers: dict[Node, AsyncServerConnections] = {}

    async def send(
        self, key: Key, command: tuple[Any, ...], *, fresh: bool, wait_s: float | None = None
    ) -> Any:
        """See StoreConnections."""
        if self._slots.stale:
            await self._learn()
        node, asking = self._slots.owner(key), False
        for _ in range(MOST_REDIRECTIONS):
            try:
                return await self._server(node).send(
                    key, command, fresh=fresh, asking=asking, wait_s=wait_s
                )
            except redis.exceptions.AskError as error:
                asking = not isinstance(error, redis.exceptions.MovedError)
                node = self._slots.redirect(error, node, moved=not asking)
        raise still_moving()

    async def send_all(self, commands: Sequence[tuple[Key, tuple[Any, ...]]]) -> list[Any]:
        """See StoreConnections; all servers work at the same time.

        It is done in rounds: what was redirected goes into the next one.
        """
        replies: list[Any] = [None] * len(commands)
        left: Sequence[int] = range(len(commands))
        asked: list[int] = []
        for _ in range(MOST_REDIRECTIONS):
            if not left:
                break
            try:
                if self._slots.stale:
                    await self._learn()
            except (redis.RedisError, OSError) as error:
                for place in left:
                    replies[place] = error
                break
            parts: dict[Node, list[int]] = {}
            for place in left:
                try:
                    parts.setdefault(self._slots.owner(commands[place][0]), []).append(place)
                except redis.exceptions.ClusterDownError as error:
                    replies[place] = error
            left = []
            sendings = [
                (self._server(node), [commands[place] for place in places])
                for node, places in parts.items()
            ]
            if ASYNC:
                sending = (server.send_all(part) for server, part in sendings)
                answers = await asyncio.gather(*sending)
            else:
                started = [server.start_all(part) for server, part in sendings]
                answers = [receive() for receive in started]
            for (node, places), received in zip(parts.items(), answers, strict=True):
                for place, reply in zip(places, received, strict=True):
                    replies[place] = reply
                    if isinstance(reply, redis.exceptions.MovedError):
                        self._slots.redirect(reply, node, moved=True)
                        replies[place] = still_moving()
                        left.append(place)
                    elif isinstance(reply, redis.exceptions.AskError):
                        asked.append(place)
        # They are few, and sent one by one: their slots are being migrated, key by key.
        for place in asked:
            try:
                replies[place] = await self.send(*commands[place], fresh=True)
            except (redis.RedisError, OSError) as error:
                replies[place] = error
        return replies

    async def servers(self) -> list[AsyncServerConnections]:
        """See StoreConnections."""
        await self._learn()
        return [self._server(node) for node in self._slots.primaries()]

    async def renew(self) -> None:
        """See StoreConnections: slots may have moved, and a replica may be a primary by now."""
        self._slots.stale = True

    async def close(self) -> None:
        """See StoreConnections."""
        self._make = refuse_closed
        while self._servers:
            await self._servers.popitem()[1].close()

    async def _learn(self) -> None:
        """Ask for the owners of slots; any server may answer."""
        fault: BaseException = redis.ConnectionError("no server is known")
        for node in self._slots.candidates():
            try:
                reply = await self._server(node).send("", ("CLUSTER", "SLOTS"), fresh=True)
            except (redis.RedisError, OSError) as error:
                fault = error
            else:
                return self._slots.learn(reply, node)
        raise faults.unsent(fault)

    def _server(self, node: Node) -> AsyncServerConnections:
        server = self._servers.get(node)
        if server is None:
            host, port = node
            # Of two threads that come here at once, both use the one that was there first.
            server = self._servers.setdefault(
                node, AsyncServerConnections(partial(self._make, host=host, port=port))
            )
        return server


class AsyncInterceptedConnections:
    """The connections of a store whose calls are intercepted."""

    def __init__(self, connections: AsyncStoreConnections, interceptor: Interceptor) -> None:
        self._connections = connections
        self._interceptor = interceptor

    async def send(
        self, key: Key, command: tuple[Any, ...], *, fresh: bool, wait_s: float | None = None
    ) -> Any:
        """See StoreConnections."""
        interference = self._interceptor.meet(command)
        if interference is None:
            return await self._connections.send(key, command, fresh=fresh, wait_s=wait_s)
        await asyncio.sleep(interference.delay_s)
        if interference.before is not None:
            raise interference.before
        reply = await self._connections.send(key, command, fresh=fresh, wait_s=wait_s)
        if interference.after is not None:
            raise interference.after
        return reply

    async def send_all(self, commands: Sequence[tuple[Key, tuple[Any, ...]]]) -> list[Any]:
        """See StoreConnections."""
        interferences = [self._interceptor.meet(words) or Interference() for _, words in commands]
        await asyncio.sleep(max((each.delay_s for each in interferences), default=0))
        met = list(zip(commands, interferences, strict=True))
        sent = [command for command, each in met if each.before is None]
        received = iter(await self._connections.send_all(sent) if sent else [])
        replies = []
        for each in interferences:
            reply = each.before if each.before is not None else next(received)
            reply = reply if each.after is None else each.after
            if isinstance(reply, HeadwaterError):
                raise reply
            replies.append(reply)
        return replies

    async def servers(self) -> list[AsyncServerConnections]:
        """See StoreConnections; commands to a single server are not intercepted."""
        return await self._connections.servers()

    async def renew(self) -> None:
        """See StoreConnections."""
        await self._connections.renew()

    async def close(self) -> None:
        """See StoreConnections."""
        await self._connections.close()


def open_connections(address: Address, server: EmbeddedServer | None) -> AsyncStoreConnections:
    """Return the connections to an address; ``server`` is the one of an embedded store."""
    make = server_maker(address, server)
    connections: AsyncStoreConnections = (
        AsyncClusterConnections(address.nodes, make)
        if address.kind == "cluster"
        else AsyncServerConnections(make)
    )
    if (interceptor := interceptor_of(address.safe)) is not None:
        return AsyncInterceptedConnections(connections, interceptor)
    return connections
