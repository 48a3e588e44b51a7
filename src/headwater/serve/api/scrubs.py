"""Scrubs and repairs of the store over HTTP: begun and stopped by requests, run beside all others.

A scrub, or a repair, is noted in the stream ``hw.scrubs.running`` while it runs, and with its
report in ``hw.scrubs`` when it has ended: whichever process is asked knows of it. One whose process
was killed is no longer shown as running after half a minute without a note. A request to stop it is
noted in ``hw.scrubs.stops``, which the process that runs it reads.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta

from headwater.errors import HeadwaterError
from headwater.log.types import Message
from headwater.scrubbing import RepairReport
from headwater.serve.api.routes import Route
from headwater.serve.http.messages import Refused
from headwater.serve.tokens import Scope
from headwater.store.scrub_pace import ScrubProgress, ScrubReport
from headwater.store.scrubbing import StoreKind
from headwater.views.record import View
from headwater.views.scrubs import RepairView, ScrubView

if TYPE_CHECKING:
    from headwater.aio_client import AsyncHeadwater
    from headwater.serve.api.calls import ApiCall

log = logging.getLogger("headwater.serve")

SCRUBS: Final = "hw.scrubs"
RUNNING: Final = "hw.scrubs.running"
STOPS: Final = "hw.scrubs.stops"
NOTE_S: Final = 1.0
GONE_MS: Final = 30_000
_KEPT: Final = 100
# So many defects are noted; the others are counted.
_MOST_DEFECTS: Final = 1000


class ScrubStateView(View, frozen=True, kw_only=True):
    """A scrub that a server runs or has run: which object it has come to, and what it has seen.

    A repair is one that also changes what can be repaired. ``report`` or ``repair`` is there when
    it has ended, ``error`` when it could not be done.
    """

    scrub: str
    what: Literal["scrub", "repair"] = "scrub"
    state: Literal["running", "done", "stopped", "failed"]
    who: str
    kind: str
    name: str
    objects: int
    bytes: int
    defects: int
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


class Scrubs:
    """The scrub of a process, and what is known of those of others."""

    def __init__(self, hw: AsyncHeadwater) -> None:
        self._hw = hw
        self._task: asyncio.Task[None] | None = None
        self._stopping = False
        # The scrub of this process that somebody wants to be stopped.
        self._stopped = ""

    async def state(self) -> ScrubsView:
        """Return what runs now, in any process, and what has ended last."""
        running = await self._newest(RUNNING)
        if running is not None and (
            running.state != "running" or await self._now_ms() - running.noted_ms > GONE_MS
        ):
            running = None
        return ScrubsView(running=running, last=await self._newest(SCRUBS))

    async def _newest(self, stream: str) -> ScrubStateView | None:
        found = await self._last(stream)
        if found is None:
            return None
        note = ScrubStateView.from_json(found.value)
        return msgspec.structs.replace(note, noted_ms=found.time_ms)

    async def _last(self, stream: str) -> Message | None:
        """Return the last note in a stream; one that is evicted meanwhile has one behind it."""
        notes = self._hw.stream(stream)
        last = (await notes.info()).last
        found = (await notes.read_from(last, 1)).messages if last else []
        return found[0] if found else None

    async def _now_ms(self) -> int:
        seconds, microseconds = (await self._hw.store.command("TIME"))[0]
        return int(seconds) * 1000 + int(microseconds) // 1000

    async def start(self, who: str, body: ScrubBody | RepairBody) -> None:
        """Begin a scrub or a repair; raises Refused, 409, while one runs."""
        if self._task is not None or (await self.state()).running is not None:
            raise Refused(409, "a scrub runs already; wait for its end, or stop it")
        note = ScrubStateView(
            scrub=secrets.token_hex(6),
            what="repair" if isinstance(body, RepairBody) else "scrub",
            state="running",
            who=who,
            kind="store",
            name="",
            objects=0,
            bytes=0,
            defects=0,
        )
        await self._note(RUNNING, note)
        self._task = asyncio.create_task(self._run(note, body))
        self._task.add_done_callback(self._over)

    async def stop(self) -> None:
        """Have what runs stopped, in whichever process; raises Refused, 409, when nothing does."""
        running = (await self.state()).running
        if running is None:
            raise Refused(409, "no scrub runs; nothing is to be stopped")
        await self._hw.stream(STOPS).write(running.scrub, b"", backlog=1)

    async def _heed_stop(self, note: ScrubStateView) -> None:
        found = await self._last(STOPS)
        if found is not None and found.tag == note.scrub:
            self._stopped = note.scrub

    def _over(self, task: asyncio.Task[None]) -> None:
        self._task = None
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("the end of a scrub could not be noted", exc_info=error)

    async def _run(self, note: ScrubStateView, body: ScrubBody | RepairBody) -> None:
        seen: list[ScrubProgress] = []

        def progress(now: ScrubProgress) -> None:
            seen[:] = [now]

        def stop() -> bool:
            return self._stopping or self._stopped == note.scrub

        work: Coroutine[Any, Any, ScrubReport | RepairReport]
        if isinstance(body, ScrubBody):
            work = self._hw.scrub(
                *body.names,
                kinds=body.kinds,
                rate_mb_s=body.rate_mb_s,
                progress=progress,
                stop=stop,
            )
        else:
            work = self._hw.repair(
                *body.names, kinds=body.kinds, dry_run=body.dry_run, progress=progress, stop=stop
            )
        scrub: asyncio.Task[ScrubReport | RepairReport] = asyncio.create_task(work)
        try:
            while not (await asyncio.wait([scrub], timeout=NOTE_S))[0]:
                if seen:
                    note = msgspec.structs.replace(note, **seen[0]._asdict())
                await self._note(RUNNING, note)
                await self._heed_stop(note)
        finally:
            scrub.cancel()
            await asyncio.wait([scrub])
        dry_run = isinstance(body, RepairBody) and body.dry_run
        ended = self._ended(note, scrub, dry_run=dry_run)
        await self._note(SCRUBS, ended)
        await self._note(RUNNING, msgspec.structs.replace(ended, report=None, repair=None))

    def _ended(
        self,
        note: ScrubStateView,
        scrub: asyncio.Task[ScrubReport | RepairReport],
        *,
        dry_run: bool,
    ) -> ScrubStateView:
        error = scrub.exception()
        if error is not None:
            if not isinstance(error, HeadwaterError):
                log.error("a scrub failed by a fault of the server", exc_info=error)
            why = f"{type(error).__name__}: {error}"
            return msgspec.structs.replace(note, state="failed", error=why)
        report = scrub.result()
        note = msgspec.structs.replace(
            note, state="done" if report.complete else "stopped", kind="store", name=""
        )
        if isinstance(report, RepairReport):
            repaired, left = report.repaired[:_MOST_DEFECTS], report.left[:_MOST_DEFECTS]
            shown = RepairReport(repaired, left, report.complete)
            return msgspec.structs.replace(
                note,
                defects=len(report.repaired) + len(report.left),
                repair=RepairView.of(shown, self._hw.store.where, dry_run=dry_run),
            )
        view = ScrubView.of(report, self._hw.store.where)
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

    async def _note(self, stream: str, note: ScrubStateView) -> None:
        kept = _KEPT if stream == SCRUBS else 1
        await self._hw.stream(stream).write(note.scrub, note.to_json(), backlog=kept)

    async def close(self) -> None:
        """Stop the scrub of this process; what it has seen is noted as incomplete."""
        self._stopping = True
        if self._task is not None:
            await asyncio.wait([self._task])


async def get_scrub(call: ApiCall) -> ScrubsView:
    """Show the scrub that runs, as far as it is, and the report of the last one."""
    return await call.served.scrubs.state()


async def start_scrub(call: ApiCall) -> ScrubsView:
    """Begin to read all of the store, or some objects, and to look for damage; changes nothing.

    It runs beside all requests, at a limited rate if that is given, and is shown by GET. While one
    runs another is refused. A server that stops ends it.
    """
    await call.served.scrubs.start(call.grant.holder, call.body)
    return await call.served.scrubs.state()


async def stop_scrub(call: ApiCall) -> ScrubsView:
    """Have the scrub or the repair that runs stopped, within seconds, in whichever process.

    What it has seen until then is its report, which says that it is not complete.
    """
    await call.served.scrubs.stop()
    return await call.served.scrubs.state()


async def start_repair(call: ApiCall) -> ScrubsView:
    """Begin to repair what a scrub reports, in all of the store or in some objects.

    Without `dry_run: false` nothing is changed, and its report says what would be. It is shown by
    GET /v1/store/scrub, and stopped, as a scrub is.
    """
    await call.served.scrubs.start(call.grant.holder, call.body)
    return await call.served.scrubs.state()


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
