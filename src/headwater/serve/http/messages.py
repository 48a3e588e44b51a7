"""Requests and replies of HTTP as values, and the bytes of a reply."""

from __future__ import annotations

import http
from email.utils import formatdate
from functools import lru_cache
from typing import Final

import msgspec


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
    """What was decided of a request by its head: the name of what it asks for.

    ``known`` says that the client has shown a token, or needs none.
    """

    action: str
    known: bool


class Request(msgspec.Struct, frozen=True, gc=False):
    """A whole request. ``action`` or ``refused`` is what its handler decided by its head."""

    method: str
    path: str
    query: str
    action: str
    keep_alive: bool
    body: bytes | bytearray
    refused: Refused | None = None


class Reply(msgspec.Struct, frozen=True, gc=False):
    """What is answered; ``headers`` are further ones, each with its line end.

    ``close`` ends the connection with this reply.
    """

    status: int
    body: bytes
    content_type: str = "application/json"
    headers: bytes = b""
    close: bool = False


def spell(reply: Reply, now: float, *, keep_alive: bool, bodiless: bool = False) -> bytes:
    """Return a reply as bytes; without its body for a client that asked for the head only."""
    return b"%bContent-Length: %d\r\n%b%b\r\n%b" % (
        _first_lines(reply.status, reply.content_type, int(now)),
        len(reply.body),
        reply.headers,
        b"" if keep_alive else _CLOSE,
        b"" if bodiless else reply.body,
    )


_CLOSE: Final = b"Connection: close\r\n"


@lru_cache(maxsize=64)
def _first_lines(status: int, content_type: str, second: int) -> bytes:
    return (
        f"HTTP/1.1 {status} {http.HTTPStatus(status).phrase}\r\n"
        f"Content-Type: {content_type}\r\nDate: {formatdate(second, usegmt=True)}\r\n"
    ).encode()
