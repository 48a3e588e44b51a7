"""A connection of an HTTP client: each request is answered before the next one is begun.

A client that sends several requests without waiting has them answered in order, each seeing what
those before it did. Whatever it does, it gets an answer to every request that is complete, and it
holds a place, bytes and time within the limits only: a client that sends slowly, reads slowly or
does neither is disconnected.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
import time
from collections.abc import Callable
from functools import partial
from typing import Any, Final, cast

from headwater.serve.connections import ClientConnection, OpenConnections, serve_connections
from headwater.serve.http.messages import (
    Admitted,
    Handler,
    Refused,
    Reply,
    Request,
    StreamedReply,
    own_fault,
)
from headwater.serve.http.parsing import PIECE_BYTES, RequestParser
from headwater.serve.limits import HttpLimits
from headwater.serve.listening import ServerProcess
from headwater.serve.tokens import digest_of

log = logging.getLogger("headwater.serve")


class ReplyPump:
    """Writes the pieces of a reply, each after the one before it was taken.

    ``ended`` is called once, with whether the reply is complete: a client that gets it in chunks
    can tell one that is not.
    """

    __slots__ = ("_chunked", "_ended", "_pieces", "_reply", "_room", "_task", "_whole", "_write")

    def __init__(
        self,
        reply: StreamedReply,
        write: Callable[[bytes], None],
        ended: Callable[[bool], None],
        *,
        chunked: bool,
    ) -> None:
        self._reply = reply
        self._pieces = reply.pieces
        self._write = write
        self._ended = ended
        self._chunked = chunked
        # Whether the reply is whole if it ends now.
        self._whole = False
        # Done when the client has read enough of what was written.
        self._room: asyncio.Future[None] | None = None
        self._task: asyncio.Task[None] | None = None

    @property
    def endless(self) -> bool:
        """Whether the reply ends only with its client."""
        return self._reply.endless

    def start(self) -> None:
        """Begin to send; what was stopped before ends without a piece."""
        self._task = asyncio.get_running_loop().create_task(self._run())
        self._task.add_done_callback(self._done)
        if self._whole:
            self._task.cancel()

    async def _run(self) -> None:
        try:
            async for piece in self._pieces:
                if piece:
                    self._write(b"%x\r\n%b\r\n" % (len(piece), piece) if self._chunked else piece)
                while self._room is not None:
                    await self._room
        finally:
            await self._pieces.aclose()

    def _done(self, task: asyncio.Task[None]) -> None:
        """End the reply; a task that was cancelled before it began has sent nothing."""
        error = None if task.cancelled() else task.exception()
        if error is not None:
            log.error("a reply is cut off: its next piece could not be made", exc_info=error)
        complete = self._whole if task.cancelled() else error is None
        if complete and self._chunked:
            self._write(b"0\r\n\r\n")
        self._ended(complete)

    def pause(self) -> None:
        """Make no further piece until the client has read."""
        if self._room is None:
            self._room = asyncio.get_running_loop().create_future()

    def resume(self) -> None:
        """Go on after a pause."""
        room, self._room = self._room, None
        if room is not None and not room.done():
            room.set_result(None)

    def finish(self) -> None:
        """End an endless reply, as a whole one; any other goes on to its end."""
        if self._reply.endless:
            self.stop()

    def stop(self) -> None:
        """End the reply where it is; its client has what was written, or is gone."""
        self._whole = True
        if self._task is not None:
            self._task.cancel()


# How long a client that was refused is listened to, so that it reads the answer before it learns
# that nobody takes the rest of its request.
LINGER_S: Final = 2.0
_MOST_AHEAD_BYTES: Final = 64 * 1024
_PIECES_AT_ONCE: Final = 8
_CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"
_NOTHING: Final = memoryview(b"")


class HttpConnection(ClientConnection):
    """One connection."""

    def __init__(self, all_open: OpenConnections, handler: Handler, limits: HttpLimits) -> None:
        super().__init__(all_open)
        self._handler = handler
        self._limits = limits
        self._known = not handler.needs_token
        admit = handler.admit if self._known else self._admit
        self._parser = RequestParser(limits, admit, handler.headers, self._caller)
        self._request: Request | None = None
        # Ends the work of the request, and sends its reply, where those are to be ended.
        self._cancel: Callable[[], Any] | None = None
        self._pump: ReplyPump | None = None
        # What arrived and is not parsed yet, since a request is under way.
        self._ahead = _NOTHING
        # When the time of a client that was refused is over, and what it sent since.
        self._lingers_until = 0.0
        self._discarded = 0
        self._idle_since = time.monotonic()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take a place among the open connections, or answer that there is none."""
        self._transport = cast("asyncio.Transport", transport)
        if not self._all_open.add(self, known=self._known):
            self._refuse(Refused(503, "too many connections are open; retry later"))
            self._transport.close()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        """Forget the connection; a request under way goes on unless its handler can end it."""
        self._transport = None
        self._caller.gone = True
        if self._cancel is not None:
            self._cancel()
        self._forget()

    def data_received(self, data: bytes) -> None:
        """Parse what arrived; what follows a request that is under way waits."""
        parser, ahead = self._parser, self._ahead
        if self._ending and self._request is None and not parser.begun:
            self._discarded += len(data)
            if self._discarded > self._limits.max_body:
                self.abort()
        elif len(data) <= PIECE_BYTES and not (self._request or ahead or parser.requests):
            # Most requests come in one piece.
            parser.feed(data)
            self._go_on()
            if parser.begun:
                self._count_held()
        else:
            self._ahead = memoryview(bytes(ahead) + data if ahead else data)
            self._go_on()
            self._count_held()
            if len(self._ahead) > _MOST_AHEAD_BYTES:
                if self._known:
                    self._pause()
                else:
                    # Who has shown no token has no reason to send so much without waiting.
                    self.abort()

    def eof_received(self) -> bool:
        """Answer what a client sent before it closed its side, unless it waits: it may be gone."""
        self._no_more = True
        # It may be gone altogether: what cannot be sent to the store soon is given up.
        self._caller.gone = True
        if not self._ending:
            self._go_on()
        waits = self._cancel is not None and (self._pump is None or self._pump.endless)
        under_way = self._request or self._ahead or self._parser.requests
        return bool(under_way) and not waits and self._closes_one_side

    def pause_writing(self) -> None:
        """Stop reading from a client that does not read."""
        self._full = True
        if self._pump is not None:
            self._pump.pause()
        else:
            self._pause()

    def resume_writing(self) -> None:
        """Go on with the requests of a client that reads again."""
        self._full = False
        if self._pump is not None:
            self._pump.resume()
        self._go_on_reading()

    def _resume(self) -> None:
        waits = self._full or self._parser.requests or self._ahead
        if self._paused and not waits and self._transport is not None:
            self._paused = False
            self._transport.resume_reading()

    def _admit(self, method: str, path: str, authorization: str) -> Admitted:
        admitted = self._handler.admit(method, path, authorization)
        if admitted.known and not self._known:
            if not self._all_open.know(self, digest_of(authorization)):
                raise Refused(
                    503, "this token has too many connections open; close some of them", close=True
                )
            self._known = True
        return admitted

    def _go_on(self) -> None:
        """Parse on and begin the next request if it is there; then others have their turn."""
        parser = self._parser
        pieces = 0
        while not (self._request or self._full or self._transport is None):
            if parser.requests:
                self._begin(parser.requests.popleft())
                return
            if parser.refused is not None:
                self._refuse(parser.refused)
                return
            if not self._ahead:
                if self._no_more:
                    self._transport.close()
                elif parser.begun:
                    self._begun_at = self._begun_at or time.monotonic()
                    if parser.wants_continue():
                        self._write(_CONTINUE)
                return
            if pieces == _PIECES_AT_ONCE:
                asyncio.get_running_loop().call_soon(self._go_on_reading)
                return
            pieces += 1
            size = parser.piece_bytes(self._ahead)
            piece, self._ahead = self._ahead[:size], self._ahead[size:]
            parser.feed(piece)

    def _begin(self, request: Request) -> None:
        self._begun_at = 0.0
        self._request = request
        answer = partial(self._answer, request)
        if request.refused is not None:
            answer(self._handler.refuse(request.refused))
            return
        try:
            cancel = self._handler.handle(request, answer)
            if self._request is request and self._pump is None:
                self._cancel = cancel
                if cancel is not None and self._no_more:
                    cancel()
        except Exception as error:  # noqa: BLE001  whatever it is, the client waits for an answer
            answer(self._handler.refuse(own_fault(error)))

    def _answer(self, request: Request, reply: Reply | StreamedReply) -> None:
        if self._request is not request or self._pump is not None:
            return
        self._cancel = None
        if isinstance(reply, StreamedReply):
            self._handler.count(reply)
            self._stream(request, reply)
            return
        self._request = None
        if self._transport is None:
            self._handler.count(reply)
            self._forget()
            return
        most = self._limits.max_buffered
        if len(reply.body) > most:
            reply = self._handler.refuse(
                Refused(503, f"the reply has more than {most} bytes; ask for less at once")
            )
        self._handler.count(reply)
        self._ending = self._ending or not request.keep_alive or reply.close
        self._send(reply, bodiless=request.method == "HEAD")
        self._ended()
        if self._held or len(reply.body) > PIECE_BYTES:
            self._count_held()

    def _ended(self) -> None:
        """Close the connection behind its last reply, or go on with the next request."""
        assert self._transport is not None
        parser = self._parser
        if self._ending:
            parser.drop()
            self._ahead = _NOTHING
            self._transport.close()
        elif self._ahead or parser.requests or parser.begun or parser.refused or self._no_more:
            asyncio.get_running_loop().call_soon(self._go_on_reading)
        else:
            self._resume()

    def _stream(self, request: Request, reply: StreamedReply) -> None:
        """Begin a streamed reply; the request stays under way until it has ended."""
        bodiless = request.method == "HEAD" or (reply.endless and (self._ending or self._no_more))
        self._ending = self._ending or not (request.keep_alive and request.http11)
        chunked = request.http11 and request.method != "HEAD"
        pump = self._pump = ReplyPump(reply, self._write, self._streamed, chunked=chunked)
        self._cancel = pump.stop
        if self._transport is None or bodiless:
            pump.stop()
        self._write(reply.head(time.time(), chunked=chunked, keep_alive=not self._ending))
        pump.start()

    def _streamed(self, complete: bool) -> None:
        """End a streamed reply; one that is cut off ends with the connection."""
        self._request = self._pump = self._cancel = None
        self._idle_since = time.monotonic()
        if self._transport is None:
            self._forget()
        elif complete:
            self._ended()
        else:
            self.abort()

    def _write(self, data: bytes) -> None:
        if self._transport is not None:
            self._written += len(data)
            self._transport.write(data)

    def _go_on_reading(self) -> None:
        self._go_on()
        self._resume()

    def _refuse(self, refused: Refused) -> None:
        """Answer with an error and take nothing more; what still comes is discarded."""
        if self._transport is None or self._transport.is_closing() or self._lingers_until:
            return
        reply = self._handler.refuse(refused)
        self._handler.count(reply)
        self._ending = True
        self._parser.drop()
        self._ahead = _NOTHING
        self._send(reply, bodiless=False)
        self._lingers_until = time.monotonic() + LINGER_S
        if self._transport.can_write_eof():
            self._transport.write_eof()
        self._resume()
        self._count_held()

    def _send(self, reply: Reply, *, bodiless: bool) -> None:
        self._idle_since = time.monotonic()
        self._write(reply.spelled(time.time(), keep_alive=not self._ending, bodiless=bodiless))

    @property
    def sheddable(self) -> bool:
        """Whether no request is under way that is not answered yet."""
        return self._request is None or self._pump is not None

    @property
    def sheddable_bytes(self) -> int:
        """How many bytes ``shed`` would free: none of a request that is not answered yet."""
        return self._held if self.sheddable else 0

    def _count_held(self) -> None:
        """Count what is buffered here now; this connection may be shed by it, as may others."""
        held = len(self._ahead) + self._parser.held_bytes
        held += len(self._request.body) if self._request is not None else 0
        if self._transport is not None:
            held += self._transport.get_write_buffer_size()
        self._hold(held)

    def _forget(self) -> None:
        """Give up place and bytes, unless a request is still under way."""
        self._parser.drop()
        self._ahead = _NOTHING
        self._count_held()
        if self._request is None:
            self._release()
            self._all_open.discard(self)

    def shed(self, reason: str) -> None:
        """Close the connection to make room; with an answer if the client waits for one."""
        if self._transport is None or not self.sheddable:
            return
        if self._pump is not None or self._lingers_until or self._transport.get_write_buffer_size():
            self.abort()
        else:
            self._refuse(Refused(503, reason))
            self._transport.close()
        self._release()

    def check_timeout(self, now: float) -> None:
        """Close a connection whose client takes too long to send, to read, or to ask again."""
        transport, limits = self._transport, self._limits
        if transport is None:
            return
        if self._lingers_until:
            if now > self._lingers_until:
                self.abort()
            return
        unsent = transport.get_write_buffer_size()
        if self._overdue(unsent, now, limits.reply_ms):
            self.abort()
            return
        if self._held or unsent:
            self._count_held()
        if self._request is not None:
            return
        if self._parser.begun:
            taken_ms = (now - (self._begun_at or now)) * 1000
            if taken_ms > (limits.request_ms if self._parser.in_body else limits.head_ms):
                self._refuse(Refused(408, "the rest of the request did not come in time"))
            return
        idle_ms = limits.idle_ms if self._known else limits.head_ms
        if not unsent and (now - self._idle_since) * 1000 > idle_ms:
            self.abort()

    def finish(self) -> None:
        """Take no request behind the one that has begun; close once that is answered."""
        self._ending = True
        if self._pump is not None:
            self._pump.finish()
        has_more = self._ahead or self._parser.requests or self._parser.begun
        if self._transport is not None and not (self._request or has_more):
            self._transport.close()


async def serve_http(
    process: ServerProcess,
    handler: Handler,
    limits: HttpLimits,
    tls: ssl.SSLContext | None = None,
    stopping: Callable[[], None] = lambda: None,
    changed: Callable[[int], None] = lambda _: None,
) -> None:
    """Answer requests until the process is told to stop; see serve_connections."""

    def connection(all_open: OpenConnections) -> HttpConnection:
        return HttpConnection(all_open, handler, limits)

    await serve_connections(process, limits, connection, tls, limits.head_ms, changed, stopping)
