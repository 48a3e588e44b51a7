"""Connections to the servers of a store, for asyncio, with the promises of transport.py.

They belong to one event loop. A task that waits for a reply may be cancelled: its connection is
closed then, so that no call ever gets the reply of another.

Written twice because the transports differ: sockets that block, and streams of an event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Sequence
from typing import Any

import redis
import redis.exceptions
from hiredis import pack_command

from headwater.store import connecting, faults
from headwater.store.aio_makers import connection_maker
from headwater.store.aio_pipe import AsyncExchange, AsyncPipe
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
)
from headwater.store.embedded import EmbeddedServer
from headwater.store.faults import BRIEF_S, is_given_up
from headwater.store.url import Address


class AsyncServerConnections:
    """Connections to one server, the warmest first."""

    def __init__(self, make: Callable[[], Any]) -> None:
        self._make = make
        self._idle = IdleConnections()
        self._watch: asyncio.TimerHandle | None = None

    async def send(
        self,
        key: Key,  # noqa: ARG002  one server has every key
        command: tuple[Any, ...],
        *,
        fresh: bool,
        asking: bool = False,
        wait_s: float | None = None,
    ) -> Any:
        """See ServerConnections.send."""
        connection = self._take()
        packed = pack_command(command)
        if asking:
            packed = ASKING + packed
        try:
            await _make_ready(connection, fresh)
            if wait_s is not None:
                reply = await self._wait(connection, packed, asking, wait_s)
            else:
                exchange: AsyncExchange = connection.exchange
                replies = await exchange.send(packed, [], 1 + asking, REPLY_TIMEOUT_S)
                reply = _last(replies)
        except redis.ResponseError:
            if asking:
                await connection.disconnect(nowait=True)
            self._give_back(connection)
            raise
        except BaseException:
            await connection.disconnect(nowait=True)
            raise
        self._give_back(connection)
        return reply

    async def _wait(self, connection: Any, packed: bytes, asking: bool, wait_s: float) -> Any:
        """Run a command that blocks; see ServerConnections._arrives for one that is overdue."""
        named = connection.client_id is not None
        replies: list[Any] = []
        commands = packed if named else CLIENT_ID + packed
        done = connection.exchange.send(commands, replies, 1 + asking + (not named), None)
        try:
            await asyncio.wait((done,), timeout=wait_s + OVERDUE_S)
            if not named and replies:
                # 0 is no connection's number: it stands for a user that may not ask.
                asked = replies[0]
                connection.client_id = 0 if isinstance(asked, redis.ResponseError) else asked
            if not done.done():
                if not (connection.client_id and await self._unblock(connection.client_id)):
                    await connection.disconnect(nowait=True)
                    return None
                await asyncio.wait((done,), timeout=REPLY_TIMEOUT_S)
                if not done.done():
                    raise TimeoutError("no answer in time")
            done.result()
        finally:
            done.cancel()
        return _last(replies if named else replies[1:])

    async def _unblock(self, client_id: int) -> bool:
        """Free a connection that is blocked; returns False where the server refuses that."""
        try:
            await self.send("", ("CLIENT", "UNBLOCK", client_id), fresh=True)
        except redis.ResponseError:
            return False
        return True

    async def send_all(self, commands: Sequence[tuple[Key, tuple[Any, ...]]]) -> list[Any]:
        """See StoreConnections.send_all."""
        connection = self._take()
        replies: list[Any] = []
        try:
            await _make_ready(connection, fresh=True)
            packed = b"".join(pack_command(command) for _, command in commands)
            await connection.exchange.send(packed, replies, len(commands), REPLY_TIMEOUT_S)
        except (redis.RedisError, OSError) as error:
            await connection.disconnect(nowait=True)
            return replies + [error] * (len(commands) - len(replies))
        except BaseException:
            # Unread replies would be taken for those of the next call.
            await connection.disconnect(nowait=True)
            raise
        self._give_back(connection)
        return replies

    def _take(self) -> Any:
        try:
            return self._idle.take()
        except IndexError:
            return self._make()

    def _give_back(self, connection: Any) -> None:
        if self._make is refuse_closed:
            # Closed meanwhile: the caller finds no connection.
            _close_now(connection)
        elif self._idle.put(connection) and self._watch is None:
            self._look_later()

    def _look_later(self) -> None:
        self._watch = asyncio.get_running_loop().call_later(
            connecting.IDLE_S / 4, self._close_unused
        )

    def _close_unused(self) -> None:
        """Close idle connections that were unused for long, and check again if many are left."""
        self._watch = None
        for connection in self._idle.take_unused():
            _close_now(connection)
        if self._idle.has_many:
            self._look_later()

    async def pipe(self, timeout_s: float, where: str) -> AsyncPipe:
        """Open a connection that many calls share; raises Unsent."""
        connection = self._make()
        await _connect(connection)
        writer, connection._writer, connection._reader = connection._writer, None, None
        return AsyncPipe(writer, timeout_s, where)

    async def servers(self) -> list[AsyncServerConnections]:
        """See StoreConnections."""
        return [self]

    async def renew(self) -> None:
        """See ServerConnections.renew."""
        with contextlib.suppress(IndexError):
            while True:
                await self._idle.take().disconnect(nowait=True)

    async def close(self) -> None:
        """See StoreConnections."""
        self._make = refuse_closed
        if self._watch is not None:
            self._watch.cancel()
        with contextlib.suppress(IndexError):
            while True:
                await self._idle.take().disconnect()


def _last(replies: list[Any]) -> Any:
    """Return the last of some replies; raises the first that is an error."""
    for reply in replies:
        if isinstance(reply, redis.RedisError):
            raise reply
    return replies[-1]


def _close_now(connection: Any) -> None:
    """Close an idle connection without waiting, as nobody is there to await it."""
    if connection._writer is not None:
        connection._writer.close()
        connection._writer = connection._reader = None


async def _make_ready(connection: Any, fresh: bool) -> None:
    """Connect what is not connected, or was closed by its server; raises Unsent."""
    if fresh and connection.is_connected and _has_news(connection):
        await connection.disconnect(nowait=True)
    if not connection.is_connected:
        await _connect(connection)


async def _connect(connection: Any) -> None:
    began = time.monotonic()
    try:
        async with asyncio.timeout(CONNECT_TIMEOUT_S):
            await connection.connect()
            connection.exchange = AsyncExchange(connection)
        if time.monotonic() - began >= BRIEF_S and is_given_up():
            raise redis.ConnectionError("the caller is gone")
    except TimeoutError:
        raise faults.unsent(redis.TimeoutError("Timeout connecting to server")) from None
    except (redis.RedisError, OSError) as error:
        raise faults.unsent(error) from error


def _has_news(connection: Any) -> bool:
    """Return whether the peer closed an idle connection, even if the loop does not know yet."""
    writer, reader = connection._writer, connection._reader
    if writer.is_closing() or reader.at_eof() or reader.exception() is not None:
        return True
    return has_news(writer.get_extra_info("socket"))


def server_maker(address: Address, server: EmbeddedServer | None) -> Callable[..., Any]:
    """Return what makes connections to an address; ``server`` is the one of an embedded store."""

    async def log_in(connection: Any) -> None:
        if server is not None:
            server.check_hold()
        if "ssl" not in address.options and _has_news(connection):
            # A server that is full says so and closes, and a command sent to it would hide why.
            connection._parser.on_connect(connection)
            await connection.read_response()
        with last_words(connection._writer.get_extra_info("socket")):
            await connection.on_connect()
        connection.client_id = None

    options = {"unix_socket_path": server.socket_path} if server else address.options
    # Both ends of a call are timed here, by one timer each, instead of every read and write.
    return connection_maker(options, address, socket_timeout=None, redis_connect_func=log_in)
