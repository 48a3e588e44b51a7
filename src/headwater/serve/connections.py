"""The open connections of a process, whatever protocol they speak: counted, timed out, drained.

They share places and bytes. Clients that have shown no token yet have places of their own; when
these are full, the connection that has been open longest is closed, so that idle clients cannot
keep others out. When the places of the others are full, a token that has fewer of them than
another takes one of that: no token keeps the others out. When all connections together buffer more
than they may, the one that buffers the most is closed: a small request never suffers for large
ones.
"""

from __future__ import annotations

import asyncio
import logging
import resource
import ssl
import time
from collections.abc import Callable
from typing import Final, Protocol

from headwater.serve.limits import HttpLimits, RespLimits
from headwater.serve.listening import ServerProcess
from headwater.store.faults import Caller

log = logging.getLogger("headwater.serve")

SWEEP_S: Final = 1.0
# Files and connections of the process itself.
_OWN_FILES: Final = 200
_BACKLOG: Final = 2048


class Drainable(Protocol):
    """What a connection can do for the process that holds it."""

    @property
    def sheddable_bytes(self) -> int:
        """How many bytes ``shed`` would free."""

    @property
    def sheddable(self) -> bool:
        """Whether ``shed`` would close it: no request is under way that has to be answered."""

    def check_timeout(self, now: float) -> None:
        """Close the connection if its client takes too long."""

    def shed(self, reason: str) -> None:
        """Close the connection to make room; it holds nothing afterwards."""

    def finish(self) -> None:
        """Take no further request; close once the present one is answered."""

    def abort(self) -> None:
        """Close at once."""


class OpenConnections:
    """All connections of a process, with the places and the bytes that they share.

    ``changed`` is called with 1 for each that is opened, and with -1 for each that is closed.
    """

    def __init__(
        self,
        max_connections: int,
        max_anonymous: int,
        max_buffered: int,
        changed: Callable[[int], None] = lambda _: None,
    ) -> None:
        self._changed = changed
        self._max_connections = max_connections
        self._max_anonymous = max_anonymous
        self._max_buffered = max_buffered
        self._open: set[Drainable] = set()
        # In the order in which they were opened.
        self._anonymous: dict[Drainable, None] = {}
        # The others, by their tokens, in the order in which they were known.
        self._holders: dict[bytes, dict[Drainable, None]] = {}
        self._token_of: dict[Drainable, bytes] = {}
        self._buffered = 0
        self._drained: asyncio.Future[None] | None = None

    def __len__(self) -> int:
        return len(self._open)

    @property
    def buffered(self) -> int:
        """How many bytes all connections buffer together."""
        return self._buffered

    def add(self, connection: Drainable, *, known: bool) -> bool:
        """Give a place to a connection that was opened; returns False when there is none.

        One that is not ``known`` has one of the places for anonymous clients, until ``know`` is
        called.
        """
        if known and not self.know(connection, b""):
            return False
        if not known:
            if len(self._anonymous) >= self._max_anonymous:
                oldest = next(iter(self._anonymous))
                del self._anonymous[oldest]
                oldest.shed("others wait for a place, and this connection has shown no token")
            self._anonymous[connection] = None
        self._open.add(connection)
        self._changed(1)
        return True

    def know(self, connection: Drainable, token: bytes) -> bool:
        """Note that the client of a connection has shown a token, by the digest of that.

        Returns False when there is no place for it: its token has as many as any other, or those
        of the one that has the most are busy.
        """
        self._forget_token(connection)
        own = self._holders.get(token, {})
        if len(self._token_of) >= self._max_connections:
            most = max(self._holders.values(), key=len)
            busy = len(most) <= len(own) + 1
            freed = None if busy else next((one for one in most if one.sheddable), None)
            if freed is None:
                return False
            self._forget_token(freed)
            freed.shed("others wait for a place, and this token has more of them than any other")
        self._anonymous.pop(connection, None)
        self._holders.setdefault(token, own)[connection] = None
        self._token_of[connection] = token
        return True

    def _forget_token(self, connection: Drainable) -> None:
        token = self._token_of.pop(connection, None)
        if token is not None:
            self._holders[token].pop(connection)
            if not self._holders[token]:
                del self._holders[token]

    def discard(self, connection: Drainable) -> None:
        """Forget a connection that is closed, and has no request under way."""
        if connection in self._open:
            self._open.discard(connection)
            self._changed(-1)
        self._anonymous.pop(connection, None)
        self._forget_token(connection)
        if self._drained is not None and not self._open and not self._drained.done():
            self._drained.set_result(None)

    def hold(self, change: int) -> None:
        """Count bytes as buffered, or no longer; closes connections while there are too many bytes.

        What requests under way hold cannot be freed, and so is not.
        """
        self._buffered += change
        while change > 0 and self._buffered > self._max_buffered:
            largest = max(self._open, key=_sheddable, default=None)
            if largest is None or not largest.sheddable_bytes:
                return
            largest.shed("the server buffers as much as it may; retry later")

    async def sweep(self) -> None:
        """Time slow connections out, until cancelled."""
        while True:
            await asyncio.sleep(SWEEP_S)
            for connection in list(self._open):
                try:
                    connection.check_timeout(time.monotonic())
                except Exception:  # the other connections still have to be timed out
                    log.exception("a connection could not be timed out, and is closed")
                    connection.abort()

    async def drain(self, seconds: float) -> None:
        """Wait this long for requests that have begun, then close all connections."""
        self._drained = asyncio.get_running_loop().create_future()
        for connection in list(self._open):
            connection.finish()
        if self._open:
            await asyncio.wait([self._drained], timeout=seconds)
        for connection in list(self._open):
            connection.abort()


def _sheddable(connection: Drainable) -> int:
    return connection.sheddable_bytes


class ClientConnection(asyncio.Protocol):
    """What connections have in common: their transport, what they hold, how replies are taken."""

    def __init__(self, all_open: OpenConnections) -> None:
        self._all_open = all_open
        self._caller = Caller()
        self._transport: asyncio.Transport | None = None
        self._paused = self._full = False
        # Nothing is taken behind what is under way, or behind what has arrived.
        self._ending = self._no_more = False
        # What is buffered here, as it is counted among all; 0 once it is released.
        self._held = 0
        self._released = False
        # When the first byte came of what has not arrived whole.
        self._begun_at = 0.0
        # Of replies: bytes written in all, and how many of them had to be taken since when.
        self._written = self._to_take = 0
        self._to_take_since = 0.0

    @property
    def _closes_one_side(self) -> bool:
        """Whether its client may go on to read when it sends no more: TLS is closed as a whole."""
        transport = self._transport
        return transport is not None and transport.get_extra_info("sslcontext") is None

    def _hold(self, held: int) -> None:
        """Count so many bytes as buffered now; this connection may be shed by it, as may others."""
        if self._released:
            return
        change, self._held = held - self._held, held
        if change:
            self._all_open.hold(change)

    def _release(self) -> None:
        """Count nothing here any more."""
        self._hold(0)
        self._released = True

    def _pause(self) -> None:
        if self._transport is not None and not self._paused:
            self._paused = True
            self._transport.pause_reading()

    def _overdue(self, unsent: int, now: float, limit_ms: int) -> bool:
        """Return whether a client has not taken for so long what was written for it by then."""
        if unsent and self._written - unsent < self._to_take:
            return (now - self._to_take_since) * 1000 > limit_ms
        if unsent:
            self._to_take, self._to_take_since = self._written, now
        return False

    def abort(self) -> None:
        """Close at once."""
        if self._transport is not None:
            self._transport.abort()


async def serve_connections(
    process: ServerProcess,
    limits: HttpLimits | RespLimits,
    connection: Callable[[OpenConnections], asyncio.Protocol],
    tls: ssl.SSLContext | None,
    handshake_ms: int,
    changed: Callable[[int], None],
    stopping: Callable[[], None] = lambda: None,
) -> None:
    """Serve clients until the process is told to stop.

    What has begun by then is still answered, if it is complete and its answer is taken within
    ``limits.drain_ms``; ``stopping`` is called when that time begins. ``changed`` is called with 1
    and -1 when a connection is opened and closed.
    """
    loop = asyncio.get_running_loop()
    all_open = OpenConnections(
        allowed_connections(limits.max_connections, limits.max_anonymous),
        limits.max_anonymous,
        limits.max_buffered,
        changed,
    )
    server = await loop.create_server(
        lambda: connection(all_open),
        sock=process.bound,
        backlog=_BACKLOG,
        ssl=tls,
        ssl_handshake_timeout=handshake_ms / 1000 if tls else None,
    )
    sweeping = loop.create_task(all_open.sweep())
    process.ready()
    await process.stop.wait()
    server.close()
    sweeping.cancel()
    stopping()
    await all_open.drain(limits.drain_ms / 1000)


def allowed_connections(wanted: int, anonymous: int) -> int:
    """Let the process open a file for each connection; returns fewer where it may not.

    Clients that are ``anonymous`` have so many places besides.
    """
    needed = wanted + anonymous + _OWN_FILES
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return wanted
    allowed = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
    if allowed == needed:
        return wanted
    fewer = max(1, allowed - anonymous - _OWN_FILES)
    log.warning(
        "max_connections is %d, and this process may have %d files open: it takes %d "
        "connections; raise the limit of open files (ulimit -n)",
        wanted,
        allowed,
        fewer,
    )
    return fewer
