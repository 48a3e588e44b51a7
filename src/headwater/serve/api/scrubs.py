"""Scrubs and repairs of the store over HTTP: jobs that requests begin and stop.

One runs at a time in a store, whichever process is asked. When its process ends, another one begins
it again from the start: to read twice does no harm, and a repair is made only where an object still
needs it. Reports are kept in the stream ``hw.scrubs``.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Final, Literal

import msgspec
from msgspec import Meta

from headwater.kernel.declaring import Scope
from headwater.kernel.inputs import OwnName
from headwater.serve.api.routes import Route
from headwater.serve.http.messages import Refused
from headwater.serve.jobs.engine import HeldJob, JobKind, JobNote
from headwater.store.scrubbing import ScrubProgress, ScrubReport, StoreKind
from headwater.views.record import View
from headwater.views.stores import RepairView, ScrubView
from headwater.whole_store.scrubbing import RepairReport

if TYPE_CHECKING:
    from headwater.serve.api.calls import ApiCall

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
    report: ScrubView | None = None
    repair: RepairView | None = None
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
                repair=RepairView.of(shown, self.hw.store.where, dry_run=dry_run),
            )
        view = ScrubView.of(report, self.hw.store.where)
        beyond = max(len(view.defects) - _MOST_DEFECTS, 0)
        view = msgspec.structs.replace(
            view, defects=view.defects[:_MOST_DEFECTS], more=view.more + beyond
        )
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
