"""Replays of streams by a job of the server: begun by a request, shown and stopped by others.

A replay outlives its process (see jobs/engine.py): whoever continues with it learns from the target
how far it is, so that nothing is written twice.
"""

from __future__ import annotations

from hashlib import sha256
from typing import TYPE_CHECKING, Annotated, Final, Literal

import msgspec
from msgspec import Meta

from headwater.errors import UnknownStream
from headwater.kernel.declaring import Scope
from headwater.log.replaying import Replayed, ReplayRequest, default_producer
from headwater.serve.api.calls import ApiCall
from headwater.serve.api.routes import Route
from headwater.serve.fields import Offset
from headwater.serve.http.messages import Refused
from headwater.serve.jobs.engine import HeldJob, JobKind, JobNote
from headwater.serve.tokens import Grant
from headwater.views.record import View

if TYPE_CHECKING:
    pass

State = Literal["running", "stopping", "done", "stopped", "failed", "lost"]


class ReplayBody(msgspec.Struct, forbid_unknown_fields=True):
    """Which offsets go where: into a stream, or to a sandbox group of ``into`` or of its own.

    ``speed`` is 1 for as it was, 10 for ten times that, null for as fast as can be. The same
    producer continues where it was; without one it is that of the range and speed.
    """

    into: str | None = None
    group: str | None = None
    first: Offset | None = None
    last: Offset | None = None
    speed: Annotated[float, Meta(ge=0.001, le=1_000_000)] | None = None
    producer: str | None = None

    def asked(self, source: str) -> ReplayRequest:
        """Return what is replayed; raises InvalidInput."""
        words = (self.into, self.first, self.last, self.speed, self.group, self.producer)
        asked = ReplayRequest(source, *words)
        asked.check()
        return asked


class ReplayView(View, frozen=True, kw_only=True):
    """A replay that a server runs or has run: everything below ``next`` is in ``into``.

    ``written`` counts what this run has copied, ``missed`` what was evicted before it could be. A
    replay that is ``lost`` has no process at the moment: the next one continues with it.
    """

    replay: str
    state: State
    who: str
    source: str
    into: str
    group: str | None
    first: int
    last: int
    next: int
    written: int
    missed: int
    speed: float | None
    producer: str | None
    error: str | None = None
    noted_ms: int = 0

    @property
    def over(self) -> bool:
        """Whether nothing more will happen by itself."""
        return self.state in ("done", "stopped", "failed")


class ReplaysView(View, frozen=True, kw_only=True):
    """Replays of a stream, the newest first."""

    replays: list[ReplayView]


class ReplayNote(JobNote, frozen=True, kw_only=True):
    """How far a replay is."""

    state: Literal["running", "done", "stopped", "failed"] = "running"
    first: int
    last: int
    next: int
    written: int = 0
    missed: int = 0


class Replays(JobKind[ReplayNote, ReplayView]):
    """Copies a range; the target knows how far, whoever continues."""

    name = "replay"
    note = ReplayNote
    view = ReplayView

    async def run(self, job: HeldJob) -> bool:
        """Copy what the target has not got yet; returns whether it has all."""
        asked = msgspec.json.decode(job.asked, type=ReplayRequest)
        before: list[ReplayNote] = []

        def progress(now: Replayed) -> None:
            if not before:
                # What was copied after the last note of another process.
                unseen = max(now.next - job.note.next, 0)
                written = job.note.written + unseen
                before.append(msgspec.structs.replace(job.note, written=written))
            job.note = _as_far(before[0], now)

        done = await self.hw.replay(
            asked.source,
            asked.into,
            first=asked.first,
            last=asked.last,
            speed=asked.speed,
            group=asked.group,
            producer=asked.producer,
            progress=progress,
            stop=lambda: job.ending or not job.is_sure,
        )
        if before:
            job.note = _as_far(before[0], done)
        return done.complete

    async def known(self, grant: Grant, source: str) -> list[ReplayView]:
        """Return the replays of a stream whose targets a token may read: those under way first."""
        return [
            replay
            for replay in await self.jobs()
            if replay.source == source and grant.allows(Scope.READ, replay.into)
        ]

    async def start(self, who: str, asked: ReplayRequest) -> ReplayView:
        """Begin a replay, or continue with it; raises Refused, 409, for one that runs already."""
        info = await self.hw.stream(asked.source).info()
        if not info.exists:
            raise UnknownStream(asked.source)
        producer = asked.producer or default_producer(asked, info.created_ms)
        words = (asked.source, asked.target, producer)
        name = sha256(repr(words).encode()).hexdigest()[:12]
        first, last = max(asked.first or info.first, 1), min(asked.last or info.last, info.last)
        if first <= last:
            # What is written to the source meanwhile is not part of it, whoever continues.
            asked = asked._replace(first=first, last=last)
        view = ReplayView(
            replay=name,
            state="running",
            who=who,
            source=asked.source,
            into=asked.target,
            group=asked.group,
            first=first,
            last=last,
            next=first,
            written=0,
            missed=0,
            speed=asked.speed,
            producer=producer,
        )
        note = ReplayNote(first=first, last=last, next=first)
        if not await self.begin(name, view, asked._replace(producer=producer), note):
            raise Refused(409, "this replay runs already; stop it first, or wait for its end")
        return view


def _as_far(before: ReplayNote, now: Replayed) -> ReplayNote:
    return msgspec.structs.replace(
        before,
        first=now.first,
        last=now.last,
        next=now.next,
        written=before.written + now.written,
        missed=before.missed + now.missed,
    )


async def list_replays(call: ApiCall) -> ReplaysView:
    """Show the replays of a stream into those that the token may read, the newest first."""
    return ReplaysView(replays=await call.served.jobs.replays.known(call.grant, call.name))


async def start_replay(call: ApiCall) -> ReplayView:
    """Copy a range of a stream into another one, or for a sandbox group, at a speed.

    It runs beside all requests and is shown by GET. When its server ends, another process of the
    same store continues with it, or the next one that starts. The same request again continues with
    one that was stopped, and writes nothing twice. Needs the write scope for the stream that is
    written.
    """
    asked = call.body.asked(call.name)
    call.require(Scope.WRITE, asked.target)
    return await call.served.jobs.replays.start(call.grant.holder, asked)


async def stop_replay(call: ApiCall) -> ReplaysView:
    """Stop a replay; what it has copied is kept."""
    listed = (await list_replays(call)).replays
    if not any(replay.replay == call.names[1] for replay in listed):
        raise Refused(404, "there is no such replay; GET lists those of the stream")
    await call.served.jobs.replays.stop(call.names[1])
    return await list_replays(call)


_PATH: Final = "/v1/streams/{stream}/replays"
REPLAY_ROUTES: Final = (
    Route("GET", _PATH, list_replays, Scope.READ, answer=ReplaysView),
    Route(
        "POST",
        _PATH,
        start_replay,
        Scope.ADMIN,
        body=ReplayBody,
        answer=ReplayView,
        status=202,
        look=list_replays,
    ),
    Route(
        "DELETE",
        f"{_PATH}/{{replay}}",
        stop_replay,
        Scope.ADMIN,
        answer=ReplaysView,
        look=list_replays,
    ),
)
