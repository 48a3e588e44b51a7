"""Requests out of the bytes of a connection, by llhttp, the parser of Node.js; without I/O.

llhttp refuses what two programs could read in two ways: a body with both a length and a transfer
coding, lines that end in LF alone, folded headers. What it leaves to its users is refused here:
other versions than HTTP/1.0 and 1.1, any number of Host headers but one, several Authorization
headers, transfer codings other than chunked, targets that are none of this server, and whatever is
larger than allowed. docs/decisions/0022 compares it with others.

A request is admitted or refused when its head is complete, before any of its body is kept.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable
from typing import Final, TypeAlias

import httptools

from headwater.serve.http.authorization import cookie_credentials
from headwater.serve.http.messages import (
    Admitted,
    Refused,
    Request,
    check_host,
    own_fault,
    split_target,
)
from headwater.serve.limits import HttpLimits
from headwater.store.faults import Caller

# Decides on a request by its method, its path and its Authorization header; raises Refused.
Admit: TypeAlias = Callable[[str, str, str], Admitted]

_HEADERS: Final = frozenset(
    (b"host", b"content-length", b"authorization", b"cookie", b"transfer-encoding", b"expect")
)
# How much is parsed at once. More than one request may be in it, and each costs memory.
PIECE_BYTES: Final = 4096
_BODY_PIECE_BYTES: Final = 1 << 20
# Beyond max_head, what stands around the chunks of a body is at most this part of it: each chunk
# costs as much time as a hundred bytes.
_FRAMING_SHARE: Final = 4
_NO_PARSER: Final = httptools.HttpRequestParser(object())


class RequestParser:
    """Cuts what arrives on a connection into requests. The methods ``on_...`` are for llhttp.

    ``requests`` are complete, and taken from there. ``begun`` says that a part of another one is
    there, ``in_body`` that its head is complete, ``refused`` why nothing can follow. Headers that
    are named in ``kept`` are passed on with a request.
    """

    __slots__ = (
        "_action",
        "_admit",
        "_authorization",
        "_body",
        "_caller",
        "_chunked",
        "_cookie",
        "_expects",
        "_fields",
        "_framing_bytes",
        "_head_bytes",
        "_headers",
        "_host",
        "_hosts",
        "_http11",
        "_kept",
        "_length",
        "_limits",
        "_llhttp",
        "_method",
        "_path",
        "_query",
        "_quiet_bytes",
        "_refusal",
        "_size",
        "_split_last",
        "_target",
        "begun",
        "in_body",
        "refused",
        "requests",
    )

    def __init__(
        self,
        limits: HttpLimits,
        admit: Admit,
        kept: frozenset[bytes] = frozenset(),
        caller: Caller | None = None,
    ) -> None:
        self._limits = limits
        self._caller = caller
        self._admit = admit
        self._kept = kept
        self._llhttp = httptools.HttpRequestParser(self)
        self._expects: bool
        self._fields: dict[bytes, bytes] | None
        self._refusal: Refused | None
        # The last ones that were accepted: clients repeat them with every request.
        self._host = b""
        self._split_last = ("", b"")
        self._authorization: bytes | None
        self._cookie: bytes | None
        self._body: bytes | bytearray
        self.requests: deque[Request] = deque()
        self.refused: Refused | None = None
        # Bytes since the last piece of a body or end of a request: a head, or what llhttp keeps.
        self._quiet_bytes = 0
        self.on_message_begin()
        self.begun = False

    @property
    def held_bytes(self) -> int:
        """How many bytes of an incomplete request are kept."""
        return self._quiet_bytes + self._size if self.begun else 0

    def piece_bytes(self, ahead: memoryview) -> int:
        """Return how much of that to feed at once, so that few requests are parsed ahead."""
        if not self.begun:
            # A head alone, if it is there: the body behind it is then one piece.
            return sum(map(len, bytes(ahead[:PIECE_BYTES]).partition(b"\r\n\r\n")[:2]))
        if self.in_body and self._length:
            return min(max(self._length - self._size, PIECE_BYTES), _BODY_PIECE_BYTES)
        return PIECE_BYTES

    def drop(self) -> None:
        """Forget all that arrived; nothing can be fed afterwards.

        llhttp, the connection and the error of a refusal refer to this object, and it to them:
        without this, what arrived would stay in memory until the garbage collector finds them.
        """
        refused = self.refused or Refused(503, "the connection is closed")
        self.refused = refused.with_traceback(None)
        self._admit = _admit_nothing
        self._body = b""
        self.begun = False
        self._target = self._authorization = b""
        self.requests.clear()
        self._llhttp = _NO_PARSER

    def feed(self, data: bytes | memoryview) -> None:
        """Take what arrived; adds the requests that it completes."""
        if self.refused is not None:
            return
        size, before = len(data), self._size
        self._quiet_bytes += size
        while data:
            try:
                self._llhttp.feed_data(data)
                break
            except httptools.HttpParserUpgrade as upgrade:
                data = data[upgrade.args[0] :]
                if self.begun:
                    data = self._without_upgrade() + data
            except httptools.HttpParserCallbackError as error:
                cause = error.__context__ or error
                self.refused = cause if isinstance(cause, Refused) else own_fault(cause)
                break
            except httptools.HttpParserError as error:
                self.refused = Refused(400, f"this is not a request of HTTP/1.1: {error}")
                break
        if not self.begun or self.refused:
            return
        if self._chunked and self.in_body:
            self._framing_bytes += size - (self._size - before)
            if self._framing_bytes > self._limits.max_head + self._size // _FRAMING_SHARE:
                self.refused = Refused(400, "the body comes in tiny chunks; send larger ones")
        if self._quiet_bytes > self._limits.max_head:
            self.refused = self._head_too_large()

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
        if not (self._expects and self.in_body):
            return False
        self._expects = False
        return True

    def on_message_begin(self) -> None:
        """Begin a request."""
        self.begun = True
        self.in_body = self._expects = self._chunked = False
        self._target = self._body = b""
        self._authorization = self._cookie = self._refusal = self._fields = None
        self._hosts = self._headers = self._head_bytes = self._length = self._size = 0

    def on_url(self, part: bytes) -> None:
        """Take the target of a request, or a part of it."""
        self._target += part
        self._head_bytes += len(part)

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take a header. Those behind the body, its trailers, mean nothing here."""
        self._head_bytes += len(name) + len(value) + 4
        self._headers += 1
        if self.in_body:
            if self._headers > self._limits.max_headers:
                raise self._too_many_headers()
            return
        name = name.lower()
        if name in self._kept:
            self._keep(name, value)
        if name not in _HEADERS:
            return
        if name == b"host":
            self._hosts += 1
            if value != self._host:
                check_host(value)
                self._host = value
        elif name == b"content-length":
            self._length = int(value)
        elif name == b"authorization":
            if self._authorization is not None:
                raise Refused(400, "the request has two Authorization headers; send one")
            self._authorization = value
        elif name == b"cookie":
            self._cookie = cookie_credentials(value)
        elif name == b"transfer-encoding":
            if value.strip().lower() != b"chunked":
                raise Refused(400, "a body comes with its Content-Length, or chunked")
            self._chunked = True
            self._framing_bytes = 0
        else:
            self._expects = value.strip().lower() == b"100-continue"

    def _keep(self, name: bytes, value: bytes) -> None:
        fields = self._fields = self._fields or {}
        before = fields.get(name)
        fields[name] = value if before is None else b"%b, %b" % (before, value)

    def on_headers_complete(self) -> None:
        """Check a head, and admit or refuse the request; what follows is its body."""
        limits = self._limits
        if self._head_bytes > limits.max_head:
            raise self._head_too_large()
        if self._headers > limits.max_headers:
            raise self._too_many_headers()
        version = self._llhttp.get_http_version()
        self._http11 = version == "1.1"
        if self._http11:
            if self._hosts != 1:
                raise Refused(400, "a request of HTTP/1.1 has one Host header")
        elif version != "1.0":
            raise Refused(400, f"HTTP/{version} is not spoken here; send HTTP/1.1")
        else:
            self._expects = False
            if self._chunked:
                raise Refused(400, "HTTP/1.0 has no chunked bodies; send a Content-Length")
        self._method = method = self._llhttp.get_method().decode()
        if method == "CONNECT":
            # Nothing says where its body ends, and we are no proxy.
            raise Refused(400, "this is no proxy; send the request itself")
        if (method, self._target) != self._split_last:
            self._path, self._query = split_target(method, self._target)
            self._split_last = method, self._target
        shown = (self._authorization or self._cookie or b"").strip().decode("latin-1")
        try:
            admitted = self._admit(method, self._path, shown)
        except Refused as refused:
            # Without a body it is known where the next request begins.
            if self._length or self._chunked or refused.close:
                raise
            self._action, self._refusal = "", refused.with_traceback(None)
        else:
            if not admitted.known and (self._chunked or self._length > admitted.strange_bytes):
                raise Refused(401, "a request with a body needs a token here")
            if self._length > limits.max_body:
                raise self._body_too_large()
            self._action = admitted.action
        self.in_body = True

    def on_body(self, piece: bytes) -> None:
        """Take a piece of the body."""
        self._quiet_bytes = 0
        self._size += len(piece)
        if self._size > self._limits.max_body:
            raise self._body_too_large()
        # What came with the head is less; most bodies have one piece beside it.
        if len(self._body) >= PIECE_BYTES and not isinstance(self._body, bytearray):
            self._body = bytearray(self._body)
        self._body += piece

    def on_message_complete(self) -> None:
        """End a request; but one that asks for another protocol and has a body has not ended."""
        self._quiet_bytes = 0
        if (self._length or self._chunked) and self._llhttp.should_upgrade():
            return
        self.begun = False
        body, self._body = self._body, b""
        self.requests.append(
            Request(
                self._method,
                self._path,
                self._query,
                self._action,
                self._llhttp.should_keep_alive(),
                body,
                self._refusal,
                self._fields,
                self._http11,
                caller=self._caller,
            )
        )

    def _body_too_large(self) -> Refused:
        most = self._limits.max_body
        return Refused(413, f"a body may have {most} bytes here; send smaller batches")

    def _too_many_headers(self) -> Refused:
        return Refused(431, f"a request has {self._limits.max_headers} headers at most")

    def _head_too_large(self) -> Refused:
        return Refused(431, f"the head of a request has {self._limits.max_head} bytes at most")


def _admit_nothing(_method: str, _path: str, _authorization: str) -> Admitted:
    raise Refused(503, "the connection is closed")


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


MAX_NESTING: Final = 100

# Both kinds of brackets count alike; of everything else only quotes are left.
_ALIKE: Final = bytes.maketrans(b"{}", b"[]")
_OTHERS: Final = bytes(byte for byte in range(256) if byte not in b'[]{}"')
_ESCAPE: Final = re.compile(rb"\\.", re.DOTALL)
_TEXT: Final = re.compile(rb'"[^"]*"')


def check_nesting(document: bytes | bytearray) -> None:
    """Accept a document that is nested up to MAX_NESTING deep; raises Refused, 400, for another.

    Whether it is JSON at all is left to its decoder. Costs a fraction of decoding.
    """
    if len(document) <= MAX_NESTING:
        return
    if b"\\" in document:
        document = _ESCAPE.sub(b"", document)
    # Most texts are two quotes by now; only one that has brackets is more.
    brackets = document.translate(_ALIKE, _OTHERS).replace(b'""', b"")
    if b'"' in brackets:
        brackets = _TEXT.sub(b"", brackets)
    for _ in range(MAX_NESTING):
        if b"[]" not in brackets:
            break
        # Removes the innermost level.
        brackets = brackets.replace(b"[]", b"")
    # Those that no bracket closes are counted as well: a decoder descends into each of them.
    if b"[]" in brackets or brackets.count(b"[") > MAX_NESTING:
        raise Refused(
            400,
            f"the document is nested more than {MAX_NESTING} deep; send a flatter one",
            close=True,
        )
