"""An upgrade by hand: which clients and libraries a store has, and what may change.

Nothing here is needed for an upgrade: a newer format comes into use by itself when older clients
were not seen for some days. An operator who knows that they are gone need not wait for that.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import redis

from headwater.errors import StoreError
from headwater.store.checks import explained
from headwater.store.connections import ServerConnections
from headwater.store.library import FORMAT, VERSION
from headwater.store.record import (
    COUNTS_BY_HAND_MS,
    ClientKind,
    StoreRecord,
    raise_format,
    read_record,
)
from headwater.store.store import Store

_LIBRARY = re.compile(rb"headwater_(\d+)")


@dataclass(frozen=True, slots=True)
class StoreUpgrade:
    """The state of a store: the format in use, the clients seen, the versions of its library."""

    where: str
    record: StoreRecord
    versions: tuple[int, ...]

    @property
    def raises_format(self) -> bool:
        """Whether a newer format could be used."""
        return self.record.format < FORMAT

    @property
    def older(self) -> tuple[ClientKind, ...]:
        """The kinds of client that do not understand our format, whenever they were seen."""
        return tuple(kind for kind in self.record.seen if kind.format < FORMAT)

    @property
    def unused(self) -> tuple[int, ...]:
        """The versions of the library that no client was seen to use."""
        used = {VERSION, *(kind.version for kind in self.record.seen)}
        return tuple(version for version in self.versions if version not in used)


def examine_upgrade(store: Store) -> StoreUpgrade:
    """Look at the record and the libraries of a store."""
    found = {version for _, versions in _libraries(store) for version in versions}
    return StoreUpgrade(store.where, store.run(read_record()), tuple(sorted(found)))


def upgrade(store: Store, *, force: bool = False) -> None:
    """Use our format, and remove libraries that no client was seen to use.

    Raises StoreError, before anything is changed, when clients were seen in the last minutes that
    do not understand the format, unless forced: they get FormatTooNew then.
    """
    older = store.run(raise_format(0 if force else COUNTS_BY_HAND_MS))
    if older:
        minutes, releases = COUNTS_BY_HAND_MS // 60_000, ", ".join(dict.fromkeys(older))
        raise StoreError(
            f"clients of release {releases} do not understand format {FORMAT}, "
            f"and were seen at {store.where} in the last {minutes} minutes; upgrade or stop them "
            "first, or force it, and they are refused from then on"
        )
    store.note_release()
    unused = examine_upgrade(store).unused
    for server, versions in _libraries(store):
        for version in versions:
            if version in unused:
                server.send("", ("FUNCTION", "DELETE", f"headwater_{version}"), fresh=True)


def _libraries(store: Store) -> list[tuple[ServerConnections, list[int]]]:
    """Return every server with the versions of our library that it has."""
    found = []
    for server in store.connections.servers():
        listing = ("FUNCTION", "LIST", "LIBRARYNAME", "headwater_*")
        try:
            libraries = server.send("", listing, fresh=True)
        except redis.ResponseError as error:
            raise explained(error, store.where) from error
        names = (_LIBRARY.fullmatch(library[1]) for library in libraries)
        found.append((server, [int(name[1]) for name in names if name]))
    return found
