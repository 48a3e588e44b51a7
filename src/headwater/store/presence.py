"""Which processes use a store, as they report themselves: servers, applications and their parts.

A process reports every few seconds while it runs, over a connection that it has anyway, and removes
its report when it ends. One that is killed is shown as silent, and forgotten after a day.
"""

from __future__ import annotations

import os
import secrets
import socket
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Final, Literal, NamedTuple, TypeAlias

import msgspec

from headwater.release import __version__
from headwater.store.call import Call, Operation

KEY: Final = "hw:{processes}"
# How often a process reports, and how long after its start an application first does: a short one
# writes nothing.
BEAT_S: Final = 5.0
FIRST_S: Final = 1.0
# After three beats without a report a process is silent. It is forgotten after a day, or when this
# many others are silent.
SILENT_MS: Final = 15_000
FORGOTTEN_MS: Final = 86_400_000
MOST_SILENT: Final = 200
_KEPT: Final = (FORGOTTEN_MS, SILENT_MS, MOST_SILENT)

ProcessKind: TypeAlias = Literal["app", "server", "worker"]
# This variable set to "off" keeps a process from reporting itself.
SWITCH: Final = "HEADWATER_PRESENCE"


class ReportedPart(msgspec.Struct, frozen=True, omit_defaults=True):
    """A part of an application, or a worker alone: what it has done, and how fast it is now.

    ``held`` messages are in its hands. ``why`` is what it died of last.
    """

    name: str
    kind: str = ""
    object: str = ""
    status: str = ""
    done: int = 0
    failed: int = 0
    restarts: int = 0
    per_s: float = 0.0
    why: str = ""
    held: int = 0


class ProcessNote(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a process reports about itself."""

    kind: ProcessKind
    name: str
    host: str
    pid: int
    release: str
    started_ms: int
    parts: tuple[ReportedPart, ...] = ()


class SeenProcess(NamedTuple):
    """A process that has reported itself, ``seen_ms`` at the server's time ``now_ms``."""

    id: str
    seen_ms: int
    now_ms: int
    note: ProcessNote

    @property
    def is_silent(self) -> bool:
        """Whether it has missed several reports."""
        return self.now_ms - self.seen_ms > SILENT_MS

    def is_replaced(self, others: Iterable[SeenProcess]) -> bool:
        """Whether another process of its kind and name has begun since, with the same parts."""
        own, parts = (self.note.kind, self.note.name), {part.object for part in self.note.parts}
        return any(
            (other.note.kind, other.note.name) == own
            and other.note.started_ms > self.seen_ms
            and parts <= {part.object for part in other.note.parts}
            for other in others
        )


def all_processes() -> Operation[list[SeenProcess]]:
    """Return the processes that were seen lately, in the order of their names."""
    now_ms, *found = yield Call("hw_process_list", KEY, read_only=True)
    rows = zip(found[::3], found[1::3], found[2::3], strict=True)
    seen = [
        SeenProcess(one.decode(), at_ms, now_ms, msgspec.json.decode(facts, type=ProcessNote))
        for one, at_ms, facts in rows
    ]
    return sorted(seen, key=lambda one: (one.note.kind, one.note.name, one.note.host, one.note.pid))


class Presence:
    """The reports of one process; ``beat`` and ``leave`` are what it runs."""

    def __init__(
        self, kind: ProcessKind, name: str, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._id = secrets.token_hex(8)
        self._clock = clock
        host, now_ms = socket.gethostname(), int(time.time() * 1000)
        self._note = ProcessNote(kind, name, host, os.getpid(), __version__, now_ms)
        self._before: tuple[float, dict[str, int]] | None = None
        self._reported = False

    def beat(self, parts: Sequence[ReportedPart] = ()) -> Operation[None]:
        """Report that the process is here, and what its parts have done, unless that is off."""
        if os.environ.get(SWITCH, "").lower() == "off":
            return
        now, done = self._clock(), {part.name: part.done for part in parts}
        since, before = self._before or (now, done)
        self._before = (now, done)
        took = max(now - since, 0.001)
        rated = tuple(
            msgspec.structs.replace(
                part, per_s=round((part.done - before.get(part.name, part.done)) / took, 1)
            )
            for part in parts
        )
        facts = msgspec.json.encode(msgspec.structs.replace(self._note, parts=rated))
        self._reported = True
        yield Call("hw_process_note", KEY, (self._id, facts, *_KEPT), repeatable=True)

    def leave(self) -> Operation[None]:
        """Remove the report, if there was one."""
        if self._reported:
            self._reported = False
            yield Call("hw_process_note", KEY, (self._id, "", *_KEPT), repeatable=True)
