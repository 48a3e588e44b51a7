"""Dirty lists over HTTP: Icks, and channels for many consumers, leased by shard and fenced."""

from __future__ import annotations

from typing import Final

from headwater.doors.catalogue import CHANNEL, ICK
from headwater.kernel.declaring import Scope
from headwater.serve.api.calls import ApiCall
from headwater.serve.api.derived import routes_of
from headwater.serve.api.routes import Route
from headwater.serve.fields import ListQuery
from headwater.views.record import View


class ChannelsView(View, frozen=True, kw_only=True):
    """Names of channels; ``next`` is the name to continue after, when there are more."""

    channels: list[str]
    next: str | None


async def list_channels(call: ApiCall) -> ChannelsView:
    """List the channels that the token may read, by name."""
    names = [name for name in await call.hw.ick_channels() if call.grant.allows(Scope.READ, name)]
    page, following = call.query.of(names)
    return ChannelsView(channels=page, next=following)


ICK_ROUTES: Final = routes_of(ICK)
CHANNEL_ROUTES: Final = (
    Route("GET", "/v1/channels", list_channels, Scope.READ, query=ListQuery, answer=ChannelsView),
    *routes_of(CHANNEL),
)
