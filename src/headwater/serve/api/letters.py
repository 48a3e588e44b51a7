"""Dead letters over HTTP: lists of those of groups and queues, and jobs on many of them.

A list of letters ends once they have 4 MiB, and names the place where the next one begins.
"""

from __future__ import annotations

from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta

from headwater.doors.catalogue import GROUP, QUEUE, TOPIC_GROUP, Kind
from headwater.errors import InvalidInput
from headwater.kernel.declaring import Scope
from headwater.serve.api.calls import ApiCall
from headwater.serve.api.derived import fields_type, given_in, opened
from headwater.serve.api.queues import QueueMessagesView
from headwater.serve.api.routes import Route
from headwater.serve.http.messages import Refused
from headwater.serve.jobs.letters import LetterJobBody, LetterJobView, may_see
from headwater.serve.listing import letters_of
from headwater.views.queues import QueueItemView
from headwater.views.record import View
from headwater.views.streams import DeadLetterView

_AUDITED: Final = 20


class DeadLettersView(View, frozen=True, kw_only=True):
    """The oldest dead letters of a group; ``next`` is where to go on, null without more."""

    stream: str
    group: str
    letters: list[DeadLetterView]
    next: str | None


class TopicDeadLettersView(View, frozen=True, kw_only=True):
    """The oldest dead letters of a group over a topic; ``next`` is where to go on, if anywhere."""

    topic: str
    group: str
    letters: list[DeadLetterView]
    next: str | None


def _list_of(kind: Kind, list_type: type[View], letters: str, view: Any) -> Route:
    operation = kind.operation("dead", asyncio=True)
    start = ("from_", str, msgspec.field(default="", name="from"))

    async def show(call: ApiCall) -> msgspec.Struct:
        _, named = operation.arguments(given_in(call.query, operation))
        await opened(call, kind)
        page = await call.hw.store.run(
            letters_of(kind, list(call.names), place=call.query.from_, **named)
        )
        facts: dict[str, Any] = dict(zip(kind.keys, call.names, strict=True))
        facts[letters] = [view.of(letter) for letter in page.letters]
        return list_type(**facts, next=page.place)

    show.__name__ = operation.id
    show.__doc__ = f"""{operation.summary}

    The list ends early once they have 4 MiB; the next one goes on from its next.
    """
    query = fields_type(operation, start)
    path = f"{kind.path}/dead"
    return Route("GET", path, show, operation.row.scope, query=query, answer=list_type)


# ── Jobs ──────────────────────────────────────────────────────────────────────────────────────────


class StopJobBody(msgspec.Struct, forbid_unknown_fields=True):
    """The job that is stopped."""

    job: Annotated[str, Meta(max_length=64)]


class LetterJobsView(View, frozen=True, kw_only=True):
    """Jobs on dead letters, the newest first."""

    jobs: list[LetterJobView]


class LettersLeftView(View, frozen=True, kw_only=True):
    """How many dead letters are where, as the audit shows it before and after."""

    dead: dict[str, int]


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
        left[place.spelled] = await call.hw.store.run(place.box.count())
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
LETTER_ROUTES: Final = (
    _list_of(GROUP, DeadLettersView, "letters", DeadLetterView),
    _list_of(TOPIC_GROUP, TopicDeadLettersView, "letters", DeadLetterView),
    _list_of(QUEUE, QueueMessagesView, "messages", QueueItemView),
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
