"""Channels of dirty lists over HTTP, for many consumers: leased by shard, and fenced."""

from __future__ import annotations

from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta

from headwater.errors import InvalidInput, UnknownIck
from headwater.ick.aio_ick import AsyncIckChannel
from headwater.ick.types import Batch
from headwater.kernel.declaring import Scope
from headwater.kernel.headers import LIST_BYTES
from headwater.serve.api.calls import ApiCall
from headwater.serve.api.icks import (
    AddBody,
    ListedMembersView,
    MemberBody,
    MembersQuery,
    ReserveCount,
    listed,
    member_of,
    scores_of,
)
from headwater.serve.api.routes import Route
from headwater.serve.fields import AckMs, ListQuery, Milliseconds
from headwater.views.icks import (
    BatchView,
    ChannelAddedView,
    ChannelCommittedView,
    ChannelDeletedView,
    ChannelShardsView,
    LayoutView,
    ReleasedView,
)
from headwater.views.record import View


class ChannelsView(View, frozen=True, kw_only=True):
    """Names of channels; ``next`` is the name to continue after, when there are more."""

    channels: list[str]
    next: str | None


class ChannelReserveBody(msgspec.Struct, forbid_unknown_fields=True):
    """How much a consumer takes, under its name, and for how long; ``shards`` for a new channel."""

    count: ReserveCount
    consumer: str
    ack_ms: AckMs = 30_000
    shards: Annotated[int, Meta(ge=1, le=1024)] | None = None


class RenewedView(View, frozen=True, kw_only=True):
    """Until when a batch is held; 0 when there was nothing in it."""

    channel: str
    until_ms: int


class ShardsBody(msgspec.Struct, forbid_unknown_fields=True):
    """How many shards a channel has from now on."""

    shards: Annotated[int, Meta(ge=1, le=1024)]


class RenewBody(msgspec.Struct, forbid_unknown_fields=True):
    """A batch as it was reserved, and for how long from now on it is held."""

    batch: BatchView
    consumer: str
    ack_ms: AckMs = 30_000


class BatchBody(RenewBody, forbid_unknown_fields=True):
    """A batch as it was reserved; with ``members``, only these; the others are held for ack_ms."""

    members: Annotated[list[MemberBody], Meta(max_length=10_000)] = []


class ReleaseBody(BatchBody, forbid_unknown_fields=True):
    """A batch that is given back, and when it is handed out again."""

    delay_ms: Milliseconds = 0


async def list_channels(call: ApiCall) -> ChannelsView:
    """List the channels that the token may read, by name."""
    names = [name for name in await call.hw.ick_channels() if call.grant.allows(Scope.READ, name)]
    page, following = call.query.of(names)
    return ChannelsView(channels=page, next=following)


async def get_channel(call: ApiCall) -> ChannelShardsView:
    """Show the state of a channel, shard by shard."""
    stats = await call.hw.ick_channel(call.name).stats()
    if stats is None:
        raise UnknownIck(call.name)
    return ChannelShardsView.of(stats)


async def list_channel_members(call: ApiCall) -> ListedMembersView:
    """Show members of a channel, where they are and in which shard, in no particular order.

    There are no more once they have 4 MiB.
    """
    if await call.hw.ick_channel(call.name).stats() is None:
        raise UnknownIck(call.name)
    return await listed(call.hw.ick_channel(call.name).scan(), call.query.count)


async def reshard_channel(call: ApiCall) -> msgspec.Struct:
    """Change the number of shards of a channel while it is in use.

    Waits for nobody: consumers and the housekeeper do what cannot be done yet.
    """
    channel = call.hw.ick_channel(call.name)
    if await channel.stats() is None:
        raise UnknownIck(call.name)
    return LayoutView.of(await channel.reshard(call.body.shards), channel=call.name)


async def add_to_channel(call: ApiCall) -> msgspec.Struct:
    """Add members that have become dirty to a channel; a repeat does no harm."""
    added = await call.hw.ick_channel(call.name).add(scores_of(call.body))
    return ChannelAddedView.of(added, channel=call.name)


def _channel(call: ApiCall) -> AsyncIckChannel:
    return call.hw.ick_channel(call.name, consumer=call.body.consumer, ack_ms=call.body.ack_ms)


def _batch(call: ApiCall) -> Batch:
    """Return the batch that a request is about; raises InvalidInput for one of another channel."""
    given: BatchView = call.body.batch
    if given.channel != call.name:
        raise InvalidInput(f"the batch is of channel {given.channel!r}; send it to that one")
    try:
        return given.batch()
    except ValueError as error:
        raise InvalidInput(str(error)) from None


async def reserve_of_channel(call: ApiCall) -> BatchView:
    """Reserve members of a shard that no other consumer holds, for ack_ms.

    No more are shown once they have 4 MiB: the next reserve shows the others when these are
    committed.
    """
    body = call.body
    channel = call.hw.ick_channel(
        call.name, body.shards, consumer=body.consumer, ack_ms=body.ack_ms
    )
    return BatchView.of(await channel.reserve(body.count, max_bytes=LIST_BYTES))


async def renew_of_channel(call: ApiCall) -> RenewedView:
    """Renew what was reserved for ack_ms from now; returns until when, by the store's clock."""
    until_ms = await _channel(call).renew(_batch(call))
    return RenewedView(channel=call.name, until_ms=until_ms)


async def commit_of_channel(call: ApiCall) -> ChannelCommittedView:
    """Commit members of a batch: they are clean and removed."""
    body = call.body
    done = await _channel(call).commit(_batch(call), *map(member_of, body.members))
    return ChannelCommittedView(channel=call.name, committed=done)


async def release_of_channel(call: ApiCall) -> ReleasedView:
    """Release members of a batch: others get them, after delay_ms."""
    body = call.body
    members = map(member_of, body.members)
    done = await _channel(call).release(_batch(call), *members, delay_ms=body.delay_ms)
    return ReleasedView(channel=call.name, released=done)


async def delete_channel(call: ApiCall) -> ChannelDeletedView:
    """Delete a channel with all its members."""
    if not await call.hw.ick_channel(call.name).delete():
        raise UnknownIck(call.name)
    return ChannelDeletedView(channel=call.name)


_CHANNEL: Final = "/v1/channels/{channel}"


def _change(path: str, run: Any, body: Any, answer: Any) -> Route:
    return Route("POST", path, run, Scope.WRITE, body=body, answer=answer)


CHANNEL_ROUTES: Final = (
    Route("GET", "/v1/channels", list_channels, Scope.READ, query=ListQuery, answer=ChannelsView),
    Route("GET", _CHANNEL, get_channel, Scope.READ, answer=ChannelShardsView),
    Route(
        "GET",
        f"{_CHANNEL}/members",
        list_channel_members,
        Scope.READ,
        query=MembersQuery,
        answer=ListedMembersView,
    ),
    Route(
        "PUT",
        f"{_CHANNEL}/layout",
        reshard_channel,
        Scope.ADMIN,
        body=ShardsBody,
        answer=LayoutView,
        look=get_channel,
    ),
    _change(f"{_CHANNEL}/add", add_to_channel, AddBody, ChannelAddedView),
    _change(f"{_CHANNEL}/reserve", reserve_of_channel, ChannelReserveBody, BatchView),
    _change(f"{_CHANNEL}/renew", renew_of_channel, RenewBody, RenewedView),
    _change(f"{_CHANNEL}/commit", commit_of_channel, BatchBody, ChannelCommittedView),
    _change(f"{_CHANNEL}/release", release_of_channel, ReleaseBody, ReleasedView),
    Route(
        "DELETE", _CHANNEL, delete_channel, Scope.ADMIN, answer=ChannelDeletedView, look=get_channel
    ),
)
