"""Requests and replies of HTTP as values, and the bytes of a reply."""

from __future__ import annotations

import http
from email.utils import formatdate
from functools import lru_cache
from typing import Final

import msgspec


class Request(msgspec.Struct, frozen=True, gc=False):
    """A whole request; ``authorization`` is the header of that name, '' without one."""

    method: str
    path: str
    query: str
    authorization: str
    keep_alive: bool
    body: bytes


class Refused(Exception):
    """A request that is answered with an error; ``allow`` are the methods that would do."""

    def __init__(self, status: int, message: str, allow: str = "") -> None:
        super().__init__(message)
        self.status = status
        self.allow = allow


class Reply(msgspec.Struct, frozen=True, gc=False):
    """What is answered; ``headers`` are further ones, each with its line end."""

    status: int
    body: bytes
    content_type: str = "application/json"
    headers: bytes = b""


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
