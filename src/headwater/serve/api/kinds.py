"""Kinds whose requests are all derived, over HTTP, and the lists of their objects.

They are dirty lists, that is Icks and channels of them, and timed jobs.
"""

from __future__ import annotations

from typing import Final

from headwater.doors.catalogue import CHANNEL, ICK, TIMED_JOB
from headwater.kernel.declaring import Scope
from headwater.serve.api.calls import ApiCall
from headwater.serve.api.derived import routes_of
from headwater.serve.api.routes import Route
from headwater.serve.fields import ListQuery
from headwater.timed import operating
from headwater.views.record import View
from headwater.views.timed import TimedJobInfoView


class ChannelsView(View, frozen=True, kw_only=True):
    """Names of channels; ``next`` is the name to continue after, when there are more."""

    channels: list[str]
    next: str | None


async def list_channels(call: ApiCall) -> ChannelsView:
    """List the channels that the token may read, by name."""
    names = [name for name in await call.hw.ick_channels() if call.grant.allows(Scope.READ, name)]
    page, following = call.query.of(names)
    return ChannelsView(channels=page, next=following)


class TimedJobsView(View, frozen=True, kw_only=True):
    """Timed jobs by name; ``next`` is the name to continue after, when there are more."""

    jobs: list[TimedJobInfoView]  # type: ignore[valid-type]  # mirror makes it at run time
    next: str | None


async def list_timed_jobs(call: ApiCall) -> TimedJobsView:
    """List the timed jobs that the token may read, by name."""
    names = sorted(await call.hw.store.run(operating.list_jobs()))
    allowed = [name for name in names if call.grant.allows(Scope.READ, name)]
    page, following = call.query.of(allowed)
    found = await call.hw.store.run(operating.infos_of(page))
    return TimedJobsView(jobs=[TimedJobInfoView.of(info) for info in found], next=following)


ICK_ROUTES: Final = routes_of(ICK)
CHANNEL_ROUTES: Final = (
    Route("GET", "/v1/channels", list_channels, Scope.READ, query=ListQuery, answer=ChannelsView),
    *routes_of(CHANNEL),
)
TIMED_JOB_ROUTES: Final = (
    Route(
        "GET",
        "/v1/timed-jobs",
        list_timed_jobs,
        Scope.READ,
        query=ListQuery,
        answer=TimedJobsView,
    ),
    *routes_of(TIMED_JOB),
)
