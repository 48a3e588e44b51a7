"""A connection of a client: requests one after the other, each answered before the next is begun.

A client that sends several without waiting has them answered in order, each seeing what those
before it did. One that is silent in the middle of a request, or for long between two, is let go.
"""

from __future__ import annotations

import asyncio
import time
from typing import Final, cast

from headwater.timeline.server.http import Parser, Refused, Reply, Request, spell
from headwater.timeline.server.service import Service

REQUEST_TIMEOUT_S: Final = 30.0
IDLE_TIMEOUT_S: Final = 120.0
_SWEEP_S: Final = 1.0
_MOST_AHEAD_BYTES: Final = 64 * 1024
_CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"


class Connections:
    """All connections of a process; sweeps out those that are silent."""

    def __init__(self, service: Service, max_body: int) -> None:
        self._service = service
        self._max_body = max_body
        self._open: set[Connection] = set()
        self._draining: asyncio.Future[None] | None = None

    def make(self) -> Connection:
        """Make the protocol of a connection that was accepted."""
        return Connection(self, self._service, self._max_body)

    def opened(self, connection: Connection) -> None:
        """Note a connection."""
        self._open.add(connection)

    def closed(self, connection: Connection) -> None:
        """Forget a connection."""
        self._open.discard(connection)
        if self._draining is not None and not self._open and not self._draining.done():
            self._draining.set_result(None)

    async def sweep(self) -> None:
        """Look after connections, for ever."""
        while True:
            await asyncio.sleep(_SWEEP_S)
            for connection in list(self._open):
                connection.check(time.monotonic())

    async def drain(self, seconds: float) -> None:
        """Let requests that are under way end, within some time, and close all connections."""
        self._draining = asyncio.get_running_loop().create_future()
        for connection in list(self._open):
            connection.finish()
        if self._open:
            await asyncio.wait([self._draining], timeout=seconds)
        for connection in list(self._open):
            connection.abort()


class Connection(asyncio.Protocol):
    """One connection."""

    def __init__(self, all_open: Connections, service: Service, max_body: int) -> None:
        self._service = service
        self._parser = Parser(max_body)
        self._all_open = all_open
        self._transport: asyncio.Transport | None = None
        self._request: Request | None = None
        self._paused = False
        self._full = False
        self._ending = False
        self._heard = time.monotonic()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See asyncio.Protocol."""
        self._transport = cast("asyncio.Transport", transport)
        self._all_open.opened(self)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        """See asyncio.Protocol; what is under way goes on, and its answer is dropped."""
        self._transport = None
        self._all_open.closed(self)

    def data_received(self, data: bytes) -> None:
        """See asyncio.Protocol."""
        if self._ending and self._request is None:
            return
        self._heard = time.monotonic()
        self._parser.feed(data)
        if self._request is None:
            self._go_on()
        elif self._parser.buffered > _MOST_AHEAD_BYTES:
            self._pause()

    def pause_writing(self) -> None:
        """See asyncio.Protocol: a client that does not read is not read either."""
        self._full = True
        self._pause()

    def resume_writing(self) -> None:
        """See asyncio.Protocol."""
        self._full = False
        self._go_on()
        self._resume()

    def _pause(self) -> None:
        if self._transport is not None and not self._paused:
            self._paused = True
            self._transport.pause_reading()

    def _resume(self) -> None:
        if self._transport is not None and self._paused and not self._full:
            self._paused = False
            self._transport.resume_reading()

    def _go_on(self) -> None:
        """Begin the next request if it is there."""
        # Most are answered later; those that are answered at once make no deep recursion here.
        while not (self._request or self._ending or self._full or self._transport is None):
            try:
                request = self._parser.next()
            except Refused as refused:
                reply = self._service.refuse(refused)
                self._service.count(reply)
                self._ending = True
                self._send(reply, bodiless=False)
                return
            if request is None:
                if self._parser.wants_continue():
                    self._transport.write(_CONTINUE)
                return
            self._request = request
            self._service.handle(request, self._answer)

    def _answer(self, reply: Reply) -> None:
        request, self._request = self._request, None
        self._service.count(reply)
        if request is None or self._transport is None:
            return
        self._ending = self._ending or not request.head.keep_alive
        self._send(reply, bodiless=request.head.method == "HEAD")
        if self._parser.begun and not self._ending:
            asyncio.get_running_loop().call_soon(self._go_on)
        self._resume()

    def _send(self, reply: Reply, *, bodiless: bool) -> None:
        assert self._transport is not None
        self._heard = time.monotonic()
        self._transport.write(
            spell(reply, time.time(), keep_alive=not self._ending, bodiless=bodiless)
        )
        if self._ending:
            self._transport.close()

    def check(self, now: float) -> None:
        """Let a silent client go."""
        if self._request is not None or self._transport is None:
            return
        silent_s = now - self._heard
        if self._parser.begun and silent_s > REQUEST_TIMEOUT_S:
            reply = self._service.refuse(Refused(408, "the rest of the request did not come"))
            self._service.count(reply)
            self._ending = True
            self._send(reply, bodiless=False)
        elif silent_s > IDLE_TIMEOUT_S:
            self._transport.close()

    def finish(self) -> None:
        """Take no further request; close once the present one is answered."""
        self._ending = True
        if self._request is None and self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        """Close at once."""
        if self._transport is not None:
            self._transport.abort()
