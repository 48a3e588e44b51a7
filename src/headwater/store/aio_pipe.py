"""One connection that many calls share: each is sent at once, and replies come back in order.

A line serves one call at a time on a connection, and can tell what became of each. Here a call
costs a fraction of that, and all that is promised is a whole reply or an error; so it is for calls
that do no harm when they are sent again, by whoever has another way.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any, NamedTuple, cast

import hiredis
import redis
from hiredis import pack_command

from headwater.store.call import Call
from headwater.store.sync import for_server


def pack(call: Call) -> bytes:
    """Spell a call as it is sent to a server that is alone."""
    packed: bytes = pack_command(for_server(call))
    return packed


class _Waiting(NamedTuple):
    replies: list[Any]
    expected: int
    done: asyncio.Future[list[Any]]
    until: float


class AsyncPipe(asyncio.Protocol):
    """A connection that redis-py has opened and logged in, taken over from it.

    A server that leaves a call without its replies for ``timeout_s`` is no longer waited for: the
    connection is closed, and whoever waits gets TimeoutError.
    """

    def __init__(self, writer: asyncio.StreamWriter, timeout_s: float) -> None:
        # Not used; but it would close the transport when it is forgotten.
        self._writer = writer
        self._transport = cast("asyncio.Transport", writer.transport)
        self._timeout_s = timeout_s
        self._reader = hiredis.Reader()
        self._waiting: deque[_Waiting] = deque()
        self._loop = asyncio.get_running_loop()
        self._watching = False
        self._lost: Exception | None = None
        self._transport.set_protocol(self)

    @property
    def is_open(self) -> bool:
        """Whether calls may be sent."""
        return self._lost is None

    def send(self, packed: bytes, expected: int) -> asyncio.Future[list[Any]]:
        """Send packed commands; gives their replies, or the first fault among them.

        Who no longer waits may cancel what this gives: the replies are dropped when they come.
        """
        done: asyncio.Future[list[Any]] = self._loop.create_future()
        if self._lost is not None:
            done.set_exception(self._lost)
            return done
        self._waiting.append(_Waiting([], expected, done, self._loop.time() + self._timeout_s))
        if not self._watching:
            self._watch()
        self._transport.write(packed)
        return done

    def _watch(self) -> None:
        """Look after the call that waits the longest; one timer serves for all."""
        self._watching = bool(self._waiting)
        if self._waiting:
            until = self._waiting[0].until
            if until <= self._loop.time():
                self.abort(TimeoutError("no answer in time"))
            else:
                self._loop.call_at(until, self._watch)

    def data_received(self, data: bytes) -> None:
        """See asyncio.Protocol."""
        self._reader.feed(data)
        try:
            while self._waiting:
                replies, expected, done, _ = self._waiting[0]
                while len(replies) < expected:
                    reply = self._reader.gets()
                    if reply is False:
                        return
                    replies.append(reply)
                self._waiting.popleft()
                if not done.done():
                    _tell(done, replies)
        except hiredis.ProtocolError as error:
            self.abort(redis.InvalidResponse(str(error)))

    def connection_lost(self, exc: Exception | None) -> None:
        """See asyncio.Protocol."""
        self.abort(exc or redis.ConnectionError("the server closed the connection"))

    def abort(self, reason: Exception) -> None:
        """Close at once; whoever waits is told why."""
        if self._lost is None:
            self._lost = reason
            self._transport.abort()
        while self._waiting:
            done = self._waiting.popleft().done
            if not done.done():
                done.set_exception(self._lost)


def _tell(done: asyncio.Future[list[Any]], replies: list[Any]) -> None:
    for reply in replies:
        if isinstance(reply, hiredis.ReplyError):
            done.set_exception(redis.ResponseError(str(reply)))
            return
    done.set_result(replies)
