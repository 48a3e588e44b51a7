"""Keys that belong to no object: what a scrub finds by going through all keys of the servers.

Each data type says of a key under one of its names what it is for, and what makes it an orphan.
"""

from __future__ import annotations

import re
from functools import cache
from typing import Final, NamedTuple

from headwater.store.library import lua_of
from headwater.store.scrubbing import Checks, Command, Repair, ScrubLedger, read, shown

# Keys of ours: a letter for the data type, the name in braces, and which part of the object it is.
_OURS = re.compile(rb"hw:(?:(\w+):)?\{([^{}]*)\}(.*)", re.DOTALL)
PREFIX: Final = b"hw:"
# Whoever wrote it may need it: a newer release makes parts that this one does not know.
NOBODYS: Final = "leave it as it is, and find out who wrote it: another program, or a newer release"
OVERWRITTEN: Final = (
    "find out who wrote it; rename it, so that nothing of it is lost, and restore the object from "
    "a backup"
)
# How functions use a part of an object: the command, which tells its type, and the part.
_USED: Final = re.compile(
    r"redis\.p?call\('(H|Z|X|L|R(?=PUSH|POP))[A-Z]+', (K|G|S|queue\.key) \.\. '(:[a-z]+)'"
)
_TYPES: Final = {"H": "hash", "Z": "zset", "X": "stream", "L": "list", "R": "list"}
# A younger object may not be in the registry yet.
YOUNG_US: Final = 60_000_000


class OwnedKey(NamedTuple):
    """A key of ours: the letter of its data type, the name of its object, and its part."""

    key: bytes
    letter: str
    name: str
    part: bytes


def owned(key: bytes) -> OwnedKey | None:
    """Return the parts of a key; None when it has not the form of ours."""
    found = _OURS.fullmatch(key)
    if found is None:
        return None
    try:
        return OwnedKey(key, (found[1] or b"").decode(), found[2].decode(), found[3])
    except UnicodeDecodeError:
        return None


@cache
def parts_of(package: str, owner: str) -> dict[bytes, str]:
    """Return the parts that the functions of a package make behind the key of an object.

    ``owner`` is what they call that key. The type of each part is that of the commands by which
    they use it, so that a part cannot be forgotten here.
    """
    found = {b"": "hash"}
    for letter, key, part in _USED.findall(lua_of(package)):
        if key in owner.split():
            found[part.encode()] = _TYPES[letter]
    return found


def check_type(owner: str, key: bytes, expected: str, ledger: ScrubLedger) -> Checks[bool]:
    """Check that a key has the type of its part; returns whether it has, or is gone by now."""
    (found,) = yield read(ledger, owner, ("TYPE", key))
    if found in (b"none", expected.encode()):
        return True
    ledger.found(f"key {shown(key)}", f"a {expected}", shown(found), OVERWRITTEN)
    return False


def report_orphan(
    owner: str,
    key: bytes,
    expected: str,
    seen: tuple[tuple[Command, object], ...],
    ledger: ScrubLedger,
) -> None:
    """Report a key whose object is gone; its repair frees it."""
    repair = Repair("frees it", owner, seen, (("UNLINK", key),))
    ledger.found(f"key {shown(key)}", expected, "none", repair=repair)


def check_registered(registry: str, name: str, ledger: ScrubLedger) -> Checks[None]:
    """Check that an object which is there is in the registry: housekeepers look there."""
    seen: Command = ("SISMEMBER", registry, name)
    (listed,) = yield read(ledger, registry, seen)
    if listed == 0:
        changes: tuple[Command, ...] = (("SADD", registry, name),)
        repair = Repair("registers it", registry, ((seen, 0),), changes)
        ledger.found(f"key {registry}", f"the name {name!r}", "not there", repair=repair)
