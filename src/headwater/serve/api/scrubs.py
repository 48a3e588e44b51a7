"""Scrubs of the store over HTTP: begun by a request, run beside all others, and noted in the store.

A scrub is noted in the stream ``hw.scrubs.running`` while it runs, and with its report in
``hw.scrubs`` when it has ended: whichever process is asked, and whenever, knows of it. One whose
process was killed is no longer shown as running after half a minute without a note.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from typing import TYPE_CHECKING, Annotated, Final, Literal

import msgspec
from msgspec import Meta

from headwater.errors import HeadwaterError
from headwater.serve.api.routes import Route
from headwater.serve.http.messages import Refused
from headwater.serve.tokens import Scope
from headwater.store.scrub_pace import ScrubProgress, ScrubReport
from headwater.store.scrubbing import StoreKind
from headwater.views.record import View
from headwater.views.scrubs import ScrubView

if TYPE_CHECKING:
    from headwater.aio_client import AsyncHeadwater
    from headwater.serve.api.calls import ApiCall

log = logging.getLogger("headwater.serve")

SCRUBS: Final = "hw.scrubs"
RUNNING: Final = "hw.scrubs.running"
NOTE_S: Final = 1.0
GONE_MS: Final = 30_000
_KEPT: Final = 100
# So many defects are noted; the others are counted.
_MOST_DEFECTS: Final = 1000


class ScrubStateView(View, frozen=True, kw_only=True):
    """A scrub that a server runs or has run: which object it has come to, and what it has seen.

    ``report`` is there when it has ended, ``error`` when it could not be done.
    """

    scrub: str
    state: Literal["running", "done", "failed"]
    who: str
    kind: str
    name: str
    objects: int
    bytes: int
    defects: int
    noted_ms: int = 0
    report: ScrubView | None = None
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


class Scrubs:
    """The scrub of a process, and what is known of those of others."""

    def __init__(self, hw: AsyncHeadwater) -> None:
        self._hw = hw
        self._task: asyncio.Task[None] | None = None
        self._stopping = False

    async def state(self) -> ScrubsView:
        """Return what runs now, in any process, and what has ended last."""
        running = await self._newest(RUNNING)
        if running is not None and (
            running.state != "running" or await self._now_ms() - running.noted_ms > GONE_MS
        ):
            running = None
        return ScrubsView(running=running, last=await self._newest(SCRUBS))

    async def _newest(self, stream: str) -> ScrubStateView | None:
        notes = self._hw.stream(stream)
        last = (await notes.info()).last
        found = await notes.read(last, 1) if last else []
        if not found or found[0] is None:
            return None
        note = ScrubStateView.from_json(found[0].value)
        return msgspec.structs.replace(note, noted_ms=found[0].time_ms)

    async def _now_ms(self) -> int:
        seconds, microseconds = (await self._hw.store.command("TIME"))[0]
        return int(seconds) * 1000 + int(microseconds) // 1000

    async def start(self, who: str, body: ScrubBody) -> None:
        """Begin a scrub; raises Refused, 409, while one runs."""
        if self._task is not None or (await self.state()).running is not None:
            raise Refused(409, "a scrub runs already; wait for its end")
        note = ScrubStateView(
            scrub=secrets.token_hex(6),
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

    def _over(self, task: asyncio.Task[None]) -> None:
        self._task = None
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("the end of a scrub could not be noted", exc_info=error)

    async def _run(self, note: ScrubStateView, body: ScrubBody) -> None:
        seen: list[ScrubProgress] = []

        def progress(now: ScrubProgress) -> None:
            seen[:] = [now]

        scrub = asyncio.create_task(
            self._hw.scrub(
                *body.names,
                kinds=body.kinds,
                rate_mb_s=body.rate_mb_s,
                progress=progress,
                stop=lambda: self._stopping,
            )
        )
        try:
            while not (await asyncio.wait([scrub], timeout=NOTE_S))[0]:
                if seen:
                    note = msgspec.structs.replace(note, **seen[0]._asdict())
                await self._note(RUNNING, note)
        finally:
            scrub.cancel()
            await asyncio.wait([scrub])
        ended = self._ended(note, scrub)
        await self._note(SCRUBS, ended)
        await self._note(RUNNING, msgspec.structs.replace(ended, report=None))

    def _ended(self, note: ScrubStateView, scrub: asyncio.Task[ScrubReport]) -> ScrubStateView:
        error = scrub.exception()
        if error is not None:
            if not isinstance(error, HeadwaterError):
                log.error("a scrub failed by a fault of the server", exc_info=error)
            why = f"{type(error).__name__}: {error}"
            return msgspec.structs.replace(note, state="failed", error=why)
        report = scrub.result()
        view = ScrubView.of(report, self._hw.store.where)
        beyond = max(len(view.defects) - _MOST_DEFECTS, 0)
        view = msgspec.structs.replace(
            view, defects=view.defects[:_MOST_DEFECTS], more=view.more + beyond
        )
        return msgspec.structs.replace(
            note,
            state="done",
            kind="store",
            name="",
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
)
