"""What processes note of themselves in a store: who uses it, jobs of servers, small notes.

A process reports every few seconds while it runs, over a connection that it has anyway, and removes
its report when it ends. One that is killed is shown as silent, and forgotten after a day.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import secrets
import socket
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, TypeAlias

import msgspec

from headwater.errors import HeadwaterError
from headwater.kernel.packaging import __version__
from headwater.store.call import Argument, Call, Operation

if TYPE_CHECKING:
    from headwater.store.aio_store import AsyncStore
    from headwater.store.store import Store


# ── Notes ─────────────────────────────────────────────────────────────────────────────────────────
# Small notes beside the data, in a hash of their own: when an alarm began, how a check ended.


# Where archives are: the name of the archiver as a reader -> the place, without its secrets.
ARCHIVES: Final = "hw:{archives}"


class StoredNote(NamedTuple):
    """A note, and when it was written, by the clock of the server."""

    at_ms: int
    text: bytes


def keep_notes(
    record: str,
    notes: Mapping[str, str | bytes],
    forgotten: Iterable[str] = (),
    *,
    most: int,
    replace: bool,
) -> Operation[None]:
    """Keep notes, ``most`` in all, and forget others; one that is there stays unless replaced."""
    words: list[Argument] = [most, int(replace), len(notes)]
    for field, text in notes.items():
        words += [field, text]
    words += forgotten
    yield Call("hw_note_keep", record, tuple(words), repeatable=True)


def all_notes(record: str) -> Operation[dict[str, StoredNote]]:
    """Return the notes of a record; one in another form is left out."""
    reply = yield Call("hw_note_list", record, read_only=True)
    found = {}
    for field, text in zip(reply[::2], reply[1::2], strict=True):
        at_ms, _, note = text.partition(b" ")
        if at_ms.isdigit():
            found[field.decode("utf-8", "replace")] = StoredNote(int(at_ms), note)
    return found


# ── Presence ──────────────────────────────────────────────────────────────────────────────────────


PROCESSES_KEY: Final = "hw:{processes}"
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
    now_ms, *found = yield Call("hw_process_list", PROCESSES_KEY, read_only=True)
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
        yield Call("hw_process_note", PROCESSES_KEY, (self._id, facts, *_KEPT), repeatable=True)

    def leave(self) -> Operation[None]:
        """Remove the report, if there was one."""
        if self._reported:
            self._reported = False
            yield Call("hw_process_note", PROCESSES_KEY, (self._id, "", *_KEPT), repeatable=True)


# ── Job notes ─────────────────────────────────────────────────────────────────────────────────────
# Jobs of servers as a store knows them: how far each is, and which process has it.
#
# A process has a job for a limited time, by the clock of the store, and extends that with every
# note. When it is silent for longer, another process takes the job, under a new token: from then
# on the store refuses notes of the first one.


JOBS_KEY: Final = "hw:{jobs}"


class NewJob(NamedTuple):
    """A job that begins.

    ``head`` is what is shown of it and does not change, ``asked`` what is needed to continue with
    it, ``note`` how far it is.
    """

    id: str
    kind: str
    head: bytes
    asked: bytes
    note: bytes


class NotedJob(NamedTuple):
    """A job as it was noted last, ``noted_ms`` at the server's time ``now_ms``.

    ``until_ms`` is how long a process has it if that is silent from now on; -1 when it has ended.
    """

    id: str
    kind: str
    until_ms: int
    noted_ms: int
    stop: bool
    head: bytes
    note: bytes
    now_ms: int

    @property
    def over(self) -> bool:
        """Whether it has ended."""
        return self.until_ms < 0

    @property
    def is_left(self) -> bool:
        """Whether no process has it, and it waits for one that takes it."""
        return 0 <= self.until_ms <= self.now_ms

    def shown_state(self, state: str) -> str:
        """Return the state as it is shown, by the one that was noted and by who has the job."""
        if self.over:
            return state
        if self.is_left:
            return "lost"
        return "stopping" if self.stop else state


@dataclass(frozen=True, slots=True)
class ServerJob:
    """A job that a server runs or has run, as lists of jobs show it.

    ``state`` is waiting, running, stopping, done, stopped or failed; or lost, while no process has
    the job and the next one has to continue it. ``details`` are the facts of its kind: letters,
    replay or scrub.
    """

    id: str
    kind: str
    state: str
    who: str
    noted_ms: int
    details: dict[str, Any]

    @property
    def over(self) -> bool:
        """Whether it has ended."""
        return self.state in ("done", "stopped", "failed")


class TakenJob(NamedTuple):
    """A job that a process has: under a token, at the server's time ``now_ms``."""

    id: str
    kind: str
    token: int
    asked: bytes
    note: bytes
    stop: bool
    now_ms: int


class NoteReply(NamedTuple):
    """Whether a note was taken: not if another process has the job; and whether it is to stop."""

    taken: bool
    stop: bool
    now_ms: int


def begin_job(job: NewJob, by: str, lease_ms: int) -> Operation[TakenJob | None]:
    """Note a job that this process has from now on; None when it runs already."""
    call = Call("hw_job_begin", JOBS_KEY, (*job, by, lease_ms), repeatable=True)
    token, now_ms = yield call
    if not token:
        return None
    return TakenJob(job.id, job.kind, token, job.asked, job.note, False, now_ms)


def note_job(job: str, token: int, note: bytes, lease_ms: int | None) -> Operation[NoteReply]:
    """Note how far a job is, and extend its lease; 0 releases it, None ends it."""
    args = (job, token, note, "" if lease_ms is None else lease_ms)
    taken, stop, now_ms = yield Call("hw_job_note", JOBS_KEY, args, repeatable=True)
    return NoteReply(bool(taken), bool(stop), now_ms)


def take_job(kinds: tuple[str, ...], by: str, lease_ms: int) -> Operation[TakenJob | None]:
    """Take a job that no process has any more; None when there is none."""
    # A job that a repeat took in addition is left again when its lease ends.
    call = Call("hw_job_take", JOBS_KEY, (by, lease_ms, *kinds), repeatable=True)
    now_ms, *found = yield call
    if not found:
        return None
    job, kind, token, asked, note, stop = found
    return TakenJob(job.decode(), kind.decode(), token, asked, note, bool(stop), now_ms)


def stop_job(job: str) -> Operation[bool]:
    """Have a job stopped by the process that has it; False when it has ended."""
    return bool((yield Call("hw_job_stop", JOBS_KEY, (job,), repeatable=True)))


def list_jobs(kind: str = "") -> Operation[list[NotedJob]]:
    """Return the jobs of a kind or of all, running ones first, then the newest first."""
    now_ms, *found = yield Call("hw_job_list", JOBS_KEY, (kind,), read_only=True)
    rows = zip(*(found[place::7] for place in range(7)), strict=True)
    return [
        NotedJob(job.decode(), what.decode(), until_ms, noted_ms, bool(stop), head, note, now_ms)
        for job, what, until_ms, noted_ms, stop, head, note in rows
    ]


def all_jobs() -> Operation[list[ServerJob]]:
    """Return all known jobs, as they are shown."""
    return [_shown(job) for job in (yield from list_jobs())]


def _shown(job: NotedJob) -> ServerJob:
    details = {**_facts(job.head), **_facts(job.note)}
    state, who = str(details.pop("state", "running")), str(details.pop("who", ""))
    return ServerJob(job.id, job.kind, job.shown_state(state), who, job.noted_ms, details)


def _facts(text: bytes) -> dict[str, Any]:
    """Return what a process has noted; nothing, if it is not ours."""
    try:
        found = json.loads(text)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


# ── Reporting ─────────────────────────────────────────────────────────────────────────────────────
# Reports of what works outside an application: a worker, a consumer, a streamer, a timed runner.
#
# Each reports itself while it runs, one small call every few seconds over a connection that it has
# anyway, and nothing in its first second. Within an App the process reports all parts together.


# A report that the store has not taken by then is left out.
_PATIENCE_S: Final = 1.0
# How long a process that stops waits for its last report.
_LAST_S: Final = 2.0
_reported: ContextVar[bool] = ContextVar("reported", default=False)


@contextlib.contextmanager
def reported_together() -> Iterator[None]:
    """Let nothing in the block report itself: one report covers all of it."""
    token = _reported.set(True)
    try:
        yield
    finally:
        _reported.reset(token)


@contextlib.contextmanager
def reporting(store: Store, report: Callable[[], ReportedPart]) -> Iterator[None]:
    """Report what a thread works on while the block runs; never raises because of it."""
    if _reported.get():
        yield
        return
    over, presence = threading.Event(), Presence("worker", program_name())

    def beat() -> None:
        rest_s = FIRST_S
        while not over.wait(rest_s):
            rest_s = BEAT_S
            with contextlib.suppress(HeadwaterError):
                store.run(presence.beat([report()]), _PATIENCE_S)
        with contextlib.suppress(HeadwaterError):
            store.run(presence.leave(), _PATIENCE_S)

    thread = threading.Thread(target=beat, name="headwater-report", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(_LAST_S)


@contextlib.asynccontextmanager
async def reporting_async(
    store: AsyncStore, report: Callable[[], ReportedPart]
) -> AsyncIterator[None]:
    """Report what a task works on while the block runs; never raises because of it."""
    if _reported.get():
        yield
        return
    presence = Presence("worker", program_name())

    async def beat() -> None:
        await asyncio.sleep(FIRST_S)
        while True:
            with contextlib.suppress(HeadwaterError):
                await store.run(presence.beat([report()]), _PATIENCE_S)
            await asyncio.sleep(BEAT_S)

    task = asyncio.create_task(beat())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait([task])
        with contextlib.suppress(HeadwaterError):
            await store.run(presence.leave(), _PATIENCE_S)


def program_name() -> str:
    """Return the name of the program that runs here."""
    return Path(sys.argv[0]).name or "python"
