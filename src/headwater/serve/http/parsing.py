"""HTTP/1.1 as far as a server of JSON documents needs it, without I/O: bytes in, requests out.

Strict where leniency is dangerous: what could be read in two ways by two programs, such as a body
with both a length and a transfer coding, is refused, and so is whatever is larger than allowed. A
head that was seen before is not read again; clients send the same one over and over.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final, NamedTuple
from urllib.parse import urlsplit

MAX_HEAD_BYTES: Final = 64 * 1024
_MOST_REMEMBERED_BYTES: Final = 1024
_MAX_CHUNK_LINE: Final = 256
_CHUNKED: Final = -1

_TOKEN = rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+"
_HEAD = re.compile(
    rb"(" + _TOKEN + rb") ([!-~]+) HTTP/1\.([01])((?:\r\n" + _TOKEN + rb":[^\r\n\0]*)*)"
)
_CHUNK = re.compile(rb"([0-9A-Fa-f]{1,8})[ \t]*(?:;[^\r\n\0]*)?")


class Refused(Exception):
    """A request that is answered with an error; ``allow`` are the methods that would do."""

    def __init__(self, status: int, message: str, allow: str = "") -> None:
        super().__init__(message)
        self.status = status
        self.allow = allow


class Head(NamedTuple):
    """What stands before a body; ``length`` is -1 for one that comes in chunks."""

    method: str
    path: str
    query: str
    length: int
    keep_alive: bool
    expects: bool
    authorization: str


class Request(NamedTuple):
    """A whole request."""

    head: Head
    body: bytes


def read_head(head: bytes) -> Head:
    """Read a request line and headers, without the empty line; raises Refused."""
    return _remembered(head) if len(head) <= _MOST_REMEMBERED_BYTES else _read_head(head)


def _read_head(head: bytes) -> Head:
    found = _HEAD.fullmatch(head)
    if found is None:
        raise Refused(400, "this is not a request of HTTP/1.0 or HTTP/1.1")
    method, target, minor, fields = found.groups()
    headers: dict[str, str] = {}
    for line in fields.decode("latin-1").split("\r\n")[1:]:
        name, _, value = line.partition(":")
        name, value = name.lower(), value.strip(" \t")
        if headers.setdefault(name, value) != value and name in _SINGLE:
            raise Refused(400, f"the request has two different {name} headers")
    path, query = _split(target.decode())
    words = {word.strip().lower() for word in headers.get("connection", "").split(",")}
    return Head(
        method=method.decode(),
        path=path,
        query=query,
        length=_length(headers, minor == b"1"),
        keep_alive="close" not in words if minor == b"1" else "keep-alive" in words,
        expects=minor == b"1" and headers.get("expect", "").lower() == "100-continue",
        authorization=headers.get("authorization", ""),
    )


_remembered = lru_cache(maxsize=4096)(_read_head)
_SINGLE: Final = {"authorization", "content-length", "expect", "host", "transfer-encoding"}


def _split(target: str) -> tuple[str, str]:
    if target.startswith("/"):
        path, _, query = target.partition("?")
        return path, query
    try:
        # The absolute form, which clients send that believe this is a proxy.
        parts = urlsplit(target)
    except ValueError:
        raise Refused(400, "the address of the request cannot be read") from None
    return parts.path or "/", parts.query


def _length(headers: dict[str, str], chunks_known: bool) -> int:
    coding = headers.get("transfer-encoding")
    text = headers.get("content-length")
    if coding is None:
        if text is None:
            return 0
        if not (text.isascii() and text.isdecimal() and len(text) < 16):
            raise Refused(400, "the Content-Length is not a number")
        return int(text)
    if text is not None or not chunks_known or coding.lower() != "chunked":
        raise Refused(400, "a body has a Content-Length or comes in chunks, and not both")
    return _CHUNKED


class Parser:
    """Cuts what arrives on a connection into requests."""

    def __init__(self, max_body: int) -> None:
        self._max_body = max_body
        # What one read of the socket brought, unless a request is in parts; read up to ``_at``.
        self._buffer: bytes | bytearray = b""
        self._at = 0
        self._head: Head | None = None
        self._chunks: list[bytes] = []
        self._size = 0
        self._continued = False

    def feed(self, data: bytes) -> None:
        """Take what arrived."""
        if self._at == len(self._buffer):
            self._buffer = data
        else:
            if not isinstance(self._buffer, bytearray):
                self._buffer = bytearray(self._buffer)
            del self._buffer[: self._at]
            self._buffer += data
        self._at = 0

    @property
    def buffered(self) -> int:
        """How many bytes wait to be read."""
        return len(self._buffer) - self._at

    @property
    def begun(self) -> bool:
        """Whether a part of a request is there."""
        return self._at < len(self._buffer) or self._head is not None

    def wants_continue(self) -> bool:
        """Say, once for each request, that its client waits to be told to send the body."""
        asked = self._head is not None and self._head.expects and not self._continued
        self._continued = self._continued or asked
        return asked

    def next(self) -> Request | None:
        """Give the next request once all of it is there; raises Refused, and is of no use then."""
        if self._head is None:
            self._head = self._next_head()
            if self._head is None:
                return None
            if self._head.length > self._max_body:
                raise self._too_large()
        head = self._head
        body = self._next_chunks() if head.length == _CHUNKED else self._next_body(head.length)
        if body is None:
            return None
        self._head, self._continued = None, False
        return Request(head, body)

    def _next_head(self) -> Head | None:
        while self._buffer.startswith(b"\r\n", self._at):
            self._at += 2
        end = self._buffer.find(b"\r\n\r\n", self._at, self._at + MAX_HEAD_BYTES)
        if end < 0:
            if self.buffered >= MAX_HEAD_BYTES:
                raise Refused(431, f"the head of a request has {MAX_HEAD_BYTES} bytes at most")
            return None
        head = read_head(bytes(self._buffer[self._at : end]))
        self._at = end + 4
        return head

    def _next_body(self, length: int) -> bytes | None:
        end = self._at + length
        if len(self._buffer) < end:
            return None
        body = bytes(self._buffer[self._at : end])
        self._at = end
        return body

    def _next_chunks(self) -> bytes | None:
        """Collect chunks, each as soon as it is whole."""
        buffer = self._buffer
        while True:
            line = buffer.find(b"\r\n", self._at, self._at + _MAX_CHUNK_LINE)
            if line < 0:
                if self.buffered >= _MAX_CHUNK_LINE:
                    raise Refused(400, "a chunk of the body has no readable size")
                return None
            found = _CHUNK.fullmatch(bytes(buffer[self._at : line]))
            if found is None:
                raise Refused(400, "a chunk of the body has no readable size")
            size = int(found[1], 16)
            if self._size + size > self._max_body:
                raise self._too_large()
            if not size:
                return self._end_of_chunks(line)
            end = line + 2 + size
            if len(buffer) < end + 2:
                return None
            if buffer[end : end + 2] != b"\r\n":
                raise Refused(400, "a chunk of the body is longer than it says")
            self._chunks.append(bytes(buffer[line + 2 : end]))
            self._size += size
            self._at = end + 2

    def _end_of_chunks(self, line: int) -> bytes | None:
        """Pass over what may follow the last chunk, up to the empty line."""
        end = self._buffer.find(b"\r\n\r\n", line)
        if end < 0:
            if len(self._buffer) - line > MAX_HEAD_BYTES:
                raise Refused(431, "too much follows the last chunk of the body")
            return None
        self._at = end + 4
        body = b"".join(self._chunks)
        self._chunks, self._size = [], 0
        return body

    def _too_large(self) -> Refused:
        return Refused(413, f"a body may have {self._max_body} bytes here; send smaller batches")
