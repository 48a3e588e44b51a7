"""Requests and replies of HTTP as values: their bytes, their targets, and what answers them."""

from __future__ import annotations

import http
import logging
import re
import secrets
from collections.abc import AsyncGenerator, Callable
from email.utils import formatdate
from functools import lru_cache
from typing import Any, Final, Protocol
from urllib.parse import quote, unquote, urlsplit

import msgspec

from headwater.store.faults import Caller

RETRY_AFTER: Final = b"Retry-After: 1\r\n"


class Refused(Exception):
    """A request that is answered with an error.

    ``allow`` are the methods that would do; ``close`` ends the connection with this answer.
    """

    def __init__(self, status: int, message: str, allow: str = "", *, close: bool = False) -> None:
        super().__init__(message)
        self.status = status
        self.allow = allow
        self.close = close

    @property
    def headers(self) -> bytes:
        """The headers of its reply: what would do instead, or when to try again."""
        headers = f"Allow: {self.allow}\r\n".encode() if self.allow else b""
        if self.status == 401:
            headers += b"WWW-Authenticate: Bearer\r\n"
        return headers + (RETRY_AFTER if self.status in (429, 503) else b"")


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


_HOST: Final = re.compile(rb"[\w.~!$&'()*+,;=%-]*(:\d*)?|\[[\w.:%]+\](:\d*)?", re.ASCII)
# Clients and proxies take these parts for steps in the path, even percent-encoded, and remove them.
_STEP: Final = re.compile(r"{*\.\.?}*")


def check_host(value: bytes) -> None:
    """Accept the value of a Host header, which may be empty; raises Refused for another."""
    if not _HOST.fullmatch(value.strip()):
        raise Refused(400, "the Host header is not the name of a host")


def split_target(method: str, target: bytes) -> tuple[str, str]:
    """Return the path and the query of a target; raises Refused for one that is not allowed."""
    if b"#" in target:
        raise Refused(400, "the target of a request has no fragment; leave out what follows #")
    if target.startswith(b"/"):
        path, _, query = target.decode().partition("?")
        return path, query
    if target == b"*" and method == "OPTIONS":
        return "*", ""
    # The absolute form, which clients send that believe this is a proxy. A server has to accept it,
    # and its host takes the place of that of the Host header, which means nothing here either.
    try:
        parts = urlsplit(target.decode())
        known = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:
        known = False
    if not known:
        raise Refused(400, "the target of a request begins with / or is an address with http")
    if parts.username is not None or parts.password is not None:
        raise Refused(400, "the target of a request has no user and no password")
    return parts.path or "/", parts.query


def path_part(name: str) -> str:
    """Spell a name as one part of a path, which clients and proxies leave as it is.

    The names ``.`` and ``..`` are put in braces; a name that looks like that gets a further pair.
    """
    return quote(f"{{{name}}}" if _STEP.fullmatch(name) else name, safe="")


def name_of_part(part: str) -> str:
    """Return the name that a part of a path spells; raises Refused, 400."""
    try:
        name = unquote(part, errors="strict")
    except UnicodeDecodeError:
        raise Refused(400, "a name in the path is not UTF-8") from None
    inner = name[1:-1]
    return inner if name == f"{{{inner}}}" and _STEP.fullmatch(inner) else name


class Handler(Protocol):
    """What answers the requests of connections."""

    @property
    def needs_token(self) -> bool:
        """Whether a client is anonymous until it shows a token."""

    @property
    def headers(self) -> frozenset[bytes]:
        """The names of the headers that it looks at, in lower case."""

    def admit(self, method: str, path: str, authorization: str) -> Admitted:
        """Decide on a request by its head; raises Refused."""

    def handle(
        self, request: Request, answer: Callable[[Reply | StreamedReply], None]
    ) -> Callable[[], Any] | None:
        """Answer a request that was admitted, at once or later: by one call of ``answer``.

        May return what ends the work when its client is gone; it is answered all the same.
        """

    def refuse(self, refused: Refused) -> Reply:
        """Return the reply to what is refused, which may not even be a request."""

    def count(self, reply: Reply | StreamedReply) -> None:
        """Count a request that is answered, whether or not its client is still there."""


log = logging.getLogger("headwater.serve")


def own_fault(error: BaseException) -> Refused:
    """Log an error that nobody foresaw; returns the refusal that names its place in the log."""
    number = secrets.token_hex(6)
    log.error("request %s failed", number, exc_info=error)
    return Refused(
        500, f"the server failed by a fault of its own; its log says more of request {number}"
    )
