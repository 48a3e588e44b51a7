"""Tokens: who may do what on a server, whatever protocol it speaks.

Each token has a scope, and a wider one includes the narrower: admin, write, read. A server without
tokens lets everybody do everything; it listens on the loopback only (see listening.py).
"""

from __future__ import annotations

import enum
import hashlib
import hmac
from collections.abc import Iterable

from headwater.errors import InvalidInput


class Scope(enum.IntEnum):
    """What a token allows; the greater includes the lesser."""

    READ = 1
    WRITE = 2
    ADMIN = 3


class Tokens:
    """The tokens of a server, each with its scope. Only digests of them are kept in memory.

    Raises InvalidInput for an empty token, which anybody could guess, and for one with other
    characters than clients can send in a header without a choice of how to encode them.
    """

    def __init__(self, scopes: Iterable[tuple[str, Scope]] = ()) -> None:
        self._known = [(_digest(token), scope) for token, scope in scopes]

    @property
    def required(self) -> bool:
        """Whether a client must send a token at all."""
        return bool(self._known)

    def scope_of(self, token: str) -> Scope | None:
        """Return the widest scope of a token, or None for one that is not known.

        Takes the same time whatever the token has in common with a known one.
        """
        if not self._known:
            return Scope.ADMIN
        shown = hashlib.sha256(token.encode("utf-8", "surrogateescape")).digest()
        matching = [scope for digest, scope in self._known if hmac.compare_digest(digest, shown)]
        return max(matching, default=None)


def _digest(token: str) -> bytes:
    if not token:
        raise InvalidInput("a token is empty; give one that nobody can guess, or none at all")
    if not all("!" <= sign <= "~" for sign in token):
        raise InvalidInput(
            "a token has a character that is not ASCII, a space or a control character, which "
            "clients send in different ways; use letters, digits and punctuation"
        )
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).digest()
