"""Tokens: who may do what on a server, whatever protocol it speaks.

A token has scopes, each on the names that match its patterns, and a wider scope includes the
narrower: admin, write, read. A server without tokens lets everybody do everything; it listens on
the loopback only (see listening.py). Names that begin with ``hw.`` belong to the servers themselves
(``hw.audit``): clients read them, and no token allows more.
"""

from __future__ import annotations

import enum
import hashlib
import re
from collections.abc import Iterable, Mapping
from typing import Final

from headwater.errors import InvalidInput
from headwater.kernel.inputs import OWN_PREFIX

EVERYTHING: Final = "*"


class Scope(enum.IntEnum):
    """What a token allows; the greater includes the lesser."""

    READ = 1
    WRITE = 2
    ADMIN = 3


class Grant:
    """What a token allows its holder: patterns of names by scope. ``*`` stands for any text.

    ``widest`` is the widest scope on any name. Two grants are equal if they are of the same token
    and allow the same.
    """

    __slots__ = ("_allowed", "_given", "digest", "holder", "widest")

    def __init__(
        self, holder: str, patterns: Mapping[Scope, Iterable[str]], digest: bytes = b""
    ) -> None:
        self.holder = holder
        self.digest = digest
        given = {scope: tuple(patterns.get(scope, ())) for scope in Scope}
        self._given = given
        self.widest = max((scope for scope in Scope if given[scope]), default=None)
        self._allowed = {
            needed: _matching({one for scope in Scope if scope >= needed for one in given[scope]})
            for needed in Scope
        }

    def allows(self, needed: Scope, name: str) -> bool:
        """Return whether the holder may do what needs a scope to the object of that name."""
        if needed is not Scope.READ and name.startswith(OWN_PREFIX):
            return False
        allowed = self._allowed[needed]
        return allowed is _ALL or allowed.fullmatch(name) is not None

    def everywhere(self, needed: Scope) -> bool:
        """Return whether the holder may do what needs a scope to every object of the store."""
        return self._allowed[needed] is _ALL

    def patterns(self, scope: Scope) -> tuple[str, ...]:
        """Return the patterns of names that were given with a scope."""
        return self._given[scope]

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Grant)
            and (self.holder, self.digest) == (other.holder, other.digest)
            and self._given == other._given
        )

    def __hash__(self) -> int:
        return hash(self.holder)

    def __repr__(self) -> str:
        return f"Grant({self.holder!r})"


_ALL: Final = re.compile(r"(?s:.*)")
_NONE: Final = re.compile(r"(?!)")


def _matching(patterns: set[str]) -> re.Pattern[str]:
    """Return what matches the names that one of the patterns matches."""
    if EVERYTHING in patterns:
        return _ALL
    if not patterns:
        return _NONE
    spelled = (".*".join(map(re.escape, pattern.split("*"))) for pattern in sorted(patterns))
    return re.compile("|".join(spelled), re.DOTALL)


EVERYBODY: Final = Grant("everybody", {Scope.ADMIN: (EVERYTHING,)})


class Tokens:
    """The tokens of a server, each with its scope on all names. Only digests of them are kept.

    Raises InvalidInput for an empty token, which anybody could guess, and for one with other
    characters than clients can send in a header without a choice of how to encode them.
    """

    def __init__(self, scopes: Iterable[tuple[str, Scope]] = ()) -> None:
        widest: dict[bytes, Scope] = {}
        for token, scope in scopes:
            _check_token(token)
            digest = digest_of(token)
            widest[digest] = max(scope, widest.get(digest, scope))
        self._known = {
            digest: Grant(f"the {scope.name.lower()} token", {scope: (EVERYTHING,)}, digest)
            for digest, scope in widest.items()
        }

    @property
    def required(self) -> bool:
        """Whether a client must send a token at all."""
        return bool(self._known)

    def find(self, token: str) -> Grant | None:
        """Return what a token allows, or None for one that is not known.

        Tokens are looked up by their digests: how long that takes says nothing of the token.
        """
        if not self._known:
            return EVERYBODY
        return self._known.get(digest_of(token))

    def still(self, grant: Grant) -> bool:
        """Return whether a grant that was found earlier is still in force."""
        return not self._known or self._is_in_force(grant)

    def _is_in_force(self, grant: Grant) -> bool:
        # Most often it is the same object, and thousands of those who wait are looked at.
        found = self._known.get(grant.digest)
        return found is grant or found == grant


def digest_of(token: str) -> bytes:
    """Return the digest of a token, by which it is known."""
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).digest()


def _check_token(token: str) -> None:
    if not token:
        raise InvalidInput("a token is empty; give one that nobody can guess, or none at all")
    if not all("!" <= sign <= "~" for sign in token):
        raise InvalidInput(
            "a token has a character that is not ASCII, a space or a control character, which "
            "clients send in different ways; use letters, digits and punctuation"
        )
