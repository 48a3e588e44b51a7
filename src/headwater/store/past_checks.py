"""When a store was last scrubbed, and how the last ``headwater verify`` ended that was noted in it.

A scrub reads this store itself. A verify kills processes and a server with kill -9, so it works on
a private store of its own; what it proves holds for this release on that machine, not for the data
here. Its note says so.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from typing import Final, NamedTuple

import msgspec
import redis

from headwater.store.call import Call, Operation
from headwater.store.checks import CheckedServer, Finding
from headwater.store.notes import StoredNote, all_notes, keep_notes
from headwater.store.scrubbing import SCRUBBED

VERIFIED: Final = "hw:{verified}"
_NEWEST: Final = "newest"


class VerifyNote(msgspec.Struct, frozen=True):
    """What is kept of a verify: its seed, what was killed, how much was checked, what was wrong."""

    seed: int
    seconds: float
    killed: dict[str, int]
    messages: int
    anomalies: int
    release: str
    host: str

    @property
    def faults(self) -> int:
        """How many times something was killed."""
        return sum(self.killed.values())


class PastVerify(NamedTuple):
    """A verify that was noted at a time of the store's clock."""

    at_ms: int
    note: VerifyNote

    def __str__(self) -> str:
        note = self.note
        ended = f"{note.anomalies} anomalies" if note.anomalies else "nothing lost or twice"
        kills = "1 kill" if note.faults == 1 else f"{note.faults} kills"
        return f"{ended}; seed {note.seed}, {kills}, release {note.release}, on a private store"


class PastScrub(NamedTuple):
    """A scrub of the whole store that was noted."""

    at_ms: int
    defects: int


class PastChecks(NamedTuple):
    """The last verify and the last scrub; None where none was noted."""

    verify: PastVerify | None
    scrub: PastScrub | None


def note_verify(note: VerifyNote) -> Operation[None]:
    """Note how a verify ended, in place of the one before."""
    facts = msgspec.json.encode(note)
    yield from keep_notes(VERIFIED, {_NEWEST: facts}, most=1, replace=True)


def past_checks() -> Operation[PastChecks]:
    """Return the last verify and the last scrub that are noted."""
    verify = _verify_of((yield from all_notes(VERIFIED)).get(_NEWEST))
    reply = yield Call("hw_note_list", SCRUBBED, read_only=True)
    return PastChecks(verify, _scrub_of(reply))


def find_past_checks(server: CheckedServer) -> Iterator[Finding]:
    """Report what the last scrub and verify found; one server of a cluster has their notes."""
    try:
        scrub = _scrub_of(server.ask("HGETALL", SCRUBBED))
        noted = dict(_pairs(server.ask("HGETALL", VERIFIED))).get(_NEWEST.encode(), b"")
    except redis.ResponseError:
        return
    if scrub is None:
        yield Finding("scrub", "no run over all of the store yet (headwater scrub)", "ok")
    elif scrub.defects:
        cure = "headwater scrub shows them, headwater repair"
        yield Finding("scrub", f"{_time(scrub.at_ms)}: {scrub.defects} defects", "warn", cure)
    else:
        yield Finding("scrub", f"{_time(scrub.at_ms)}: sound", "ok")
    at_ms, _, facts = noted.partition(b" ")
    verify = _verify_of(StoredNote(int(at_ms), facts)) if at_ms.isdigit() else None
    if verify is None:
        yield Finding("verify", "no run recorded (headwater verify --note-in STORE)", "ok")
    elif verify.note.anomalies:
        cure = f"report it with its seed: headwater verify --seed {verify.note.seed}"
        yield Finding("verify", f"{_time(verify.at_ms)}: {verify}", "warn", cure)
    else:
        yield Finding("verify", f"{_time(verify.at_ms)}: {verify}", "ok")


def _verify_of(stored: StoredNote | None) -> PastVerify | None:
    if stored is None:
        return None
    try:
        return PastVerify(stored.at_ms, msgspec.json.decode(stored.text, type=VerifyNote))
    except msgspec.DecodeError:
        return None  # a newer release may write another form


def _scrub_of(reply: list[bytes]) -> PastScrub | None:
    note = dict(_pairs(reply))
    if b"time" not in note:
        return None
    return PastScrub(int(note[b"time"]), int(note.get(b"defects", 0)))


def _pairs(reply: list[bytes]) -> Iterator[tuple[bytes, bytes]]:
    return zip(reply[::2], reply[1::2], strict=True)


def _time(at_ms: int) -> str:
    return dt.datetime.fromtimestamp(at_ms / 1000, dt.UTC).isoformat()[:19] + "Z"
