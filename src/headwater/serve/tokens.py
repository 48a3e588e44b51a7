"""Tokens: who may do what on a server, whatever protocol it speaks.

A token has scopes, each on the names that match its patterns, and a wider scope includes the
narrower: admin, write, read. A server without tokens lets everybody do everything; it listens on
the loopback only (see listening.py). Names that begin with ``hw.`` belong to the servers themselves
(``hw.audit``): clients read them, and no token allows more.
"""

from __future__ import annotations

import fcntl
import hashlib
import logging
import os
import re
import secrets
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import msgspec

from headwater.errors import InvalidInput
from headwater.kernel.declaring import Scope
from headwater.kernel.inputs import OWN_PREFIX, check_name

EVERYTHING: Final = "*"


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


log = logging.getLogger("headwater.serve")

# How long a change of the file may go unnoticed.
LOOK_S: Final = 0.4
# Makes a token known as one, to people and to programs that search for secrets.
PREFIX: Final = "hw_"


class TokenEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One token of a file: whose it is, its digest, and the patterns of names by scope."""

    holder: str
    sha256: str
    read: list[str] = []
    write: list[str] = []
    admin: list[str] = []

    def grant(self) -> Grant:
        """Return what the token allows."""
        patterns = {Scope.READ: self.read, Scope.WRITE: self.write, Scope.ADMIN: self.admin}
        return Grant(self.holder, patterns, bytes.fromhex(self.sha256))


class _Document(msgspec.Struct, forbid_unknown_fields=True):
    tokens: list[TokenEntry]


class TokenFile(Tokens):
    """The tokens of a file, at most a second older than the file; a server with it needs a token.

    The file is JSON, ``{"tokens": [{"holder", "sha256", "read", "write", "admin"}]}``; the last
    three are lists of patterns of names. A file that cannot be read while the server runs changes
    nothing: the tokens of the last good one stay in force, and the fault is logged.

    Raises InvalidInput when the file cannot be read at first, or has no token.
    """

    def __init__(self, path: str | Path, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._path = Path(path)
        self._clock = clock
        self._state = _state(self._path)
        self._looked = clock()
        self._known = _grants(read_entries(self._path))
        if not self._known:
            raise InvalidInput(f"{path} has no token; make one with `headwater token new`")

    @property
    def required(self) -> bool:
        """Whether a client must send a token at all: always, even when the last was removed."""
        return True

    def find(self, token: str) -> Grant | None:
        """Return what a token allows, or None for one that is not known."""
        self._look()
        return self._known.get(digest_of(token))

    def still(self, grant: Grant) -> bool:
        """Return whether a grant that was found earlier is still in force."""
        self._look()
        return self._is_in_force(grant)

    def _look(self) -> None:
        now = self._clock()
        if now - self._looked < LOOK_S:
            return
        self._looked = now
        state = _state(self._path)
        if state == self._state:
            return
        self._state = state
        try:
            self._known = _grants(read_entries(self._path))
        except InvalidInput as error:
            log.error("the tokens stay as they were: %s", error)
        else:
            log.info("%s has changed: %d tokens are in force", self._path, len(self._known))


def read_entries(path: Path) -> list[TokenEntry]:
    """Return the entries of a file; raises InvalidInput when it cannot be read."""
    try:
        entries = msgspec.json.decode(path.read_bytes(), type=_Document).tokens
    except OSError as error:
        raise InvalidInput(
            f"{path} cannot be read ({error.strerror}); make it with `headwater token new`"
        ) from None
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise InvalidInput(f"{path} is not a file of tokens: {error}; correct it") from None
    for entry in entries:
        _check_entry(path, entry)
    return entries


def add_token(path: Path, holder: str, patterns: Mapping[Scope, Sequence[str]]) -> str:
    """Add a new token to a file, which is created if needed; returns the token, kept nowhere.

    Raises InvalidInput for a holder that has one, and for a token that allows nothing.
    """
    check_name(holder, "holder")
    if not any(patterns.values()):
        raise InvalidInput(
            "a token that allows nothing is of no use; give --read, --write, --admin"
        )
    token = PREFIX + secrets.token_urlsafe(32)
    by_scope = {scope.name.lower(): list(given) for scope, given in patterns.items()}
    entry = TokenEntry(holder=holder, sha256=digest_of(token).hex(), **by_scope)
    _check_entry(path, entry)
    with _changed(path) as entries:
        if any(one.holder == holder for one in entries):
            raise InvalidInput(
                f"{holder} has a token; choose another name, or remove that one with `headwater "
                f"token remove {holder}`"
            )
        entries.append(entry)
    return token


def remove_token(path: Path, holder: str) -> None:
    """Remove the token of a holder from a file; raises InvalidInput when there is none."""
    with _changed(path) as entries:
        kept = [entry for entry in entries if entry.holder != holder]
        if len(kept) == len(entries):
            raise InvalidInput(f"{holder} has no token in {path}; see `headwater token list`")
        entries[:] = kept


@contextmanager
def _changed(path: Path) -> Iterator[list[TokenEntry]]:
    """Yield the entries of a file and write them back: whole or not at all, and one at a time."""
    try:
        folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.flock(folder, fcntl.LOCK_EX)
            entries = read_entries(path) if path.exists() else []
            yield entries
            _write(path, entries)
        finally:
            os.close(folder)
    except OSError as error:
        raise InvalidInput(
            f"{path} cannot be written ({error.strerror}); use a file in a folder that you may "
            "write to"
        ) from None


def _write(path: Path, entries: list[TokenEntry]) -> None:
    written = path.with_name(f".{path.name}.new")
    written.touch(0o600)
    with written.open("wb") as file:
        file.write(msgspec.json.format(msgspec.json.encode(_Document(entries)), indent=2))
        file.write(b"\n")
        file.flush()
        os.fsync(file.fileno())
    written.replace(path)


def _check_entry(path: Path, entry: TokenEntry) -> None:
    try:
        whole = len(bytes.fromhex(entry.sha256)) == 32
    except ValueError:
        whole = False
    if not whole:
        raise InvalidInput(
            f"{path}: the sha256 of {entry.holder!r} is not a digest of 64 hexadecimal digits"
        )
    for pattern in (*entry.read, *entry.write, *entry.admin):
        check_name(pattern, "pattern")


def _grants(entries: Sequence[TokenEntry]) -> dict[bytes, Grant]:
    grants = [entry.grant() for entry in entries]
    return {grant.digest: grant for grant in grants}


def _state(path: Path) -> tuple[int, ...]:
    """Return what changes with a file; nothing for one that is not there.

    Its rights are some of that: a file that could not be read may be readable now.
    """
    try:
        found = path.stat()
    except OSError:
        return ()
    return (found.st_ino, found.st_mtime_ns, found.st_ctime_ns, found.st_size)
