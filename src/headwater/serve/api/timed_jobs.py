"""Timed jobs over HTTP: how they stand, what happened to them, and what an operator does.

A change is made under the name of the token's holder, which the history of the job shows.
"""

from __future__ import annotations

from typing import Annotated, Final

import msgspec
from msgspec import Meta

from headwater.doors.catalogue import TIMED_JOB
from headwater.kernel.declaring import Scope
from headwater.serve.api.calls import ApiCall
from headwater.serve.api.derived import routes_of
from headwater.serve.api.routes import Route
from headwater.serve.fields import ListQuery
from headwater.timed import operating
from headwater.timed.operating import MOST_EVENTS
from headwater.views.record import View
from headwater.views.timed import JobEventView, TimedJobView


class TimedJobsView(View, frozen=True, kw_only=True):
    """Timed jobs by name; ``next`` is the name to continue after, when there are more."""

    jobs: list[TimedJobView]
    next: str | None


class TimedHistoryView(View, frozen=True, kw_only=True):
    """The newest events of a timed job, oldest first."""

    job: str
    events: list[JobEventView]  # type: ignore[valid-type]  # mirror makes it at run time


class HistoryQuery(msgspec.Struct, forbid_unknown_fields=True):
    """How many events, from the newest on."""

    count: Annotated[int, Meta(ge=1, le=MOST_EVENTS)] = 100


async def list_timed_jobs(call: ApiCall) -> TimedJobsView:
    """List the timed jobs that the token may read, by name."""
    names = sorted(await call.hw.store.run(operating.list_jobs()))
    allowed = [name for name in names if call.grant.allows(Scope.READ, name)]
    page, following = call.query.of(allowed)
    found = await call.hw.store.run(operating.infos_of(page))
    return TimedJobsView(jobs=[TimedJobView.of(info) for info in found], next=following)


async def get_timed_job(call: ApiCall) -> TimedJobView:
    """Show the state of a timed job: when it is due, what runs or waits, how its last run ended."""
    return TimedJobView.of(await call.hw.store.run(operating.info(call.name)))


async def get_timed_history(call: ApiCall) -> TimedHistoryView:
    """Show what happened to a timed job: runs, retries, what was missed, who paused it."""
    events = await call.hw.store.run(operating.history(call.name, call.query.count))
    return TimedHistoryView(job=call.name, events=[JobEventView.of(event) for event in events])


TIMED_JOB_ROUTES: Final = (
    Route(
        "GET",
        "/v1/timed-jobs",
        list_timed_jobs,
        Scope.READ,
        query=ListQuery,
        answer=TimedJobsView,
    ),
    Route("GET", TIMED_JOB.path, get_timed_job, Scope.READ, answer=TimedJobView),
    Route(
        "GET",
        f"{TIMED_JOB.path}/history",
        get_timed_history,
        Scope.READ,
        query=HistoryQuery,
        answer=TimedHistoryView,
    ),
    *routes_of(TIMED_JOB, get_timed_job),
)
