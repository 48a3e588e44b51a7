"""The server's side: one Redis Functions library, built from the ``lua/`` folders.

Files under ``lua/shared/`` come before the operations of their package, in order of their names.
What the store's own files define, all packages see; every other package is a block by itself, so
that none can lean on another, and each has Lua's 200 local names to itself. The library names its
version and the digest of its source, so that a client knows at once whether the server has what it
needs.

Raise ``VERSION`` with every change of what a function takes or replies, and run ``make contracts``:
contracts.json records the digests of all contracts under that version, and a test compares.
"""

from __future__ import annotations

import hashlib
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import NamedTuple

from headwater.errors import LibraryTooNew

NAME = "headwater"
VERSION = 6


class Library(NamedTuple):
    """What is loaded into a server: the source, and how it names itself."""

    source: str
    identity: str


def _lua_files(folder: Traversable) -> list[Traversable]:
    return sorted(
        (entry for entry in folder.iterdir() if entry.name.endswith(".lua")),
        key=lambda entry: entry.name,
    )


@cache
def library() -> Library:
    """Return the library; the same files always make the same source."""
    root = files("headwater")
    packages = sorted(
        (entry for entry in root.iterdir() if entry.is_dir() and entry.joinpath("lua").is_dir()),
        key=lambda entry: (entry.name != "store", entry.name),
    )
    parts: list[str] = []
    for package in packages:
        lua = package.joinpath("lua")
        shared = lua.joinpath("shared")
        found = [*(_lua_files(shared) if shared.is_dir() else ()), *_lua_files(lua)]
        sources = [f"-- {package.name}/{file.name}\n{file.read_text('utf-8')}" for file in found]
        parts += sources if package.name == "store" else ["do", *sources, "end"]
    body = "\n".join(parts)
    identity = f"{VERSION}:{hashlib.sha256(body.encode()).hexdigest()[:16]}"
    return Library(f"#!lua name={NAME}\nlocal LIBRARY = '{identity}'\n{body}", identity)


def needs_loading(found: str | None, where: str) -> bool:
    """Return whether ours must be loaded into a server that names ``found`` as its library.

    Raises LibraryTooNew when the server's is newer: an older client must not replace it.
    """
    if found is None:
        return True
    version = int(found.partition(":")[0])
    if version > VERSION:
        raise LibraryTooNew(where, version, VERSION)
    return found != library().identity
