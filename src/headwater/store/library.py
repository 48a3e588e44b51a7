"""The server's side: one Redis Functions library, built from the ``lua/`` folders.

Files under ``lua/shared/`` come before the operations of their package, in order of their names.
What the store's own files define, all packages see; every other package is a block by itself, and
so is every file of operations: none can depend on another, and Lua's 200 local names are enough.

The contract of the functions has a version, which is part of every name: the files and the callers
say ``hw_stream_write``, and the server knows the function as ``hw6_stream_write``, in the library
``headwater_6``. So releases with different contracts work on one server side by side, each with its
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
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import NamedTuple

from headwater.release import __version__

VERSION = 6
NAME = f"headwater_{VERSION}"
# The newest format of stored objects that this release understands.
FORMAT = 2
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
