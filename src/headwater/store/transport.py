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
from typing import Any

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
    OVERDUE_S,
    REPLY_TIMEOUT_S,
    IdleConnections,
    has_news,
    last_words,
    refuse_closed,
    watch,
)
from headwater.store.embedded import EmbeddedServer
from headwater.store.makers import connection_maker
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


def server_maker(address: Address, server: EmbeddedServer | None) -> Callable[..., Any]:
    """Return what makes connections to an address; ``server`` is the one of an embedded store."""
    return connection_maker(
        {"unix_socket_path": server.socket_path} if server else address.options,
        address,
        socket_timeout=CONNECT_TIMEOUT_S,
        redis_connect_func=partial(_log_in, server),
    )
