"""An HTTP server that stores nothing, with tokens and limits as wished, and raw clients of it."""

from __future__ import annotations

import asyncio
import re
import socket
from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

from headwater.kernel.declaring import Scope
from headwater.serve.connections import OpenConnections
from headwater.serve.http.authorization import authorize
from headwater.serve.http.connection import HttpConnection, serve_http
from headwater.serve.http.messages import Admitted, Refused, Reply, Request, StreamedReply
from headwater.serve.http.parsing import RequestParser, check_nesting
from headwater.serve.limits import HttpLimits
from headwater.serve.tokens import Tokens
from tests.support.serving import ServerThread

GET = b"GET / HTTP/1.1\r\nHost: x\r\n"
POST = b"POST / HTTP/1.1\r\nHost: x\r\n"
CHUNKED = POST + b"Transfer-Encoding: chunked\r\n\r\n"
TOKEN = b"Authorization: Bearer secret\r\n"
TOKENS = Tokens([("secret", Scope.WRITE), ("look", Scope.READ)])
WIDE = HttpLimits()


class Echo:
    """Answers a request with its method, path, query and body.

    GET /large answers with so many bytes as its query says, GET /held when the test says so,
    GET /broken fails, GET /public needs no token, POST /json decodes nothing but checks nesting.
    """

    def __init__(self, tokens: Tokens | None = None) -> None:
        self._tokens = tokens or Tokens()
        self.held: list[Callable[[Reply], None]] = []
        self.counted: list[int] = []
        self.handled = 0

    @property
    def needs_token(self) -> bool:
        return self._tokens.required

    @property
    def headers(self) -> frozenset[bytes]:
        return frozenset((b"x-kept",))

    def admit(self, method: str, path: str, authorization: str) -> Admitted:
        if path == "/nowhere":
            raise Refused(404, "there is nothing")
        if path == "/broken-head":
            raise ZeroDivisionError
        needed = None if path == "/public" else Scope.READ if method == "GET" else Scope.WRITE
        return Admitted(path, authorize(self._tokens, authorization, needed) is not None)

    def handle(self, request: Request, answer: Callable[[Reply], None]) -> None:
        self.handled += 1
        if request.path == "/held":
            self.held.append(answer)
        elif request.path == "/broken":
            raise ZeroDivisionError
        elif request.path == "/large":
            answer(Reply(200, b"x" * int(request.query)))
        else:
            try:
                if request.path == "/json":
                    check_nesting(request.body)
            except Refused as refused:
                answer(self.refuse(refused))
                return
            words = (request.method, request.path, request.query)
            answer(Reply(200, " ".join(words).encode() + b" " + request.body))

    def refuse(self, refused: Refused) -> Reply:
        return Reply(refused.status, str(refused).encode(), close=refused.close)

    def count(self, reply: Reply | StreamedReply) -> None:
        self.counted.append(reply.status)


class Answered(NamedTuple):
    """A reply as a client reads it."""

    status: int
    body: bytes
    closes: bool


def replies(text: bytes) -> list[Answered]:
    """Read all replies of a connection to requests other than HEAD; interim ones are left out."""
    found: list[Answered] = []
    while text:
        head, end, rest = text.partition(b"\r\n\r\n")
        assert end, f"a reply is cut off: {text[:300]!r}"
        status = int(head.split()[1])
        if status == 100:
            text = rest
            continue
        length = re.search(rb"Content-Length: (\d+)", head)
        assert length, head
        size = int(length[1])
        assert len(rest) >= size, f"a body is cut off after {len(rest)} of {size} bytes"
        found.append(Answered(status, rest[:size], b"Connection: close" in head))
        text = rest[size:]
    return found


class Wire(asyncio.Transport):
    """A transport that keeps what is written, and whether more would be read."""

    def __init__(self) -> None:
        super().__init__()
        self.reading, self.closed, self.ended = True, False, False
        self.written, self.unsent = b"", 0

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True

    def write(self, data: bytes | bytearray | memoryview) -> None:
        assert not self.closed
        assert not self.ended
        self.written += data

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        self.ended = True

    def get_write_buffer_size(self) -> int:
        return self.unsent

    def is_closing(self) -> bool:
        return self.closed

    def close(self) -> None:
        self.closed = True

    abort = close


def connect(
    handler: Echo, limits: HttpLimits = WIDE, all_open: OpenConnections | None = None
) -> tuple[HttpConnection, Wire]:
    """Return a connection of a process without sockets, and what it is connected to."""
    if all_open is None:
        all_open = open_connections(limits)
    connection, wire = HttpConnection(all_open, handler, limits), Wire()
    connection.connection_made(wire)
    return connection, wire


def open_connections(limits: HttpLimits) -> OpenConnections:
    return OpenConnections(limits.max_connections, limits.max_anonymous, limits.max_buffered)


def parser(max_body: int = 100) -> RequestParser:
    """Return a parser that admits everything."""
    return RequestParser(
        replace(WIDE, max_body=max_body), lambda _method, path, _token: Admitted(path, True)
    )


class HttpServer(ServerThread):
    """A server of HTTP in a thread of this process, on a port of its own."""

    def __init__(self, handler: Echo, limits: HttpLimits = WIDE) -> None:
        self.handler = handler
        super().__init__(lambda process: serve_http(process, handler, limits))

    def ask(self, *pieces: bytes) -> list[Answered]:
        """Send pieces on a connection of their own; returns the replies until it is closed."""
        with self.connect() as raw:
            for piece in pieces:
                raw.sendall(piece)
            return replies(read_all(raw))


def read_all(raw: socket.socket) -> bytes:
    """Read until the server closes the connection."""
    text = b""
    while piece := raw.recv(65536):
        text += piece
    return text
