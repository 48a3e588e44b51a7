"""Single connections for asyncio: one that many calls share, and one that serves a call at a time.

Other connections serve one call at a time, and can tell what happened to each. Here a call costs a
fraction of that, and all that is promised is a whole reply or an error; so it is for calls that may
safely be sent again over another connection.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections import deque
from functools import partial
from typing import Any, Final, NamedTuple, cast

import hiredis
import redis
from hiredis import pack_command

from headwater.kernel import instrument
from headwater.kernel.instrument import Observation
from headwater.store.call import Call
from headwater.store.faults import name_of, size_of
from headwater.store.library import encode_for_server

# ── Aio exchange ──────────────────────────────────────────────────────────────────────────────────
# One connection that serves one call at a time: commands are sent, and their replies awaited.
#
# redis-py opens the connection and logs in. Then its transport is taken over: a protocol of its
# own wakes the caller directly, which costs half of what a stream with a reader and a writer does.


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


# ── Aio pipe ──────────────────────────────────────────────────────────────────────────────────────


class PackedCommands:
    """Commands as they are sent, how many replies they have, and which function they stand for.

    The same may be sent to several servers that are copies of each other. When one of them answers
    byte by byte as another did, its answer is known, and is not read again.
    """

    __slots__ = ("commands", "expected", "function", "replies", "seen")

    def __init__(self, commands: bytes, expected: int, function: str) -> None:
        self.commands = commands
        self.expected = expected
        self.function = function
        self.seen = b""
        self.replies: list[Any] = []

    @classmethod
    def of(cls, call: Call) -> PackedCommands:
        """Encode a call for a server that is alone."""
        return cls(pack_command(encode_for_server(call)), 1, call.function)


class _Waiting(NamedTuple):
    packed: PackedCommands
    replies: list[Any]
    done: asyncio.Future[list[Any]]
    until: float


class AsyncPipe(asyncio.Protocol):
    """A connection that redis-py has opened and logged in, taken over from it.

    A server that leaves a call without its replies for ``timeout_s`` is no longer waited for: the
    connection is closed, and waiting callers get TimeoutError.
    """

    def __init__(self, writer: asyncio.StreamWriter, timeout_s: float, where: str) -> None:
        # Not used; but it would close the transport when it is garbage collected.
        self._writer = writer
        self._transport = cast("asyncio.Transport", writer.transport)
        self._timeout_s = timeout_s
        self._where = where
        self._reader = hiredis.Reader()
        self._waiting: deque[_Waiting] = deque()
        self._loop = asyncio.get_running_loop()
        self._watching = False
        # Whether a part of some replies has come.
        self._midway = False
        self._lost: Exception | None = None
        self._transport.set_protocol(self)

    @property
    def is_open(self) -> bool:
        """Whether calls may be sent."""
        return self._lost is None

    def send(self, packed: PackedCommands) -> asyncio.Future[list[Any]]:
        """Send commands; returns their replies, which are not to be changed, or the first fault.

        A caller that no longer waits may cancel the future: the replies are dropped when they
        arrive.
        """
        done: asyncio.Future[list[Any]] = self._loop.create_future()
        if (found := instrument.current()) is not None:
            # Begun and ended in one context, which is not the caller's: calls overlap here.
            context = contextvars.copy_context()
            name = name_of(packed.function)
            observation = context.run(Observation, found, name, self._where)
            observation.bytes = len(packed.commands)
            done.add_done_callback(partial(_report, observation), context=context)
        if self._lost is not None:
            done.set_exception(self._lost)
            return done
        self._waiting.append(_Waiting(packed, [], done, self._loop.time() + self._timeout_s))
        if not self._watching:
            self._watch()
        self._transport.write(packed.commands)
        return done

    def _watch(self) -> None:
        """Check the call that has waited longest; one timer serves for all."""
        self._watching = bool(self._waiting)
        if self._waiting:
            until = self._waiting[0].until
            if until <= self._loop.time():
                self.abort(TimeoutError("no answer in time"))
            else:
                self._loop.call_at(until, self._watch)

    def data_received(self, data: bytes) -> None:
        """See asyncio.Protocol."""
        if not self._midway and self._waiting and self._waiting[0].packed.seen == data:
            waiting = self._waiting.popleft()
            _tell(waiting.done, waiting.packed.replies)
            return
        try:
            self._read(data)
        except hiredis.ProtocolError as error:
            self.abort(redis.InvalidResponse(str(error)))

    def _read(self, data: bytes) -> None:
        alone, self._midway = not self._midway, True
        self._reader.feed(data)
        while self._waiting:
            packed, replies, done, _ = self._waiting[0]
            while len(replies) < packed.expected:
                reply = self._reader.gets()
                if reply is False:
                    return
                replies.append(reply)
            self._waiting.popleft()
            _tell(done, replies)
            if not self._reader.has_data():
                self._midway = False
                if alone:
                    packed.seen, packed.replies = data, replies
                return
            alone = False

    def connection_lost(self, exc: Exception | None) -> None:
        """See asyncio.Protocol."""
        self.abort(exc or redis.ConnectionError("the server closed the connection"))

    def abort(self, reason: Exception) -> None:
        """Close at once; waiting callers get the reason as an error."""
        if self._lost is None:
            self._lost = reason
            self._transport.abort()
        while self._waiting:
            done = self._waiting.popleft().done
            if not done.done():
                done.set_exception(self._lost)


def _report(observation: Observation, done: asyncio.Future[list[Any]]) -> None:
    if done.cancelled():
        observation.end("failed", asyncio.CancelledError())
    elif error := done.exception():
        # The caller sends it again in another way, unless the server did not reply in time.
        observation.end("failed" if isinstance(error, TimeoutError) else "retried", error)
    else:
        observation.bytes += size_of(done.result())
        observation.end()


def _tell(done: asyncio.Future[list[Any]], replies: list[Any]) -> None:
    if done.done():
        return
    for reply in replies:
        if isinstance(reply, hiredis.ReplyError):
            done.set_exception(redis.ResponseError(str(reply)))
            return
    done.set_result(replies)
