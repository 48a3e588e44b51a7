"""Replies of HTTP, and how they are spelled as bytes."""

from __future__ import annotations

import http
from email.utils import formatdate
from functools import lru_cache
from typing import Final, NamedTuple


class Reply(NamedTuple):
    """What is answered; ``headers`` are further ones, each with its line end."""

    status: int
    body: bytes
    content_type: str = "application/json"
    headers: str = ""


def spell(reply: Reply, now: float, *, keep_alive: bool, bodiless: bool = False) -> bytes:
    """Return a reply as bytes; without its body for a client that asked for the head only."""
    head = (
        f"{_first_lines(reply.status, reply.content_type, int(now))}"
        f"Content-Length: {len(reply.body)}\r\n{reply.headers}"
        f"{'' if keep_alive else _CLOSE}\r\n"
    ).encode("latin-1")
    return head if bodiless else head + reply.body


_CLOSE: Final = "Connection: close\r\n"


@lru_cache(maxsize=64)
def _first_lines(status: int, content_type: str, second: int) -> str:
    return (
        f"HTTP/1.1 {status} {http.HTTPStatus(status).phrase}\r\n"
        f"Content-Type: {content_type}\r\nDate: {formatdate(second, usegmt=True)}\r\n"
    )
