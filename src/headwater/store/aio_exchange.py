"""One connection that serves one call at a time: commands are sent, and their replies awaited.

redis-py opens the connection and logs in. Then its transport is taken over: a protocol of its own
wakes the caller directly, which costs half of what a stream with a reader and a writer does.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final

import hiredis
import redis

_INCOMPLETE: Final = object()


class AsyncExchange(asyncio.Protocol):
    """A connection that redis-py has opened and logged in, taken over from it.

    redis-py's own protocol still learns when the connection is lost, so that its object can be
    closed and waited for as before.
    """

    __slots__ = (
        "_done",
        "_loop",
        "_lost",
        "_reader",
        "_replies",
        "_streams",
        "_timer",
        "_transport",
        "_until",
        "_wanted",
    )

    def __init__(self, connection: Any) -> None:
        self._transport = connection._writer.transport
        self._streams = self._transport.get_protocol()
        self._reader = hiredis.Reader(
            protocolError=redis.InvalidResponse,
            replyError=connection._parser.parse_error,
            notEnoughData=_INCOMPLETE,
        )
        self._loop = asyncio.get_running_loop()
        self._done: asyncio.Future[list[Any]] | None = None
        self._replies: list[Any] = []
        self._wanted = 0
        self._lost: Exception | None = None
        self._until: float | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._transport.set_protocol(self)

    def send(
        self, commands: bytes, replies: list[Any], wanted: int, timeout_s: float | None
    ) -> asyncio.Future[list[Any]]:
        """Send commands; the future has their replies, which may be errors of the server.

        ``replies`` is what is filled. After ``timeout_s`` without all of them, and when the
        connection is lost, the future fails with that error; the connection is of no use then.
        """
        done = self._done = self._loop.create_future()
        self._replies = replies
        self._wanted = wanted
        if self._lost is not None:
            self._fail(self._lost)
            return done
        self._until = None
        if timeout_s is not None:
            self._until = until = self._loop.time() + timeout_s
            # Consecutive calls share a timer, which checks whether it is early.
            if self._timer is None:
                self._timer = self._loop.call_at(until, self._look)
        self._transport.write(commands)
        return done

    def _look(self) -> None:
        """End the current call if its time is over; one timer serves for all calls."""
        self._timer = None
        if self._done is None or self._until is None:
            return
        if self._loop.time() < self._until:
            self._timer = self._loop.call_at(self._until, self._look)
        else:
            self._fail(TimeoutError("no answer in time"))

    def data_received(self, data: bytes) -> None:
        """Read replies; the last one that is wanted ends the call."""
        reader, replies = self._reader, self._replies
        try:
            reader.feed(data)
            while len(replies) < self._wanted:
                reply = reader.gets()
                if reply is _INCOMPLETE:
                    return
                replies.append(reply)
        except redis.RedisError as error:
            self._fail(error)
            self._transport.abort()
            return
        # An idle connection keeps no replies in memory.
        self._replies, self._wanted = [], 0
        done, self._done = self._done, None
        if done is not None and not done.done():
            done.set_result(replies)

    def connection_lost(self, exc: Exception | None) -> None:
        """Fail the current call, and all that follow."""
        self._lost = exc or redis.ConnectionError("the server closed the connection")
        if self._timer is not None:
            self._timer.cancel()
        self._fail(self._lost)
        self._streams.connection_lost(exc)

    def _fail(self, error: Exception) -> None:
        done, self._done = self._done, None
        if done is not None and not done.done():
            done.set_exception(error)
