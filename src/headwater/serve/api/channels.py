"""Channels of dirty lists over HTTP, for many consumers: leased by shard, and fenced."""

from __future__ import annotations

from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta

from headwater.doors.catalogue import CHANNEL
from headwater.doors.replies import reply, reply_type
from headwater.errors import InvalidInput, UnknownIck
from headwater.ick.aio_ick import AsyncIckChannel
from headwater.ick.types import Batch
from headwater.kernel.declaring import Scope
from headwater.kernel.headers import LIST_BYTES
from headwater.serve.api.calls import ApiCall
from headwater.serve.api.derived import routes_of
from headwater.serve.api.fields import AckMs, GivenMembers, ListQuery, Milliseconds, members_of
from headwater.serve.api.icks import ListedMembersView, MembersQuery, ReserveCount, listed
from headwater.serve.api.routes import Route
from headwater.views.icks import BatchView, ChannelShardsView
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


class RenewBody(msgspec.Struct, forbid_unknown_fields=True):
    """A batch as it was reserved, and for how long from now on it is held."""

    batch: BatchView
    consumer: str
    ack_ms: AckMs = 30_000


class BatchBody(RenewBody, forbid_unknown_fields=True):
    """A batch as it was reserved; with ``members``, only these; the others are held for ack_ms."""

    members: GivenMembers = []


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


async def renew_of_channel(call: ApiCall) -> View:
    """Renew what was reserved for ack_ms from now; returns until when, by the store's clock."""
    return _answered(call, "renew", await _channel(call).renew(_batch(call)))


async def commit_of_channel(call: ApiCall) -> View:
    """Commit members of a batch: they are clean and removed."""
    members = members_of(call.body.members)
    return _answered(call, "commit", await _channel(call).commit(_batch(call), *members))


async def release_of_channel(call: ApiCall) -> View:
    """Release members of a batch: others get them, after delay_ms."""
    members, delay_ms = members_of(call.body.members), call.body.delay_ms
    released = await _channel(call).release(_batch(call), *members, delay_ms=delay_ms)
    return _answered(call, "release", released)


def _answered(call: ApiCall, verb: str, value: int) -> View:
    return reply(CHANNEL.operation(verb), call.names, value)


def _change(verb: str, run: Any, body: Any, answer: Any = None) -> Route:
    answer = answer or reply_type(CHANNEL.operation(verb))
    return Route("POST", f"{CHANNEL.path}/{verb}", run, Scope.WRITE, body=body, answer=answer)


CHANNEL_ROUTES: Final = (
    Route("GET", "/v1/channels", list_channels, Scope.READ, query=ListQuery, answer=ChannelsView),
    Route("GET", CHANNEL.path, get_channel, Scope.READ, answer=ChannelShardsView),
    Route(
        "GET",
        f"{CHANNEL.path}/members",
        list_channel_members,
        Scope.READ,
        query=MembersQuery,
        answer=ListedMembersView,
    ),
    _change("reserve", reserve_of_channel, ChannelReserveBody, BatchView),
    _change("renew", renew_of_channel, RenewBody),
    _change("commit", commit_of_channel, BatchBody),
    _change("release", release_of_channel, ReleaseBody),
    *routes_of(CHANNEL, get_channel),
)
