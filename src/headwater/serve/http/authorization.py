"""Who may ask over HTTP: the token of the Authorization header, and what its scope allows."""

from __future__ import annotations

from typing import Final
from urllib.parse import unquote_to_bytes

from headwater.kernel.declaring import Scope
from headwater.serve.http.messages import Refused
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
