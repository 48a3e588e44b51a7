"""The server's side: one library of functions, how they are called, and the record of a store.

Files under ``lua/shared/`` come before the operations of their package, in order of their names.
What the store's own files define, all packages see; every other package is a block by itself, and
so is every file of operations: none can depend on another, and Lua's 200 local names are enough.

The contract of the functions has a version, which is part of every name: the files and the callers
say ``hw_stream_write``, and the server knows the function as ``hw1_stream_write``, in the library
``headwater_1``. So releases with different contracts work on one server side by side, each with its
own functions. Releases with the same contract share one library: that of the newest of them.

When you change a function:

- its code only: nothing. A client whose package has a higher version replaces the library in the
  server, one with a lower version uses it as it is, and one with the same version (two states of a
  working tree) loads its own. Every release has a higher version of the package, so a fix
  never goes back.
- what it takes or replies: run ``make contracts``, which also tells you when VERSION has to be
  raised first: a contract that is released never changes. contracts.json has the digests of those
  of the last release, and a test compares. The package's version in the tree is that of the
  release to come: raise it right after a release, and run ``make contracts``, which records them.

- what it stores: functions of several versions work on the same keys at the same time. A new field
  or key that the functions of the release before neither need nor harm is free. Anything else is a
  new format: raise FORMAT and VERSION, understand both formats, and write the new one only where
  ``WRITES`` in Lua is at least that; ``check_format`` refuses what is newer. A format is written
  when no client is left that does not understand it: docs/decisions/0024-upgrades.md.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Any, NamedTuple

from headwater.kernel.packaging import __version__
from headwater.store.call import Call, Key, Operation, Wait

# ── Library ───────────────────────────────────────────────────────────────────────────────────────


VERSION = 1
NAME = f"headwater_{VERSION}"
# The newest format of stored objects that this release understands.
FORMAT = 1
# The format of a new server, until it is known that every client understands a newer one.
FIRST_FORMAT = 1

_REGISTERED = re.compile(r"(register_function(?:\('|\{\s*function_name = '))(hw_\w+)'")
_RELEASE = re.compile(r"([\d.]*)(.*)")


class Library(NamedTuple):
    """What is loaded into a server: the source, and how it names itself.

    The identity is "version of the contract:release:digest of the source:format that it writes".
    """

    source: str
    identity: str


@cache
def name_in_server(function: str) -> str:
    """Return the name by which the server knows a function of ours."""
    return f"hw{VERSION}_{function.removeprefix('hw_')}"


def _lua_files(folder: Traversable) -> list[Traversable]:
    return sorted(
        (entry for entry in folder.iterdir() if entry.name.endswith(".lua")),
        key=lambda entry: entry.name,
    )


def _headed(package: Traversable, file: Traversable) -> str:
    return f"-- {package.name}/{file.name}\n{file.read_text('utf-8')}"


@cache
def lua_of(package: str) -> str:
    """Return the Lua of a package, with what it shares with all others."""
    folders = [files("headwater").joinpath(room, "lua") for room in (package, "store")]
    found = [file for folder in folders for file in _lua_files(folder.joinpath("shared"))]
    return "\n".join(file.read_text("utf-8") for file in (*found, *_lua_files(folders[0])))


@cache
def library(writes: int = FIRST_FORMAT) -> Library:
    """Return the library that writes a format; the same files always make the same source."""
    root = files("headwater")
    packages = sorted(
        (entry for entry in root.iterdir() if entry.is_dir() and entry.joinpath("lua").is_dir()),
        key=lambda entry: (entry.name != "store", entry.name),
    )
    parts: list[str] = []
    for package in packages:
        lua = package.joinpath("lua")
        shared = lua.joinpath("shared")
        sources = [_headed(package, file) for file in _lua_files(shared)] if shared.is_dir() else []
        for file in _lua_files(lua):
            sources += ("do", _headed(package, file), "end")
        parts += sources if package.name == "store" else ["do", *sources, "end"]
    body = _REGISTERED.sub(lambda at: f"{at[1]}{name_in_server(at[2])}'", "\n".join(parts))
    digest = hashlib.sha256(body.encode()).hexdigest()[:16]
    identity = f"{VERSION}:{__version__}:{digest}:{writes}"
    head = f"local LIBRARY, FORMAT, WRITES = '{identity}', {FORMAT}, {writes}"
    return Library(f"#!lua name={NAME}\n{head}\n{body}", identity)


def needs_loading(found: str | None, writes: int = FIRST_FORMAT) -> bool:
    """Return whether ours, writing a format, must be loaded into a server that has ``found``.

    The library of a newer release with the same contract is left there, and used; so is ours when
    it writes a newer format, because another client then knows that all clients understand it.
    """
    if found is None:
        return True
    if written := format_of_ours(found):
        return written < writes
    return _age(release_of(found)) <= _age(__version__)


def format_of_ours(found: str | None) -> int:
    """Return the format that a library in a server writes if it is ours; 0 for any other."""
    theirs, _, written = (found or "").rpartition(":")
    return int(written) if theirs == library().identity.rpartition(":")[0] else 0


def release_of(identity: str) -> str:
    """Return the version of the package that a library comes from."""
    return identity.split(":")[1]


def _age(release: str) -> tuple[list[int], bool, str]:
    """Return what orders releases; "1.2rc1" comes before "1.2"."""
    found = _RELEASE.match(release)
    numbers, rest = found.groups() if found else ("", release)
    return [int(number) for number in numbers.split(".") if number], not rest, rest


# ── Commands ──────────────────────────────────────────────────────────────────────────────────────
# How a request is encoded as a command of the server.


def encoder(kind: str) -> Callable[[Call | Wait], tuple[Any, ...]]:
    """Return the function that encodes requests for a store of that kind."""
    return _encode_for_node if kind == "cluster" else encode_for_server


def encode_for_server(request: Call | Wait) -> tuple[Any, ...]:
    """Return the command of a request to a server that is alone."""
    if isinstance(request, Wait):
        return request.command
    return _fcall(request, request.also)


def _encode_for_node(request: Call | Wait) -> tuple[Any, ...]:
    """Return the command of a request to a node of a cluster.

    While the slot is migrated to another node, key by key, a node that lacks one of the keys of a
    call refuses it as a whole (TRYAGAIN) instead of stopping it in the middle, at the first of the
    object's keys that is not there or not there any more. So each call names either all keys of its
    object, or a second one that never exists.
    """
    if isinstance(request, Wait):
        return request.command
    return _fcall(request, request.also or (_beside(request.key),))


def _beside(key: Key) -> Key:
    return f"{key}:" if isinstance(key, str) else key + b":"


def _fcall(call: Call, also: tuple[Key, ...]) -> tuple[Any, ...]:
    verb = "FCALL_RO" if call.read_only else "FCALL"
    return (verb, name_in_server(call.function), 1 + len(also), call.key, *also, *call.args)


# ── Record ────────────────────────────────────────────────────────────────────────────────────────
# The record of a store: which format is in use, and which releases were seen when.
#
# Every client notes itself when it connects, and about once a minute while it is used. So the
# store knows when the last client that does not understand a newer format has gone, and begins to
# write that format only then. The record is one hash, in one slot of a cluster; all releases read
# it.


KEY = "hw:{store}"
# How often a client in use registers itself.
NOTE_S = 60.0
# How long an older client counts after it was last seen: until then no newer format is written.
COUNTS_MS = 14 * 24 * 3600 * 1000
# The same when an operator raises the format by hand, and watches the clients.
COUNTS_BY_HAND_MS = 10 * 60 * 1000

NOTE = Call("hw_store_note", KEY, (__version__, VERSION, FORMAT, COUNTS_MS), repeatable=True)
LOOK = Call("hw_store_record", KEY, read_only=True)
GREETING = Call("hw_version", "", read_only=True)


class ClientKind(NamedTuple):
    """A kind of client that was seen: release, version of its contract, newest format it knows."""

    release: str
    version: int
    format: int
    seen_ms: int


class StoreRecord(NamedTuple):
    """The record of a store; ``format`` is 0 when there is none yet."""

    now_ms: int
    format: int
    seen: tuple[ClientKind, ...]


def read_record() -> Operation[StoreRecord]:
    """Read the record."""
    now_ms, format_in_use, *seen = yield LOOK
    kinds = (_kind(*pair) for pair in zip(seen[::2], seen[1::2], strict=True))
    return StoreRecord(now_ms, format_in_use, tuple(sorted(kinds)))


def raise_format(counts_ms: int) -> Operation[list[str]]:
    """Use the newest format that this release understands.

    Returns the releases that are in the way: clients of theirs do not understand it and were seen
    within ``counts_ms``. Nothing has changed then. 0 ignores clients.
    """
    found = yield Call("hw_store_raise", KEY, (FORMAT, counts_ms), repeatable=True)
    return [kind.decode().split(":")[0] for kind in found]


def _kind(name: bytes, seen_ms: Any) -> ClientKind:
    release, version, understood = name.decode().split(":")
    return ClientKind(release, int(version), int(understood), int(seen_ms))
