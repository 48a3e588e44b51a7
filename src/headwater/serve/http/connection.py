"""A connection of an HTTP client: each request is answered before the next one is begun.

A client that sends several requests without waiting has them answered in order, each seeing what
those before it did. One that is silent in the middle of a request, or for long between two, is
disconnected.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Final, Protocol, cast

from headwater.serve.connections import OpenConnections
from headwater.serve.http.messages import Refused, Reply, Request, spell
from headwater.serve.http.parsing import RequestParser

REQUEST_TIMEOUT_S: Final = 30.0
IDLE_TIMEOUT_S: Final = 120.0
_MOST_AHEAD_BYTES: Final = 64 * 1024
_CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"


class Handler(Protocol):
    """What answers the requests of connections."""

    def handle(self, request: Request, answer: Callable[[Reply], None]) -> None:
        """Answer a request, at once or later: by one call of ``answer``."""

    def refuse(self, refused: Refused) -> Reply:
        """Return the reply to what is refused, which may not even be a request."""

    def count(self, reply: Reply) -> None:
        """Count a request that is answered, whether or not its client is still there."""


class HttpConnection(asyncio.Protocol):
    """One connection."""

    def __init__(self, all_open: OpenConnections, handler: Handler, max_body: int) -> None:
        self._handler = handler
        self._parser = RequestParser(max_body)
        self._all_open = all_open
        self._transport: asyncio.Transport | None = None
        self._request: Request | None = None
        self._paused = False
        self._full = False
        self._ending = False
        # What arrived while a request was under way.
        self._ahead_bytes = 0
        self._heard = time.monotonic()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See asyncio.Protocol."""
        self._transport = cast("asyncio.Transport", transport)
        self._all_open.add(self)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        """See asyncio.Protocol; what is under way goes on, and its answer is dropped."""
        self._transport = None
        self._all_open.discard(self)

    def data_received(self, data: bytes) -> None:
        """See asyncio.Protocol."""
        if self._ending and self._request is None:
            return
        self._heard = time.monotonic()
        self._parser.feed(data)
        if self._request is None:
            self._go_on()
        else:
            self._ahead_bytes += len(data)
            if self._ahead_bytes > _MOST_AHEAD_BYTES:
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
        if self._full or self._parser.requests:
            return
        self._ahead_bytes = 0
        if self._transport is not None and self._paused:
            self._paused = False
            self._transport.resume_reading()

    def _go_on(self) -> None:
        """Begin the next request if it is there."""
        parser = self._parser
        # Most are answered later; those that are answered at once make no deep recursion here.
        while not (self._request or self._ending or self._full or self._transport is None):
            if parser.requests:
                self._request = request = parser.requests.popleft()
                self._handler.handle(request, self._answer)
            elif parser.refused is not None:
                self._refuse(parser.refused)
            else:
                if parser.wants_continue():
                    self._transport.write(_CONTINUE)
                return

    def _answer(self, reply: Reply) -> None:
        request, self._request = self._request, None
        self._handler.count(reply)
        if request is None or self._transport is None:
            return
        self._ending = self._ending or not request.keep_alive
        self._send(reply, bodiless=request.method == "HEAD")
        parser = self._parser
        if (parser.requests or parser.begun or parser.refused) and not self._ending:
            asyncio.get_running_loop().call_soon(self._go_on)
        self._resume()

    def _refuse(self, refused: Refused) -> None:
        reply = self._handler.refuse(refused)
        self._handler.count(reply)
        self._ending = True
        self._send(reply, bodiless=False)

    def _send(self, reply: Reply, *, bodiless: bool) -> None:
        assert self._transport is not None
        self._heard = time.monotonic()
        self._transport.write(
            spell(reply, time.time(), keep_alive=not self._ending, bodiless=bodiless)
        )
        if self._ending:
            self._transport.close()

    def check_timeout(self, now: float) -> None:
        """Close a connection whose client has been silent for too long."""
        if self._request is not None or self._transport is None:
            return
        silent_s = now - self._heard
        if self._parser.begun and silent_s > REQUEST_TIMEOUT_S:
            self._refuse(Refused(408, "the rest of the request did not come"))
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
