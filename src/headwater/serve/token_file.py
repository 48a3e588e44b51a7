"""The file with the tokens of a server: digests only, read again when it changes.

The file is JSON, ``{"tokens": [{"holder", "sha256", "read", "write", "admin"}]}``; the last three
are lists of patterns of names. ``headwater token`` writes it. A file that cannot be read while the
server runs changes nothing: the tokens of the last good one stay in force, and the fault is logged.
"""

from __future__ import annotations

import fcntl
import logging
import os
import secrets
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import msgspec

from headwater.errors import InvalidInput
from headwater.kernel.inputs import check_name
from headwater.serve.tokens import Grant, Scope, Tokens, digest_of

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
