"""Connections to the servers of a store; each serves one call at a time.

They report what the caller must know: it was not sent whole (Unsent, so it did not happen), the
server answered, or the connection broke after sending.

Written twice because the transports differ: sockets that block, and streams of an event loop.
"""

from __future__ import annotations

import contextlib
import os
import ssl
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Protocol

import redis
import redis.connection
import redis.exceptions
from hiredis import pack_command

from headwater.store import faults
from headwater.store.call import Key
from headwater.store.connecting import (
    ASKING,
    CLIENT_ID,
    CONNECT_TIMEOUT_S,
    MOST_REDIRECTIONS,
    OVERDUE_S,
    REPLY_TIMEOUT_S,
    IdleConnections,
    Node,
    Scattered,
    SlotMap,
    connection_maker,
    has_news,
    last_words,
    refuse_closed,
    still_moving,
    watch,
)
from headwater.store.embedded import EmbeddedServer
from headwater.store.url import Address


def _log_in(server: EmbeddedServer | None, connection: Any) -> None:
    """Log in, for which the server must answer at once; calls may take longer.

    Another store may have taken the place of the embedded one: its path leads there by now.
    """
    if server is not None:
        server.check_hold()
    if not isinstance(connection._sock, ssl.SSLSocket) and has_news(connection._sock):
        # A server that is full says so and closes, and a command sent to it would hide why.
        connection._parser.on_connect(connection)
        connection.read_response()
    with last_words(connection._sock):
        connection.on_connect()
    connection.client_id = None
    connection._sock.settimeout(REPLY_TIMEOUT_S)


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


class ServerConnections:
    """Connections to one server, the warmest first."""

    def __init__(self, make: Callable[[], Any]) -> None:
        self._make = make
        self._idle = IdleConnections()
        self._watched = False
        self._pid = os.getpid()

    def send(
        self,
        key: Key,  # noqa: ARG002  one server has every key
        command: tuple[Any, ...],
        *,
        fresh: bool,
        asking: bool = False,
        wait_s: float | None = None,
    ) -> Any:
        """See StoreConnections; ``asking`` is for a node that is taking over the key's slot."""
        connection = self._take(fresh)
        packed = pack_command(command)
        commands = (ASKING, packed) if asking else (packed,)
        named = True
        try:
            if wait_s is not None:
                connection.connect()
                named = connection.client_id is not None
                if not named:
                    commands = (CLIENT_ID, *commands)
            connection.send_packed_command(commands, False)
        except (redis.RedisError, OSError) as error:
            # Not all of it was given to the kernel: the server cannot have a whole command.
            raise faults.unsent(error) from error
        try:
            if not named:
                connection.client_id = _read_client_id(connection)
            if asking:
                connection.read_response()
            if wait_s is not None and not self._arrives(connection, wait_s + OVERDUE_S, named):
                return None
            reply = connection.read_response(disable_decoding=True)
        except redis.ResponseError:
            if asking:
                connection.disconnect()
            self._give_back(connection)
            raise
        except BaseException:
            connection.disconnect()
            raise
        self._give_back(connection)
        return reply

    def _arrives(self, connection: Any, wait_s: float, polls: bool) -> bool:
        """Wait for the reply of a command that blocks; returns whether there will be one.

        One that is overdue is asked for by another connection, which frees this one: then the
        command has its reply, with or without a message, and none is lost. Where that is not
        allowed, this connection is closed instead.
        """
        # After the first reply of a connection the second may have been read already.
        if has_news(connection._sock, wait_s) if polls else connection.can_read(wait_s):
            return True
        if connection.client_id:
            with contextlib.suppress(redis.ResponseError):
                self.send("", ("CLIENT", "UNBLOCK", connection.client_id), fresh=True)
                return True
        connection.disconnect()
        return False

    def send_all(self, commands: Sequence[tuple[Key, tuple[Any, ...]]]) -> list[Any]:
        """See StoreConnections."""
        return self.start_all(commands)()

    def start_all(self, commands: Sequence[tuple[Key, tuple[Any, ...]]]) -> Callable[[], list[Any]]:
        """Send commands; what this returns waits for their replies."""
        connection = self._take(fresh=True)
        try:
            connection.connect()
        except (redis.RedisError, OSError) as error:
            unsent = faults.unsent(error)
            return lambda: [unsent] * len(commands)
        try:
            packed = [pack_command(command) for _, command in commands]
            connection.send_packed_command(packed, False)
        except (redis.RedisError, OSError) as error:
            # The server may have some of them.
            connection.disconnect()
            failed = error
            return lambda: [failed] * len(commands)
        return partial(self._receive, connection, len(commands))

    def _receive(self, connection: Any, expected: int) -> list[Any]:
        replies: list[Any] = []
        try:
            while len(replies) < expected:
                try:
                    replies.append(connection.read_response(disable_decoding=True))
                except redis.ResponseError as error:
                    replies.append(error)
        except (redis.RedisError, OSError) as error:
            connection.disconnect()
            return replies + [error] * (expected - len(replies))
        except BaseException:
            # Unread replies would be taken for those of the next call.
            connection.disconnect()
            raise
        self._give_back(connection)
        return replies

    def _give_back(self, connection: Any) -> None:
        if self._idle.put(connection) and not self._watched:
            self._watched = True
            watch(self)
        if self._make is refuse_closed:
            # Closed meanwhile: the caller finds no connection.
            self.renew()

    def _take(self, fresh: bool) -> Any:
        if self._pid != os.getpid():
            self._idle, self._pid, self._watched = IdleConnections(), os.getpid(), False
        try:
            connection = self._idle.take()
        except IndexError:
            return self._make()
        if fresh and has_news(connection._sock):
            connection.disconnect()
        return connection

    def close_unused(self) -> bool:
        """Close idle connections that were unused for long; returns whether many are left."""
        for connection in self._idle.take_unused():
            connection.disconnect()
        self._watched = self._idle.has_many
        return self._watched

    def servers(self) -> list[ServerConnections]:
        """See StoreConnections."""
        return [self]

    def renew(self) -> None:
        """See StoreConnections: this address may lead to another server by now."""
        # Taken one by one: another thread may take some too, and only it may close those.
        with contextlib.suppress(IndexError):
            while True:
                self._idle.take().disconnect()

    def close(self) -> None:
        """See StoreConnections."""
        self._make = refuse_closed
        self.renew()


def _read_client_id(connection: Any) -> Any:
    try:
        return connection.read_response()
    except redis.ResponseError:
        # A user who may not ask: 0 is no connection's number.
        return 0


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
        """See StoreConnections; all servers work at the same time."""
        scattered = Scattered(self._slots, commands)
        while scattered.left:
            try:
                if self._slots.stale:
                    self._learn()
            except (redis.RedisError, OSError) as error:
                scattered.fail(error)
                break
            started = [
                (node, places, self._server(node).start_all(part))
                for node, places, part in scattered.parts()
            ]
            for node, places, receive in started:
                scattered.take(node, places, receive())
        for place in scattered.asked:
            try:
                scattered.replies[place] = self.send(*commands[place], fresh=True)
            except (redis.RedisError, OSError) as error:
                scattered.replies[place] = error
        return scattered.replies

    def servers(self) -> list[ServerConnections]:
        """See StoreConnections."""
        self._learn()
        return [self._server(node) for node in self._slots.primaries()]

    def renew(self) -> None:
        """See StoreConnections: slots may have moved, and a replica may be a primary by now."""
        self._slots.stale = True

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

    def close(self) -> None:
        """See StoreConnections."""
        self._make = refuse_closed
        while self._servers:
            self._servers.popitem()[1].close()

    def _server(self, node: Node) -> ServerConnections:
        server = self._servers.get(node)
        if server is None:
            host, port = node
            # Of two threads that come here at once, both use the one that was there first.
            server = self._servers.setdefault(
                node, ServerConnections(partial(self._make, host=host, port=port))
            )
        return server


def open_connections(address: Address, server: EmbeddedServer | None) -> StoreConnections:
    """Return the connections to an address; ``server`` is the one of an embedded store."""
    make = connection_maker(
        redis.connection,
        {"unix_socket_path": server.socket_path} if server else address.options,
        address,
        socket_timeout=CONNECT_TIMEOUT_S,
        redis_connect_func=partial(_log_in, server),
    )
    return (
        ClusterConnections(address.nodes, make)
        if address.kind == "cluster"
        else ServerConnections(make)
    )
