"""Dead letters redriven or discarded by a job of the server: many, at a rate, from a moment on.

Until a job begins it can be taken back whole; while it runs it can be stopped, and leaves the rest.
It outlives its process (see jobs/engine.py): nothing is moved twice. Letters of the last step of a
process that was killed may be missing in the count of what was done.
"""

from __future__ import annotations

import secrets
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Annotated, Final, Literal

import msgspec
from msgspec import Meta

from headwater.errors import InvalidInput
from headwater.kernel.declaring import Scope
from headwater.kernel.failures import ALL_LETTERS
from headwater.serve.api.calls import ApiCall
from headwater.serve.api.letters import MatchingBody, letter_filter
from headwater.serve.api.routes import Route
from headwater.serve.http.messages import Refused
from headwater.serve.jobs.engine import HeldJob, JobKind
from headwater.serve.jobs.letter_work import LetterNote, LetterPlace, LetterWork
from headwater.serve.tokens import Grant
from headwater.views.record import View

if TYPE_CHECKING:
    pass

_AUDITED: Final = 20
_JobState = Literal["waiting", "running", "stopping", "done", "stopped", "failed", "lost"]


class LetterJobBody(msgspec.Struct, forbid_unknown_fields=True):
    """What is done to which letters: from when on, and how many a second at most.

    Letters fit ``matching``, unless their place names them. Letters that are added after the job
    has begun are left alone. ``everywhere`` stands for all groups and queues that the token may
    administer; its places are then empty.
    """

    action: Literal["redrive", "discard"]
    places: Annotated[list[LetterPlace], Meta(max_length=1000)] = []
    everywhere: bool = False
    matching: MatchingBody = msgspec.field(default_factory=MatchingBody)
    rate_per_s: Annotated[int, Meta(ge=1, le=1_000_000)] | None = None
    delay_ms: Annotated[int, Meta(ge=0, le=3_600_000)] = 0


class StopJobBody(msgspec.Struct, forbid_unknown_fields=True):
    """The job that is stopped."""

    job: Annotated[str, Meta(max_length=64)]


class LetterJobView(View, frozen=True, kw_only=True):
    """A job: how far it is, and how it ended.

    With ``everywhere``, it concerns all that its ``who`` may administer, and ``total`` is 0.
    ``places`` are shown without the letters that were named there; ``total`` is how many those
    were, or how many dead letters were in its places when it was asked for. ``gone`` are letters
    that had to stay: the stream no longer holds their messages. ``begins_ms`` is when it begins.
    A job that is ``lost`` has no process at the moment: the next one continues with it.
    """

    job: str
    state: _JobState
    action: Literal["redrive", "discard"]
    who: str
    places: list[LetterPlace]
    everywhere: bool = False
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
        return self.state in ("done", "stopped", "failed")


class LetterJobsView(View, frozen=True, kw_only=True):
    """Jobs on dead letters, the newest first."""

    jobs: list[LetterJobView]


class LettersLeftView(View, frozen=True, kw_only=True):
    """How many dead letters are where, as the audit shows it before and after."""

    dead: dict[str, int]


class _Asked(msgspec.Struct, frozen=True):
    """What a process needs to continue with a job."""

    body: LetterJobBody
    begins_ms: int
    allowed: tuple[str, ...] = ()


class LetterJobs(JobKind[LetterNote, LetterJobView]):
    """Moves dead letters, step by step; each step is noted."""

    name = "letters"
    note = LetterNote
    view = LetterJobView

    async def run(self, job: HeldJob) -> bool:
        """Wait until it begins, then move letters; returns whether all is done."""
        asked = msgspec.json.decode(job.asked, type=_Asked)
        body = asked.body
        while not job.ending and (left_ms := asked.begins_ms - job.now_ms) > 0:
            await job.wait(left_ms / 1000)
        if job.ending:
            return False
        job.note = msgspec.structs.replace(job.note, state="running")
        matching = letter_filter(body.matching)
        everywhere = None
        if body.everywhere:
            # What comes into being after it has begun is left alone, wherever it is.
            before_ms = min(body.matching.before_ms or asked.begins_ms, asked.begins_ms)
            matching = replace(matching or ALL_LETTERS, before_ms=before_ms)
            grant = Grant("job", {Scope.ADMIN: asked.allowed})
            everywhere = partial(grant.allows, Scope.ADMIN)
        work = LetterWork(
            self.hw, job, body.action, body.places, matching, body.rate_per_s, everywhere
        )
        while not job.ending and not work.is_done(job.note):
            job.note, rest_s = await work.step(job.note)
            await job.save()
            await job.wait(rest_s)
        return work.is_done(job.note)

    async def known(self) -> list[LetterJobView]:
        """Return what is known of jobs: those under way, then the newest first."""
        return sorted(await self.jobs(), key=lambda job: (job.over, -job.begins_ms))

    async def start(self, grant: Grant, body: LetterJobBody) -> LetterJobView:
        """Begin a job; raises Refused, 429, when this process has too many, and UnknownGroup."""
        total = sum([await place.count(self.hw) for place in body.places])
        seconds, microseconds = (await self.hw.store.command("TIME"))[0]
        now_ms = int(seconds) * 1000 + int(microseconds) // 1000
        note = LetterNote(state="waiting" if body.delay_ms else "running")
        view = LetterJobView(
            job=secrets.token_hex(6),
            state=note.state,
            action=body.action,
            who=grant.holder,
            everywhere=body.everywhere,
            places=[place.without_letters() for place in body.places],
            matching=body.matching,
            rate_per_s=body.rate_per_s,
            begins_ms=now_ms + body.delay_ms,
            total=total,
        )
        asked = _Asked(body, view.begins_ms, grant.patterns(Scope.ADMIN))
        await self.begin(view.job, view, asked, note)
        return view


def may_see(grant: Grant, scope: Scope, job: LetterJobView) -> bool:
    """Return whether a token has a scope on all that a job concerns."""
    if job.everywhere and job.who != grant.holder:
        return grant.everywhere(scope)
    return all(grant.allows(scope, place.name) for place in job.places)


async def list_letter_jobs(call: ApiCall) -> LetterJobsView:
    """Show jobs on dead letters that concern what the token may read, the newest first."""
    found = await call.served.jobs.letters.known()
    return LetterJobsView(jobs=[job for job in found if may_see(call.grant, Scope.READ, job)])


async def start_letter_job(call: ApiCall) -> LetterJobView:
    """Redrive or discard dead letters of several groups and queues, at a rate, from a moment on.

    It runs beside all requests. Until it begins, after delay_ms, stopping it takes all of it back;
    what it has done by then cannot be taken back. When its server ends, another process of the
    same store continues with it, or the next one that starts.
    """
    if bool(call.body.places) == call.body.everywhere:
        raise InvalidInput("give places, or everywhere: true")
    for place in call.body.places:
        place.check()
        call.require(Scope.ADMIN, place.name)
    return await call.served.jobs.letters.start(call.grant, call.body)


async def _letters_now(call: ApiCall) -> LettersLeftView:
    """Show how many dead letters are in the places of a job that is begun."""
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
    known = await call.served.jobs.letters.known()
    return LetterJobsView(jobs=[job for job in known if job.job == call.body.job])


async def stop_letter_job(call: ApiCall) -> LetterJobsView:
    """Stop a job on dead letters: one that waits does nothing, one that runs leaves the rest."""
    found = (await _job_now(call)).jobs
    if not found or not may_see(call.grant, Scope.READ, found[0]):
        raise Refused(404, "there is no such job; GET /v1/letters/jobs lists them")
    for place in found[0].places:
        call.require(Scope.ADMIN, place.name)
    if not may_see(call.grant, Scope.ADMIN, found[0]):
        raise Refused(403, "this job concerns the whole store; send a token for all names (*)")
    await call.served.jobs.letters.stop(found[0].job)
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
