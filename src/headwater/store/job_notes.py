"""Jobs of servers as a store knows them: how far each is, and which process has it.

A process has a job for a limited time, by the clock of the store, and extends that with every note.
When it is silent for longer, another process takes the job, under a new token: from then on the
store refuses notes of the first one.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from headwater.store.call import Call, Operation

KEY: Final = "hw:{jobs}"


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
    call = Call("hw_job_begin", KEY, (*job, by, lease_ms), repeatable=True)
    token, now_ms = yield call
    if not token:
        return None
    return TakenJob(job.id, job.kind, token, job.asked, job.note, False, now_ms)


def note_job(job: str, token: int, note: bytes, lease_ms: int | None) -> Operation[NoteReply]:
    """Note how far a job is, and extend its lease; 0 releases it, None ends it."""
    args = (job, token, note, "" if lease_ms is None else lease_ms)
    taken, stop, now_ms = yield Call("hw_job_note", KEY, args, repeatable=True)
    return NoteReply(bool(taken), bool(stop), now_ms)


def take_job(kinds: tuple[str, ...], by: str, lease_ms: int) -> Operation[TakenJob | None]:
    """Take a job that no process has any more; None when there is none."""
    # A job that a repeat took in addition is left again when its lease ends.
    call = Call("hw_job_take", KEY, (by, lease_ms, *kinds), repeatable=True)
    now_ms, *found = yield call
    if not found:
        return None
    job, kind, token, asked, note, stop = found
    return TakenJob(job.decode(), kind.decode(), token, asked, note, bool(stop), now_ms)


def stop_job(job: str) -> Operation[bool]:
    """Have a job stopped by the process that has it; False when it has ended."""
    return bool((yield Call("hw_job_stop", KEY, (job,), repeatable=True)))


def list_jobs(kind: str = "") -> Operation[list[NotedJob]]:
    """Return the jobs of a kind or of all, running ones first, then the newest first."""
    now_ms, *found = yield Call("hw_job_list", KEY, (kind,), read_only=True)
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
