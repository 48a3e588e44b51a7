# Generated from aio_connections.py by `make derived`, which renews it: change that file.
"""Connections to the server or the cluster of a store; a call may be intercepted on its way."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Protocol

import redis
import redis.exceptions

from headwater.errors import HeadwaterError
from headwater.store import faults
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
from headwater.store.transport import ServerConnections, server_maker
from headwater.store.url import Address


class StoreConnections(Protocol):
    """How commands reach the server or the cluster that an address names."""

    def send(
        self, key: Key, command: tuple[Any, ...], *, fresh: bool, wait_s: float | None = None
    ) -> Any:
        """Run one command and return its reply; ``fresh`` asks for a connection known to be alive.

        ``wait_s`` is how long a blocking command blocks, by the clock of this machine; its reply is
        None then. Raises Unsent when it certainly did not happen, for lack of a connection.
        """

    def send_all(self, commands: Sequence[tuple[Key, tuple[Any, ...]]]) -> list[Any]:
        """Run commands, each with its key, and return the replies; one round trip per server.

        In place of a reply stands the error of the server or of the connection, if there was one.
        """

    def servers(self) -> list[ServerConnections]:
        """Return the connections to every server that takes writes."""

    def renew(self) -> None:
        """Forget what may be out of date: connections, or which node serves what."""

    def close(self) -> None:
        """Close all connections."""


class ClusterConnections:
    """Connections to the servers of a cluster; follows slots as they move."""

    def __init__(self, nodes: tuple[Node, ...], make: Callable[..., Any]) -> None:
        self._make = make
        self._slots = SlotMap(nodes)
        self._servers: dict[Node, ServerConnections] = {}

    def send(
        self, key: Key, command: tuple[Any, ...], *, fresh: bool, wait_s: float | None = None
    ) -> Any:
        """See StoreConnections."""
        if self._slots.stale:
            self._learn()
        node, asking = self._slots.owner(key), False
        for _ in range(MOST_REDIRECTIONS):
            try:
                return self._server(node).send(
                    key, command, fresh=fresh, asking=asking, wait_s=wait_s
                )
            except redis.exceptions.AskError as error:
                asking = not isinstance(error, redis.exceptions.MovedError)
                node = self._slots.redirect(error, node, moved=not asking)
        raise still_moving()

    def send_all(self, commands: Sequence[tuple[Key, tuple[Any, ...]]]) -> list[Any]:
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
                    self._learn()
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
                replies[place] = self.send(*commands[place], fresh=True)
            except (redis.RedisError, OSError) as error:
                replies[place] = error
        return replies

    def servers(self) -> list[ServerConnections]:
        """See StoreConnections."""
        self._learn()
        return [self._server(node) for node in self._slots.primaries()]

    def renew(self) -> None:
        """See StoreConnections: slots may have moved, and a replica may be a primary by now."""
        self._slots.stale = True

    def close(self) -> None:
        """See StoreConnections."""
        self._make = refuse_closed
        while self._servers:
            self._servers.popitem()[1].close()

    def _learn(self) -> None:
        """Ask for the owners of slots; any server may answer."""
        fault: BaseException = redis.ConnectionError("no server is known")
        for node in self._slots.candidates():
            try:
                reply = self._server(node).send("", ("CLUSTER", "SLOTS"), fresh=True)
            except (redis.RedisError, OSError) as error:
                fault = error
            else:
                return self._slots.learn(reply, node)
        raise faults.unsent(fault)

    def _server(self, node: Node) -> ServerConnections:
        server = self._servers.get(node)
        if server is None:
            host, port = node
            # Of two threads that come here at once, both use the one that was there first.
            server = self._servers.setdefault(
                node, ServerConnections(partial(self._make, host=host, port=port))
            )
        return server


class InterceptedConnections:
    """The connections of a store whose calls are intercepted."""

    def __init__(self, connections: StoreConnections, interceptor: Interceptor) -> None:
        self._connections = connections
        self._interceptor = interceptor

    def send(
        self, key: Key, command: tuple[Any, ...], *, fresh: bool, wait_s: float | None = None
    ) -> Any:
        """See StoreConnections."""
        interference = self._interceptor.meet(command)
        if interference is None:
            return self._connections.send(key, command, fresh=fresh, wait_s=wait_s)
        time.sleep(interference.delay_s)
        if interference.before is not None:
            raise interference.before
        reply = self._connections.send(key, command, fresh=fresh, wait_s=wait_s)
        if interference.after is not None:
            raise interference.after
        return reply

    def send_all(self, commands: Sequence[tuple[Key, tuple[Any, ...]]]) -> list[Any]:
        """See StoreConnections."""
        interferences = [self._interceptor.meet(words) or Interference() for _, words in commands]
        time.sleep(max((each.delay_s for each in interferences), default=0))
        met = list(zip(commands, interferences, strict=True))
        sent = [command for command, each in met if each.before is None]
        received = iter(self._connections.send_all(sent) if sent else [])
        replies = []
        for each in interferences:
            reply = each.before if each.before is not None else next(received)
            reply = reply if each.after is None else each.after
            if isinstance(reply, HeadwaterError):
                raise reply
            replies.append(reply)
        return replies

    def servers(self) -> list[ServerConnections]:
        """See StoreConnections; commands to a single server are not intercepted."""
        return self._connections.servers()

    def renew(self) -> None:
        """See StoreConnections."""
        self._connections.renew()

    def close(self) -> None:
        """See StoreConnections."""
        self._connections.close()


def open_connections(address: Address, server: EmbeddedServer | None) -> StoreConnections:
    """Return the connections to an address; ``server`` is the one of an embedded store."""
    make = server_maker(address, server)
    connections: StoreConnections = (
        ClusterConnections(address.nodes, make)
        if address.kind == "cluster"
        else ServerConnections(make)
    )
    if (interceptor := interceptor_of(address.safe)) is not None:
        return InterceptedConnections(connections, interceptor)
    return connections
