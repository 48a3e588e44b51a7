"""Who may ask over HTTP: the token of the Authorization header, and what its scope allows."""

from __future__ import annotations

from headwater.serve.http.messages import Refused
from headwater.serve.tokens import Scope, Tokens


def authorize(tokens: Tokens, authorization: str, needed: Scope | None) -> bool:
    """Accept a request by its Authorization header; returns whether its client is known.

    Where ``needed`` is None everybody may ask, and a client without a known token stays anonymous.
    Raises Refused: 401 without a known token, 403 when its scope does not include ``needed``.
    """
    if not tokens.required:
        return True
    scheme, _, token = authorization.partition(" ")
    scope = tokens.scope_of(token.strip()) if scheme.lower() == "bearer" else None
    if needed is None:
        return scope is not None
    if scope is None:
        raise Refused(401, "this needs a token; send it as Authorization: Bearer ...")
    if scope < needed:
        raise Refused(
            403,
            f"this token allows to {scope.name.lower()} only; send one that allows to "
            f"{needed.name.lower()}",
        )
    return True
