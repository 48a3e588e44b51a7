"""Jobs that requests begin, and a server does in the background: scrubs, repairs and replays."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import replace
from hashlib import sha256
from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta

from headwater.errors import UnknownStream
from headwater.kernel.declaring import Scope
from headwater.kernel.inputs import OwnName
from headwater.log.replaying import Replayed, ReplayRequest, default_producer
from headwater.serve.api.calls import ApiCall
from headwater.serve.api.routes import Route
from headwater.serve.fields import Offset
from headwater.serve.http.messages import Refused
from headwater.serve.jobs.engine import HeldJob, JobKind, JobNote
from headwater.serve.tokens import Grant
from headwater.store.scrubbing import ScrubProgress, ScrubReport, StoreKind
from headwater.views.record import View
from headwater.views.stores import RepairView, ScrubView
from headwater.whole_store.scrubbing import RepairReport

# ── Scrubs ────────────────────────────────────────────────────────────────────────────────────────
# Scrubs and repairs of the store over HTTP: jobs that requests begin and stop.
#
# One runs at a time in a store, whichever process is asked. When its process ends, another one
# begins it again from the start: to read twice does no harm, and a repair is made only where an
# object still needs it. Reports are kept in the stream ``hw.scrubs``.


SCRUBS: Final = OwnName("hw.scrubs")
# All scrubs are the same job, of which the store lets one run.
_JOB: Final = "scrub"
_KEPT: Final = 100
# So many defects are noted; the others are counted.
_MOST_DEFECTS: Final = 1000
_UNDER_WAY: Final = ("running", "stopping", "lost")
_State = Literal["running", "stopping", "done", "stopped", "failed", "lost"]


class ScrubStateView(View, frozen=True, kw_only=True):
    """A scrub that a server runs or has run: which object it has come to, and what it has seen.

    A repair is one that also changes what can be repaired. ``report`` or ``repair`` is there when
    it has ended, ``error`` when it could not be done. One that is ``lost`` has no process at the
    moment: the next one begins it again.
    """

    scrub: str
    what: Literal["scrub", "repair"] = "scrub"
    state: _State
    who: str
    kind: str = "store"
    name: str = ""
    objects: int = 0
    bytes: int = 0
    defects: int = 0
    noted_ms: int = 0
    report: ScrubView | None = None  # type: ignore[valid-type]  # mirror makes them at run time
    repair: RepairView | None = None  # type: ignore[valid-type]
    error: str | None = None


class ScrubsView(View, frozen=True, kw_only=True):
    """The scrub that runs, and the last one that a server has ended; null without one."""

    running: ScrubStateView | None
    last: ScrubStateView | None


class ScrubBody(msgspec.Struct, forbid_unknown_fields=True):
    """What is read, and how fast: all of the store, or objects of these names or kinds."""

    names: Annotated[list[str], Meta(max_length=1000)] = []
    kinds: list[StoreKind] = []
    rate_mb_s: Annotated[float, Meta(gt=0, le=100_000)] | None = None


class RepairBody(msgspec.Struct, forbid_unknown_fields=True):
    """What is repaired: objects of these names or kinds; with ``dry_run`` nothing is changed."""

    names: Annotated[list[str], Meta(max_length=1000)] = []
    kinds: list[StoreKind] = []
    dry_run: bool = True


class ScrubNote(JobNote, frozen=True, kw_only=True):
    """How far a scrub is."""

    state: Literal["running", "done", "stopped", "failed"] = "running"
    kind: str = "store"
    name: str = ""
    objects: int = 0
    bytes: int = 0
    defects: int = 0


class _Asked(msgspec.Struct, frozen=True):
    """What a process needs to begin a scrub, or with ``repair`` a repair, again."""

    view: ScrubStateView
    scrub: ScrubBody | None = None
    repair: RepairBody | None = None


class Scrubs(JobKind[ScrubNote, ScrubStateView]):
    """Reads all that is asked for, from the start, and keeps the report."""

    name = "scrub"
    note = ScrubNote
    view = ScrubStateView

    async def run(self, job: HeldJob) -> bool:
        """Scrub or repair; returns whether it has come to the end."""
        asked = msgspec.json.decode(job.asked, type=_Asked)

        def progress(now: ScrubProgress) -> None:
            job.note = ScrubNote(**now._asdict())

        report = await self._work(asked, job, progress)
        if report.complete or job.stop_asked:
            ended = self._ended(asked, report)
            job.note = msgspec.structs.replace(
                job.note, objects=ended.objects, bytes=ended.bytes, defects=ended.defects
            )
            notes = self.hw.stream(SCRUBS)
            await notes.write(ended.scrub, ended.to_json(), backlog=_KEPT)
        return report.complete

    async def _work(
        self, asked: _Asked, job: HeldJob, progress: Callable[[ScrubProgress], None]
    ) -> ScrubReport | RepairReport:
        if asked.repair is not None:
            return await self.hw.repair(
                *asked.repair.names,
                kinds=asked.repair.kinds,
                dry_run=asked.repair.dry_run,
                progress=progress,
                stop=lambda: job.ending,
            )
        body = asked.scrub or ScrubBody()
        return await self.hw.scrub(
            *body.names,
            kinds=body.kinds,
            rate_mb_s=body.rate_mb_s,
            progress=progress,
            stop=lambda: job.ending,
        )

    def _ended(self, asked: _Asked, report: ScrubReport | RepairReport) -> ScrubStateView:
        note = msgspec.structs.replace(asked.view, state="done" if report.complete else "stopped")
        if isinstance(report, RepairReport):
            repaired, left = report.repaired[:_MOST_DEFECTS], report.left[:_MOST_DEFECTS]
            shown = RepairReport(repaired, left, report.complete)
            dry_run = asked.repair is None or asked.repair.dry_run
            return msgspec.structs.replace(
                note,
                defects=len(report.repaired) + len(report.left),
                repair=RepairView.of(shown, store=self.hw.store.where, dry_run=dry_run),
            )
        beyond = max(len(report.defects) - _MOST_DEFECTS, 0)
        named = replace(report, defects=report.defects[:_MOST_DEFECTS], more=report.more + beyond)
        view = ScrubView.of(named, store=self.hw.store.where)
        return msgspec.structs.replace(
            note,
            objects=report.objects,
            bytes=report.bytes,
            defects=len(report.defects) + report.more,
            report=view,
        )

    async def state(self) -> ScrubsView:
        """Return what runs now, in any process, and what has ended last."""
        jobs = await self.jobs()
        running = next((one for one in jobs if one.state in _UNDER_WAY), None)
        failed = next((one for one in jobs if one.state == "failed"), None)
        return ScrubsView(running=running, last=failed or await self._last())

    async def _last(self) -> ScrubStateView | None:
        """Return the last report; one that is evicted meanwhile has one behind it."""
        notes = self.hw.stream(SCRUBS)
        last = (await notes.info()).last
        found = (await notes.read_from(last, 1)).messages if last else []
        if not found:
            return None
        view = ScrubStateView.from_json(found[0].value)
        return msgspec.structs.replace(view, noted_ms=found[0].time_ms)

    async def start(self, who: str, body: ScrubBody | RepairBody) -> None:
        """Begin a scrub or a repair; raises Refused, 409, while one runs."""
        repair = body if isinstance(body, RepairBody) else None
        view = ScrubStateView(
            scrub=secrets.token_hex(6),
            what="scrub" if repair is None else "repair",
            state="running",
            who=who,
        )
        asked = _Asked(view, body if isinstance(body, ScrubBody) else None, repair)
        if not await self.begin(_JOB, view, asked, ScrubNote()):
            raise Refused(409, "a scrub runs already; wait for its end, or stop it")

    async def stop_running(self) -> None:
        """Have what runs stopped, in whichever process; raises Refused, 409, when nothing does."""
        if (await self.state()).running is None:
            raise Refused(409, "no scrub runs; there is nothing to stop")
        await self.stop(_JOB)


async def get_scrub(call: ApiCall) -> ScrubsView:
    """Show the running scrub with its progress, and the report of the last one."""
    return await call.served.jobs.scrubs.state()


async def start_scrub(call: ApiCall) -> ScrubsView:
    """Start to read the whole store, or some objects, and look for damage; changes nothing.

    It runs beside all requests, at a limited rate if that is given, and is shown by GET. While one
    runs another is refused. When its server ends, another process of the same store begins it
    again, or the next one that starts.
    """
    await call.served.jobs.scrubs.start(call.grant.holder, call.body)
    return await call.served.jobs.scrubs.state()


async def stop_scrub(call: ApiCall) -> ScrubsView:
    """Stop the running scrub or repair within seconds, in whichever process it is.

    What it has seen until then is its report, which says that it is not complete.
    """
    await call.served.jobs.scrubs.stop_running()
    return await call.served.jobs.scrubs.state()


async def start_repair(call: ApiCall) -> ScrubsView:
    """Start to repair what a scrub reports, in the whole store or in some objects.

    Without `dry_run: false` nothing is changed, and its report says what would be. It is shown by
    GET /v1/store/scrub, and stopped, as a scrub is.
    """
    await call.served.jobs.scrubs.start(call.grant.holder, call.body)
    return await call.served.jobs.scrubs.state()


_PATH: Final = "/v1/store/scrub"
SCRUB_ROUTES: Final = (
    Route("GET", _PATH, get_scrub, Scope.READ, answer=ScrubsView, whole_store=True),
    Route(
        "POST",
        _PATH,
        start_scrub,
        Scope.ADMIN,
        body=ScrubBody,
        answer=ScrubsView,
        status=202,
        whole_store=True,
        look=get_scrub,
    ),
    Route(
        "DELETE",
        _PATH,
        stop_scrub,
        Scope.ADMIN,
        answer=ScrubsView,
        status=202,
        whole_store=True,
        look=get_scrub,
    ),
    Route(
        "POST",
        "/v1/store/repair",
        start_repair,
        Scope.ADMIN,
        body=RepairBody,
        answer=ScrubsView,
        status=202,
        whole_store=True,
        look=get_scrub,
    ),
)


# ── Replays ───────────────────────────────────────────────────────────────────────────────────────
# Replays of streams by a job of the server: begun by a request, shown and stopped by others.
#
# A replay outlives its process (see jobs/engine.py): whoever continues with it learns from the
# target how far it is, so that nothing is written twice.


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


_REPLAYS: Final = "/v1/streams/{stream}/replays"
REPLAY_ROUTES: Final = (
    Route("GET", _REPLAYS, list_replays, Scope.READ, answer=ReplaysView),
    Route(
        "POST",
        _REPLAYS,
        start_replay,
        Scope.ADMIN,
        body=ReplayBody,
        answer=ReplayView,
        status=202,
        look=list_replays,
    ),
    Route(
        "DELETE",
        f"{_REPLAYS}/{{replay}}",
        stop_replay,
        Scope.ADMIN,
        answer=ReplaysView,
        look=list_replays,
    ),
)
