"""Requests and replies of HTTP as values, and the bytes of a reply."""

from __future__ import annotations

import http
from collections.abc import AsyncGenerator
from email.utils import formatdate
from functools import lru_cache
from typing import Any, Final

import msgspec

from headwater.store.faults import Caller


class Refused(Exception):
    """A request that is answered with an error.

    ``allow`` are the methods that would do; ``close`` ends the connection with this answer.
    """

    def __init__(self, status: int, message: str, allow: str = "", *, close: bool = False) -> None:
        super().__init__(message)
        self.status = status
        self.allow = allow
        self.close = close


class Admitted(msgspec.Struct, frozen=True, gc=False):
    """What was decided of a request by its head: what it asks for, as its handler knows it.

    ``known`` says that the client has shown a token, or needs none. One that is not may send a body
    of ``strange_bytes``.
    """

    action: Any
    known: bool
    strange_bytes: int = 0


class Request(msgspec.Struct, frozen=True, gc=False):
    """A whole request. ``action`` or ``refused`` is what its handler decided by its head.

    ``headers`` are those that its handler asked for, by their names in lower case. ``http11`` says
    that its client understands a reply in chunks. ``root`` is the path under which an application
    has mounted what serves it. ``caller`` is whoever waits for the reply.
    """

    method: str
    path: str
    query: str
    action: Any
    keep_alive: bool
    body: bytes | bytearray
    refused: Refused | None = None
    headers: dict[bytes, bytes] | None = None
    http11: bool = True
    root: str = ""
    caller: Caller | None = None


class Reply(msgspec.Struct, frozen=True, gc=False):
    """What is answered; ``headers`` are further ones, each with its line end.

    ``close`` ends the connection with this reply.
    """

    status: int
    body: bytes
    content_type: str = "application/json"
    headers: bytes = b""
    close: bool = False

    def spelled(self, now: float, *, keep_alive: bool, bodiless: bool = False) -> bytes:
        """Return the reply as bytes; without its body for a client that asked for the head only."""
        return b"%bContent-Length: %d\r\n%b%b\r\n%b" % (
            _first_lines(self.status, self.content_type, int(now)),
            len(self.body),
            self.headers,
            b"" if keep_alive else _CLOSE,
            b"" if bodiless else self.body,
        )


class StreamedReply(msgspec.Struct, frozen=True, gc=False):
    """A reply whose body is made while it is sent, as fast as the client reads.

    ``pieces`` is closed when the client is gone. An ``endless`` one is ended when the server stops;
    any other has until the end of the drain.
    """

    status: int
    pieces: AsyncGenerator[bytes, None]
    content_type: str
    headers: bytes = b""
    endless: bool = False

    def head(self, now: float, *, chunked: bool, keep_alive: bool) -> bytes:
        """Return the head of the reply as bytes."""
        return b"%b%b%b%b\r\n" % (
            _first_lines(self.status, self.content_type, int(now)),
            b"Transfer-Encoding: chunked\r\n" if chunked else b"",
            self.headers,
            b"" if keep_alive else _CLOSE,
        )


_CLOSE: Final = b"Connection: close\r\n"


@lru_cache(maxsize=64)
def _first_lines(status: int, content_type: str, second: int) -> bytes:
    return (
        f"HTTP/1.1 {status} {http.HTTPStatus(status).phrase}\r\n"
        f"Content-Type: {content_type}\r\nDate: {formatdate(second, usegmt=True)}\r\n"
    ).encode()
