"""Who may ask over HTTP: by the token of the Authorization header, and pages by their origin."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import Final
from urllib.parse import unquote_to_bytes

import msgspec

from headwater.errors import InvalidInput
from headwater.kernel.declaring import Scope
from headwater.serve.http.messages import Refused, Reply, StreamedReply
from headwater.serve.listening import is_loopback
from headwater.serve.tokens import EVERYBODY, Grant, Tokens

TOKEN_COOKIE: Final = b"headwater_token"


def authorize(
    tokens: Tokens, authorization: str, needed: Scope | None, name: str | None = None
) -> Grant | None:
    """Accept a request by its Authorization header; returns what its client may do.

    ``name`` is what the request is about; without it a scope on any name will do. Where ``needed``
    is None everybody may ask, and a client without a known token stays anonymous: returns None.
    Raises Refused: 401 without a known token, 403 when it does not allow what is asked.
    """
    grant = shown_grant(tokens, authorization)
    check_grant(grant, needed, name, shown=is_bearer(authorization))
    return grant


def shown_grant(tokens: Tokens, authorization: str) -> Grant | None:
    """Return what the token of an Authorization header allows; None without a known one."""
    if not tokens.required:
        return EVERYBODY
    token = authorization.partition(" ")[2]
    return tokens.find(token.strip()) if is_bearer(authorization) else None


def is_bearer(authorization: str) -> bool:
    """Return whether an Authorization header shows a token."""
    return authorization.partition(" ")[0].lower() == "bearer"


def cookie_credentials(cookies: bytes) -> bytes | None:
    """Return the token of a Cookie header, spelled ``Cookie token``; None without one.

    Only pages of the console take it: what programs ask for needs an Authorization header, which
    no browser adds by itself.
    """
    for one in cookies.split(b";"):
        name, _, token = one.strip().partition(b"=")
        if name == TOKEN_COOKIE and token:
            return b"Cookie " + unquote_to_bytes(token)
    return None


def check_grant(
    grant: Grant | None, needed: Scope | None, name: str | None, *, shown: bool = False
) -> None:
    """Check what a client may do, None for one that is not known; raises Refused, 401 or 403.

    ``shown`` says whether the client has sent a token, which explains a refusal.
    """
    if needed is None:
        return
    if grant is None and shown:
        raise Refused(
            401,
            "this token is not known here, or has expired; send one of this server as "
            "Authorization: Bearer ...",
        )
    if grant is None:
        raise Refused(401, "this needs a token; send it as Authorization: Bearer ...")
    require(grant, needed, name)


def require(grant: Grant, needed: Scope, name: str | None) -> None:
    """Check that a client may do what needs a scope to a name; raises Refused, 403."""
    if name is None:
        if grant.widest is None or grant.widest < needed:
            widest = "nothing" if grant.widest is None else grant.widest.name.lower()
            raise Refused(
                403,
                f"this token allows to {widest} only; send one that allows to "
                f"{needed.name.lower()}",
            )
    elif not grant.allows(needed, name):
        raise Refused(
            403,
            f"this token does not allow to {needed.name.lower()} {name!r}; send one that does",
        )


# The headers by which requests of pages are known.
LOOKED_AT: Final = frozenset((b"host", b"origin"))
_METHODS: Final = b"GET, HEAD, POST, PUT, DELETE"
_REQUEST: Final = b"Authorization, Content-Type, If-None-Match, Last-Event-ID, X-Request-ID"


class Cors:
    """The origins whose pages may ask; ``*`` allows all. Tokens are sent by hand, never cookies.

    A server without tokens trusts everybody on its machine, and a page of a foreign site that is
    shown there is not meant: neither one that sends a request across origins, nor one whose name
    was pointed to the loopback after it was loaded.
    """

    def __init__(self, origins: Iterable[str]) -> None:
        self._origins = frozenset(origin.encode() for origin in origins)
        for origin in self._origins:
            if origin != b"*" and (b"://" not in origin or b"\r" in origin or b"\n" in origin):
                raise InvalidInput(
                    f"{origin.decode()!r} is not an origin; give one like https://app.example.com"
                )

    def allows(self, origin: bytes) -> bool:
        """Return whether pages of an origin may ask."""
        return origin in self._origins or b"*" in self._origins

    def preflight(self, headers: dict[bytes, bytes] | None) -> Reply:
        """Return the answer to a browser that asks whether a page may ask."""
        more = b"Access-Control-Allow-Methods: %b\r\nAccess-Control-Allow-Headers: %b\r\n" % (
            _METHODS,
            _REQUEST,
        )
        reply = Reply(204, b"", "text/plain", more + b"Access-Control-Max-Age: 600\r\n")
        allowed = self.allowed(headers, reply)
        assert isinstance(allowed, Reply)
        return allowed

    def allowed(
        self, headers: dict[bytes, bytes] | None, reply: Reply | StreamedReply
    ) -> Reply | StreamedReply:
        """Return a reply with what lets a page of an allowed origin read it."""
        origin = (headers or {}).get(b"origin")
        more = b"Vary: Origin\r\n"
        if origin is not None and self.allows(origin):
            more += (
                b"Access-Control-Allow-Origin: %b\r\n"
                b"Access-Control-Expose-Headers: ETag, X-Request-ID\r\n" % origin
            )
        return msgspec.structs.replace(reply, headers=reply.headers + more)


def check_local(headers: dict[bytes, bytes] | None, cors: Cors | None) -> None:
    """Check a request to a server without tokens; raises Refused, 403, for that of a foreign page.

    It names a host of the loopback, and comes from no page, or from one of an allowed origin.
    """
    name = _host_name((headers or {}).get(b"host", b""))
    if name and not is_loopback(name.strip("[]")):
        raise Refused(403, f"this server is not {name}; use an address of the loopback")
    check_origin(headers, cors)


# Most clients send one Host header, again and again.
@lru_cache(maxsize=64)
def _host_name(header: bytes) -> str:
    """Return the host of a Host header, without its port."""
    host = header.decode("latin-1").strip()
    name, _, port = host.rpartition(":")
    return name if port.isdecimal() else host


def check_origin(headers: dict[bytes, bytes] | None, cors: Cors | None) -> None:
    """Check that a request is sent by no page, or by one of an allowed origin, or of this server.

    Raises Refused, 403, for a page of a foreign site: a browser lets it send the cookies by which
    an application knows its user.
    """
    given = headers or {}
    origin = given.get(b"origin")
    if origin is None or (cors is not None and cors.allows(origin)):
        return
    if origin.partition(b"://")[2] != given.get(b"host", b""):
        raise Refused(
            403, "requests from pages of other origins are refused; allow their origin (--origin)"
        )
