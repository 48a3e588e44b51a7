"""Requests out of the bytes of a connection, by llhttp, the parser of Node.js; without I/O.

llhttp refuses what two programs could read in two ways: a body with both a length and a transfer
coding, lines that end in LF alone, folded headers. What it leaves to its users is refused here:
other versions than HTTP/1.0 and 1.1, any number of Host headers but one, transfer codings other
than chunked, and whatever is larger than allowed. docs/decisions/0022 compares it with others.
"""

from __future__ import annotations

from collections import deque
from typing import Final
from urllib.parse import urlsplit

import httptools

from headwater.serve.http.messages import Refused, Request

MAX_HEAD_BYTES: Final = 64 * 1024


class RequestParser:
    """Cuts what arrives on a connection into requests. The methods ``on_...`` are for llhttp.

    ``requests`` are complete, and taken from there. ``begun`` says that a part of another one is
    there, ``refused`` why nothing can follow.
    """

    __slots__ = (
        "_authorization",
        "_body",
        "_chunked",
        "_expects",
        "_head_bytes",
        "_hosts",
        "_in_body",
        "_length",
        "_llhttp",
        "_max_body",
        "_method",
        "_quiet_bytes",
        "_size",
        "_target",
        "begun",
        "refused",
        "requests",
    )

    def __init__(self, max_body: int) -> None:
        self._max_body = max_body
        self._llhttp = httptools.HttpRequestParser(self)
        self._expects: bool
        self.requests: deque[Request] = deque()
        self.refused: Refused | None = None
        # Bytes since the last piece of a body or end of a request: a head, or what llhttp keeps.
        self._quiet_bytes = 0
        self.on_message_begin()
        self.begun = False

    def feed(self, data: bytes) -> None:
        """Take what arrived; adds the requests that it completes."""
        if self.refused is not None:
            return
        self._quiet_bytes += len(data)
        while data:
            try:
                self._llhttp.feed_data(data)
                break
            except httptools.HttpParserUpgrade as upgrade:
                data = data[upgrade.args[0] :]
                if self.begun:
                    data = self._without_upgrade() + data
            except httptools.HttpParserCallbackError as error:
                if not isinstance(error.__context__, Refused):
                    raise
                self.refused = error.__context__
                break
            except httptools.HttpParserError as error:
                self.refused = Refused(400, f"this is not a request of HTTP/1.1: {error}")
                break
        if self._quiet_bytes > MAX_HEAD_BYTES and self.begun and not self.refused:
            self.refused = _head_too_large()

    def _without_upgrade(self) -> bytes:
        """Go on as if a request had not asked for another protocol, which a server may ignore.

        httptools ends such a request with its head. Another parser reads its body: it begins with
        the head that this returns, which says the same of the body.
        """
        last = not self._llhttp.should_keep_alive()
        self._llhttp = httptools.HttpRequestParser(_BehindHead(self))
        framing = b"Content-Length: %d" % self._length
        if self._chunked:
            framing = b"Transfer-Encoding: chunked"
        close = b"Connection: close\r\n" if last else b""
        return b"POST / HTTP/1.1\r\nHost: x\r\n%b%b\r\n\r\n" % (close, framing)

    def wants_continue(self) -> bool:
        """Return whether the client waits for permission to send the body; True once a request."""
        if not (self._expects and self._in_body):
            return False
        self._expects = False
        return True

    def on_message_begin(self) -> None:
        """Begin a request."""
        self.begun = True
        self._in_body = self._expects = self._chunked = False
        self._target = self._authorization = b""
        self._hosts = self._head_bytes = self._length = self._size = 0
        self._body: list[bytes] = []

    def on_url(self, part: bytes) -> None:
        """Take the target of a request, or a part of it."""
        self._target += part
        self._head_bytes += len(part)

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take a header. Those behind the body, its trailers, mean nothing here."""
        self._head_bytes += len(name) + len(value) + 4
        if self._in_body:
            return
        name = name.lower()
        if name == b"host":
            self._hosts += 1
        elif name == b"content-length":
            self._length = int(value)
            if self._length > self._max_body:
                raise self._body_too_large()
        elif name == b"authorization":
            if self._authorization:
                raise Refused(400, "the request has two Authorization headers; send one")
            self._authorization = value
        elif name == b"transfer-encoding":
            if value.strip().lower() != b"chunked":
                raise Refused(400, "a body comes with its Content-Length, or chunked")
            self._chunked = True
        elif name == b"expect":
            self._expects = value.strip().lower() == b"100-continue"

    def on_headers_complete(self) -> None:
        """Check a head; what follows is its body."""
        if self._head_bytes > MAX_HEAD_BYTES:
            raise _head_too_large()
        version = self._llhttp.get_http_version()
        if version == "1.1":
            if self._hosts != 1:
                raise Refused(400, "a request of HTTP/1.1 has one Host header")
        elif version != "1.0":
            raise Refused(400, f"HTTP/{version} is not spoken here; send HTTP/1.1")
        else:
            self._expects = False
            if self._chunked:
                raise Refused(400, "HTTP/1.0 has no chunked bodies; send a Content-Length")
        self._method = self._llhttp.get_method().decode()
        if self._method == "CONNECT":
            # Nothing says where its body ends, and we are no proxy.
            raise Refused(400, "this is no proxy; send the request itself")
        self._in_body = True

    def on_body(self, piece: bytes) -> None:
        """Take a piece of the body."""
        self._quiet_bytes = 0
        self._size += len(piece)
        if self._size > self._max_body:
            raise self._body_too_large()
        self._body.append(piece)

    def on_message_complete(self) -> None:
        """End a request; but one that asks for another protocol and has a body has not ended."""
        self._quiet_bytes = 0
        if (self._length or self._chunked) and self._llhttp.should_upgrade():
            return
        self.begun = False
        path, query = _split(self._target)
        body = self._body
        self.requests.append(
            Request(
                self._method,
                path,
                query,
                self._authorization.strip().decode("latin-1") if self._authorization else "",
                self._llhttp.should_keep_alive(),
                body[0] if len(body) == 1 else b"".join(body),
            )
        )

    def _body_too_large(self) -> Refused:
        return Refused(413, f"a body may have {self._max_body} bytes here; send smaller batches")


class _BehindHead:
    """Passes on to a parser what follows the first head that llhttp reads, and not that head."""

    def __init__(self, parser: RequestParser) -> None:
        self._parser = parser
        self._in_head = True
        self.on_body = parser.on_body
        self.on_message_complete = parser.on_message_complete

    def on_message_begin(self) -> None:
        if not self._in_head:
            self._parser.on_message_begin()

    def on_url(self, part: bytes) -> None:
        if not self._in_head:
            self._parser.on_url(part)

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self._in_head:
            self._parser.on_header(name, value)

    def on_headers_complete(self) -> None:
        if self._in_head:
            self._in_head = False
        else:
            self._parser.on_headers_complete()


def _head_too_large() -> Refused:
    return Refused(431, f"the head of a request has {MAX_HEAD_BYTES} bytes at most")


def _split(target: bytes) -> tuple[str, str]:
    """Return the path and the query of a target."""
    if target.startswith(b"/"):
        path, _, query = target.decode().partition("?")
        return path, query
    try:
        # The absolute form, which clients send that believe this is a proxy.
        parts = urlsplit(target.decode())
    except ValueError:
        raise Refused(400, "the address of the request cannot be read") from None
    return parts.path or "/", parts.query
