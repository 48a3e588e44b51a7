"""Dead letters over HTTP: of groups, of groups over topics, of queues, and jobs on many of them.

A list of letters ends once they have 4 MiB, and names the place where the next one begins.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, Final, NamedTuple

import msgspec
from msgspec import Meta

from headwater.doors.catalogue import GROUP, QUEUE, TOPIC_GROUP, Kind
from headwater.errors import InvalidInput
from headwater.kernel.declaring import Scope
from headwater.kernel.failures import LetterFilter
from headwater.log.keys import MAX_READ
from headwater.serve.api.calls import ApiCall
from headwater.serve.api.derived import (
    OffsetsByPartition,
    meant,
    meant_by_partition,
    opened,
)
from headwater.serve.api.groups import get_group, get_topic_group
from headwater.serve.api.queues import QueueMessagesView, get_queue
from headwater.serve.api.routes import Look, Route
from headwater.serve.fields import Count, GivenOffsets
from headwater.serve.http.messages import Refused
from headwater.serve.jobs.letters import (
    LetterJobBody,
    LetterJobView,
    MatchingBody,
    letter_filter,
    may_see,
)
from headwater.serve.listing import letters_of
from headwater.views.queues import DiscardedView, QueueMessageView, QueueRedrivenView
from headwater.views.record import View
from headwater.views.streams import (
    DeadLetterView,
    LettersDiscardedView,
    RedrivenView,
    TopicLettersDiscardedView,
    TopicRedrivenView,
)

_AUDITED: Final = 20
_LettersCount = Annotated[int, Meta(ge=1, le=MAX_READ)]
_Ids = Annotated[list[str], Meta(max_length=10_000, description="Ids of messages, or places.")]


class LettersQuery(MatchingBody, forbid_unknown_fields=True):
    """How many dead letters, and which: those that fit everything that is given.

    ``from`` is where a list before ended, as its ``next``.
    """

    count: Count = 100
    from_: str = msgspec.field(default="", name="from")


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


class TopicRedrivesView(View, frozen=True, kw_only=True):
    """How many dead letters of a group are redelivered, by partition."""

    partitions: list[TopicRedrivenView]  # type: ignore[valid-type]  # mirror makes it


class GroupLettersBody(msgspec.Struct, forbid_unknown_fields=True):
    """Which dead letters, and how many at most: the oldest, those of messages, or those that fit.

    ``offsets`` are those that the messages have in the stream.
    """

    count: _LettersCount = 1000
    offsets: GivenOffsets | None = None
    matching: MatchingBody | None = None


class TopicLettersBody(msgspec.Struct, forbid_unknown_fields=True):
    """Which dead letters, and how many at most: the oldest, those of messages, or those that fit.

    ``offsets`` are those that the messages have in their partitions.
    """

    count: _LettersCount = 1000
    offsets: OffsetsByPartition | None = None
    matching: MatchingBody | None = None


class QueueLettersBody(msgspec.Struct, forbid_unknown_fields=True):
    """Which dead letters, and how many at most: the oldest, some by id, or those that match."""

    count: _LettersCount = 1000
    ids: _Ids | None = None
    matching: MatchingBody | None = None


class _Door(NamedTuple):
    """How dead letters of a kind are spelled in HTTP; ``names`` is the field that names some."""

    kind: Kind
    body: type[msgspec.Struct]
    names: str
    meant: Callable[[Any], Any]
    list: type[View]
    letters: str
    view: Callable[[Any], View]
    redriven: type[View]
    discarded: type[View]
    look: Look


_DOORS: Final = (
    _Door(
        *(GROUP, GroupLettersBody, "offsets", meant),
        *(DeadLettersView, "letters", DeadLetterView.of),
        *(RedrivenView, LettersDiscardedView, get_group),
    ),
    _Door(
        *(TOPIC_GROUP, TopicLettersBody, "offsets", meant_by_partition),
        *(TopicDeadLettersView, "letters", DeadLetterView.of),
        *(TopicRedrivesView, TopicLettersDiscardedView, get_topic_group),
    ),
    _Door(
        *(QUEUE, QueueLettersBody, "ids", lambda ids: ids),
        *(QueueMessagesView, "messages", QueueMessageView.of),
        *(QueueRedrivenView, DiscardedView, get_queue),
    ),
)


def _list_of(door: _Door) -> Route:
    async def show(call: ApiCall) -> msgspec.Struct:
        query = call.query
        matching = letter_filter(query)
        await opened(call, door.kind)
        page = await call.hw.store.run(
            letters_of(
                *(door.kind, list(call.names), query.count, query.from_),
                None if matching == LetterFilter() else matching,
            )
        )
        facts: dict[str, Any] = dict(zip(door.kind.keys, call.names, strict=True))
        facts[door.letters] = [door.view(letter) for letter in page.letters]
        return door.list(**facts, next=page.place)

    show.__name__ = f"dead_{door.kind.name}"
    show.__doc__ = f"""Show the oldest dead letters of a {_noun(door)} that match; they stay.

    The list ends early once they have 4 MiB; the next one goes on from its next.
    """
    path = f"{door.kind.path}/dead"
    return Route("GET", path, show, Scope.READ, query=LettersQuery, answer=door.list)


def _noun(door: _Door) -> str:
    return door.kind.name.replace("topic_group", "group of a topic")


def _named(door: _Door, call: ApiCall) -> dict[str, Any]:
    """Return the arguments of ``redrive`` and ``discard`` that a request gives."""
    named, matching = getattr(call.body, door.names), call.body.matching
    return {
        "letters": None if named is None else door.meant(named),
        "count": call.body.count,
        "matching": None if matching is None else letter_filter(matching),
    }


def _redrive_of(door: _Door) -> Route:
    async def redrive(call: ApiCall) -> msgspec.Struct:
        done = await (await opened(call, door.kind)).redrive(**_named(door, call))
        facts: dict[str, Any] = dict(zip(door.kind.keys, call.names, strict=True))
        if door.kind is QUEUE:
            return QueueRedrivenView(**facts, redriven=done)
        if door.kind is GROUP:
            return RedrivenView.of(done, **facts)
        parts = (TopicRedrivenView.of(part, **facts, partition=n) for n, part in done.items())
        return TopicRedrivesView(partitions=list(parts))

    redrive.__name__ = f"redrive_{door.kind.name}"
    redrive.__doc__ = f"""Redrive dead letters of a {_noun(door)}: they are redelivered at once.

    Their attempts are counted from 1 again.
    """
    return _change(door, "redrive", redrive, door.redriven)


def _discard_of(door: _Door) -> Route:
    async def discard(call: ApiCall) -> msgspec.Struct:
        discarded = await (await opened(call, door.kind)).discard(**_named(door, call))
        facts: dict[str, Any] = dict(zip(door.kind.keys, call.names, strict=True))
        return door.discarded(**facts, discarded=discarded)

    discard.__name__ = f"discard_{door.kind.name}"
    discard.__doc__ = f"""Discard dead letters of a {_noun(door)}; they are not redelivered.

    Those of a group stay in their stream until its retention removes them.
    """
    return _change(door, "discard", discard, door.discarded)


def _change(door: _Door, verb: str, run: Any, answer: type[View]) -> Route:
    path = f"{door.kind.path}/{verb}"
    return Route("POST", path, run, Scope.ADMIN, body=door.body, answer=answer, look=door.look)


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
    *(route for door in _DOORS for route in (_list_of(door), _redrive_of(door), _discard_of(door))),
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
