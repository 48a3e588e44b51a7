"""The record of a store: which format is in use, and which releases were seen when.

Every client notes itself when it connects, and about once a minute while it is used. So the store
knows when the last client that does not understand a newer format has gone, and begins to write
that format only then. The record is one hash, in one slot of a cluster; all releases read it.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from headwater.release import __version__
from headwater.store.call import Call, Operation
from headwater.store.library import FORMAT, VERSION

KEY = "hw:{store}"
# How often a client in use registers itself.
NOTE_S = 60.0
# How long an older client counts after it was last seen: until then no newer format is written.
COUNTS_MS = 14 * 24 * 3600 * 1000
# The same when an operator raises the format by hand, and watches the clients.
COUNTS_BY_HAND_MS = 10 * 60 * 1000

NOTE = Call("hw_store_note", KEY, (__version__, VERSION, FORMAT, COUNTS_MS), repeatable=True)
LOOK = Call("hw_store_record", KEY, read_only=True)


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
