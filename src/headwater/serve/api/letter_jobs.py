"""Dead letters redriven or discarded by a task of the server: many, at a rate, from a moment on.

A job is noted in the stream ``hw.letters`` when it is begun, while it runs and when it has ended:
whichever process is asked knows of it, and may stop it. Until it begins it can be taken back whole;
while it runs it can be stopped, and leaves the rest. A server that ends stops its jobs. One that is
killed notes nothing any more: its jobs are shown as lost after half a minute, and what they had
done by then stays done.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated, Final, Literal

import msgspec
from msgspec import Meta

from headwater.errors import HeadwaterError, InvalidInput
from headwater.serve.api.calls import ApiCall
from headwater.serve.api.groups import GivenOffsets
from headwater.serve.api.letter_work import LetterWork
from headwater.serve.api.letters import MatchingBody, letter_filter
from headwater.serve.api.routes import Route
from headwater.serve.http.messages import Refused
from headwater.serve.tokens import Grant, Scope
from headwater.views.record import View

if TYPE_CHECKING:
    from headwater.aio_client import AsyncHeadwater

log = logging.getLogger("headwater.serve")

JOBS: Final = "hw.letters"
GONE_MS: Final = 30_000
_NOTE_S: Final = 1.0
_KEPT: Final = 2000
_SHOWN: Final = 500
_MOST_RUNNING: Final = 16
_AUDITED: Final = 20


class LetterPlace(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """Where letters lie: a group of a stream, or a queue; all that fit, or some of them.

    ``offsets`` are those that messages have in the stream, ``ids`` those of messages of the queue.
    """

    stream: str | None = None
    group: str | None = None
    queue: str | None = None
    offsets: GivenOffsets | None = None
    ids: Annotated[list[str], Meta(max_length=10_000)] | None = None

    @property
    def name(self) -> str:
        """The name that a token has to allow."""
        return self.queue or self.stream or ""

    @property
    def spelled(self) -> str:
        """The place as it is shown."""
        return self.queue or f"{self.stream} / {self.group}"

    def without_letters(self) -> LetterPlace:
        """Return the place alone, as notes of a job have it: these are written every second."""
        return LetterPlace(self.stream, self.group, self.queue)

    def check(self) -> None:
        """Check that it names one place; raises InvalidInput."""
        grouped = bool(self.stream and self.group) and self.queue is None and self.ids is None
        queued = bool(self.queue) and not (self.stream or self.group or self.offsets)
        if grouped == queued:
            raise InvalidInput("a place is a stream with its group and offsets, or a queue and ids")


class LetterJobBody(msgspec.Struct, forbid_unknown_fields=True):
    """What is done to which letters: from when on, and how many a second at most.

    Letters fit ``matching``, unless their place names them. Those that come into being after the
    job has begun are left alone.
    """

    action: Literal["redrive", "discard"]
    places: Annotated[list[LetterPlace], Meta(min_length=1, max_length=1000)]
    matching: MatchingBody = msgspec.field(default_factory=MatchingBody)
    rate_per_s: Annotated[int, Meta(ge=1, le=1_000_000)] | None = None
    delay_ms: Annotated[int, Meta(ge=0, le=3_600_000)] = 0


class StopJobBody(msgspec.Struct, forbid_unknown_fields=True):
    """The job that is stopped."""

    job: Annotated[str, Meta(max_length=64)]


class LetterJobView(View, frozen=True, kw_only=True):
    """A job: how far it is, and how it ended.

    ``places`` are shown without the letters that were named there; ``total`` is how many those
    were, or how many dead letters lay in its places when it was asked for. ``gone`` are letters
    that had to stay: the stream no longer holds their messages. ``begins_ms`` is when it begins.
    """

    job: str
    state: Literal["waiting", "running", "stopping", "done", "stopped", "failed", "lost"]
    action: Literal["redrive", "discard"]
    who: str
    places: list[LetterPlace]
    matching: MatchingBody
    rate_per_s: int | None
    begins_ms: int
    total: int
    looked: int = 0
    done: int = 0
    gone: int = 0
    error: str | None = None
    noted_ms: int = 0

    @property
    def over(self) -> bool:
        """Whether nothing more will happen."""
        return self.state not in ("waiting", "running", "stopping")


class LetterJobsView(View, frozen=True, kw_only=True):
    """Jobs on dead letters, the newest first."""

    jobs: list[LetterJobView]


class LettersLeftView(View, frozen=True, kw_only=True):
    """How many dead letters lie where, as the audit shows it before and after."""

    dead: dict[str, int]


class LetterJobs:
    """The jobs of a process, and what is known of those of others."""

    def __init__(self, hw: AsyncHeadwater) -> None:
        self._hw = hw
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._stops: dict[str, asyncio.Event] = {}

    async def known(self) -> list[LetterJobView]:
        """Return what is known of jobs, the newest first."""
        notes = self._hw.stream(JOBS)
        info = await notes.info()
        first = max(info.last - _SHOWN + 1, info.first)
        found = await notes.read(first, info.last - first + 1) if info.last >= first else []
        jobs: dict[str, LetterJobView] = {}
        for message in filter(None, found):
            note = _note_in(message.value)
            if note and (note.state != "stopping" or note.job in jobs):
                jobs[note.job] = msgspec.structs.replace(note, noted_ms=message.time_ms)
        now_ms = await self._now_ms() if jobs else 0
        return [_or_lost(job, now_ms) for job in reversed(jobs.values())]

    async def _now_ms(self) -> int:
        seconds, microseconds = (await self._hw.store.command("TIME"))[0]
        return int(seconds) * 1000 + int(microseconds) // 1000

    async def start(self, who: str, body: LetterJobBody) -> LetterJobView:
        """Begin a job; raises Refused, 429, when this process has too many."""
        if len(self._tasks) >= _MOST_RUNNING:
            raise Refused(429, f"{_MOST_RUNNING} jobs run already; wait for the end of one")
        work = LetterWork(self._hw, body.action, letter_filter(body.matching), body.rate_per_s)
        note = LetterJobView(
            job=secrets.token_hex(6),
            state="waiting" if body.delay_ms else "running",
            action=body.action,
            who=who,
            places=[place.without_letters() for place in body.places],
            matching=body.matching,
            rate_per_s=body.rate_per_s,
            begins_ms=await self._now_ms() + body.delay_ms,
            total=await work.open(body.places),
        )
        await self._note(note)
        self._stops[note.job] = asyncio.Event()
        task = asyncio.create_task(self._run(note, work, body.delay_ms / 1000))
        self._tasks[note.job] = task
        task.add_done_callback(lambda _: self._over(note.job, task))
        return note

    def _over(self, job: str, task: asyncio.Task[None]) -> None:
        del self._tasks[job], self._stops[job]
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("the end of a job on dead letters could not be noted", exc_info=error)

    async def _run(self, note: LetterJobView, work: LetterWork, delay_s: float) -> None:
        stop = self._stops[note.job]
        try:
            await self._pause(note, stop, delay_s)
            noted = time.monotonic()
            while not stop.is_set() and (rest_s := await work.step()) is not None:
                note = self._as_far(note, work, "running")
                if time.monotonic() - noted >= _NOTE_S or rest_s >= _NOTE_S:
                    await self._note(note)
                    noted = time.monotonic()
                    await self._look_for_stop(note.job, stop)
                await self._pause(note, stop, rest_s)
            ended = self._as_far(note, work, "stopped" if stop.is_set() else "done")
        except HeadwaterError as error:
            why = f"{type(error).__name__}: {error}"
            ended = msgspec.structs.replace(self._as_far(note, work, "failed"), error=why)
        await self._note(ended)

    async def _pause(self, note: LetterJobView, stop: asyncio.Event, seconds: float) -> None:
        """Wait; notes that the job is alive, and ends early when somebody stops it."""
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0 and not stop.is_set():
            try:
                await asyncio.wait_for(stop.wait(), min(left, _NOTE_S))
            except TimeoutError:
                if left > _NOTE_S:
                    await self._note(note)
                await self._look_for_stop(note.job, stop)
        if not seconds:
            await asyncio.sleep(0)

    async def _look_for_stop(self, job: str, stop: asyncio.Event) -> None:
        """See whether another process has been asked to stop a job of this one."""
        notes = self._hw.stream(JOBS)
        last = (await notes.info()).last
        for message in await notes.read(max(last - 99, 1), 100):
            if message is not None and message.tag == f"stop {job}":
                stop.set()

    @staticmethod
    def _as_far(
        note: LetterJobView,
        work: LetterWork,
        state: Literal["running", "done", "stopped", "failed"],
    ) -> LetterJobView:
        return msgspec.structs.replace(
            note, state=state, looked=work.looked, done=work.done, gone=work.gone
        )

    async def stop(self, job: LetterJobView) -> None:
        """Stop a job, in whichever process it is."""
        if job.job in self._stops:
            self._stops[job.job].set()
            await asyncio.wait([self._tasks[job.job]])
        elif not job.over:
            asked = msgspec.structs.replace(job, state="stopping")
            await self._hw.stream(JOBS).write(f"stop {job.job}", asked.to_json(), backlog=_KEPT)

    async def _note(self, note: LetterJobView) -> None:
        await self._hw.stream(JOBS).write(note.job, note.to_json(), backlog=_KEPT)

    async def close(self) -> None:
        """Stop all jobs of this process; what they have done is noted."""
        for stop in self._stops.values():
            stop.set()
        if self._tasks:
            await asyncio.wait(list(self._tasks.values()))


def _note_in(value: bytes) -> LetterJobView | None:
    """Return a note of a job; None for what somebody else has written."""
    with suppress(ValueError):
        return LetterJobView.from_json(value)
    return None


def _or_lost(job: LetterJobView, now_ms: int) -> LetterJobView:
    if job.over or now_ms - job.noted_ms <= GONE_MS:
        return job
    return msgspec.structs.replace(job, state="lost")


def _allowed(grant: Grant, scope: Scope, job: LetterJobView) -> bool:
    return all(grant.allows(scope, place.name) for place in job.places)


async def list_letter_jobs(call: ApiCall) -> LetterJobsView:
    """Show jobs on dead letters that concern what the token may read, the newest first."""
    found = await call.served.letter_jobs.known()
    return LetterJobsView(jobs=[job for job in found if _allowed(call.grant, Scope.READ, job)])


async def start_letter_job(call: ApiCall) -> LetterJobView:
    """Redrive or discard dead letters of several groups and queues, at a rate, from a moment on.

    It runs beside all requests. Until it begins, after delay_ms, stopping it takes all of it back;
    what it has done by then cannot be taken back. A server that ends stops it.
    """
    for place in call.body.places:
        place.check()
        call.require(Scope.ADMIN, place.name)
    return await call.served.letter_jobs.start(call.grant.holder, call.body)


async def _letters_now(call: ApiCall) -> LettersLeftView:
    """Show how many dead letters lie in the places of a job that is begun."""
    left = {}
    for place in call.body.places[:_AUDITED]:
        if place.queue is not None:
            left[place.spelled] = (await call.hw.queue(place.queue).stats()).dead
        else:
            group = call.hw.stream(place.stream or "").group(place.group or "")
            left[place.spelled] = (await group.info()).dead
    return LettersLeftView(dead=left)


async def _job_now(call: ApiCall) -> LetterJobsView:
    """Show the job that is stopped."""
    known = await call.served.letter_jobs.known()
    return LetterJobsView(jobs=[job for job in known if job.job == call.body.job])


async def stop_letter_job(call: ApiCall) -> LetterJobsView:
    """Stop a job on dead letters: one that waits does nothing, one that runs leaves the rest."""
    jobs, found = call.served.letter_jobs, (await _job_now(call)).jobs
    if not found or not _allowed(call.grant, Scope.READ, found[0]):
        raise Refused(404, "there is no such job; GET /v1/letters/jobs lists them")
    for place in found[0].places:
        call.require(Scope.ADMIN, place.name)
    await jobs.stop(found[0])
    return await _job_now(call)


_PATH: Final = "/v1/letters/jobs"
LETTER_JOB_ROUTES: Final = (
    Route("GET", _PATH, list_letter_jobs, Scope.READ, answer=LetterJobsView),
    Route(
        "POST",
        _PATH,
        start_letter_job,
        Scope.ADMIN,
        body=LetterJobBody,
        answer=LetterJobView,
        status=202,
        look=_letters_now,
    ),
    Route(
        "POST",
        "/v1/letters/stop",
        stop_letter_job,
        Scope.ADMIN,
        body=StopJobBody,
        answer=LetterJobsView,
        look=_job_now,
    ),
)
