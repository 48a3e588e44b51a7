"""Dirty lists over HTTP: Icks, and channels for many consumers, leased by shard and fenced."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta

from headwater.doors.catalogue import CHANNEL, ICK
from headwater.doors.replies import reply, reply_type
from headwater.errors import InvalidInput, UnknownIck
from headwater.ick.aio_ick import AsyncIckChannel
from headwater.ick.types import Batch, Listed
from headwater.kernel.declaring import Scope
from headwater.kernel.headers import LIST_BYTES
from headwater.serve.api.calls import ApiCall
from headwater.serve.api.derived import routes_of
from headwater.serve.api.routes import Route
from headwater.serve.fields import AckMs, GivenMembers, ListQuery, Milliseconds, members_of
from headwater.views.icks import BatchView, ChannelShardsView, IckView, ListedView, ScoredView
from headwater.views.record import View

# ── Icks ──────────────────────────────────────────────────────────────────────────────────────────


ReserveCount = Annotated[int, Meta(ge=0, le=10_000)]


class ReserveBody(msgspec.Struct, forbid_unknown_fields=True):
    """How many members are handed out; with ``backwash``, lower scores that came since go first."""

    count: ReserveCount
    backwash: bool = False


class ExchangeBody(msgspec.Struct, forbid_unknown_fields=True):
    """Members that are clean, and how many are handed out next."""

    count: ReserveCount
    members: GivenMembers = []
    backwash: bool = False


class ReservedMembersView(View, frozen=True, kw_only=True):
    """Members that were handed out, by score."""

    key: str
    members: list[ScoredView]


class MembersQuery(msgspec.Struct, forbid_unknown_fields=True):
    """How many members."""

    count: Annotated[int, Meta(ge=1, le=10_000)] = 100


class ListedMembersView(View, frozen=True, kw_only=True):
    """Some members of a dirty list and where they are, in no order."""

    members: list[ListedView]


async def get_ick(call: ApiCall) -> msgspec.Struct:
    """Show the state of an Ick, under the names of redis-ick."""
    stats = await call.hw.ick(call.name).stats()
    if stats is None:
        raise UnknownIck(call.name)
    return IckView.of(stats)


async def list_ick_members(call: ApiCall) -> ListedMembersView:
    """Show members of an Ick, their scores and the set they are in, in no particular order.

    There are no more once they have 4 MiB.
    """
    if await call.hw.ick(call.name).stats() is None:
        raise UnknownIck(call.name)
    return await listed(call.hw.ick(call.name).scan(), call.query.count)


async def listed(found: AsyncIterator[Listed], count: int) -> ListedMembersView:
    """Return the view of the first members of a scan, up to 4 MiB of them."""
    async with aclosing(_first(found, count)) as some:
        return ListedMembersView(members=[ListedView.of(one) async for one in some])


async def _first(found: AsyncIterator[Listed], count: int) -> AsyncGenerator[Listed]:
    room = LIST_BYTES
    async for one in found:
        yield one
        count, room = count - 1, room - len(one.member)
        if not count or room <= 0:
            return


async def reserve_of_ick(call: ApiCall) -> ReservedMembersView:
    """Reserve members by score; they stay reserved until they are committed.

    No more are shown once they have 4 MiB: the next reserve shows the others when these are
    committed.
    """
    ick, body = call.hw.ick(call.name), call.body
    found = await ick.reserve(body.count, body.backwash, max_bytes=LIST_BYTES)
    return ReservedMembersView(key=call.name, members=[ScoredView.of(*one) for one in found])


async def exchange_of_ick(call: ApiCall) -> ReservedMembersView:
    """Commit members and reserve others, in one call; no more are shown once they have 4 MiB."""
    body = call.body
    members = members_of(body.members)
    ick = call.hw.ick(call.name)
    found = await ick.exchange(body.count, *members, backwash=body.backwash, max_bytes=LIST_BYTES)
    return ReservedMembersView(key=call.name, members=[ScoredView.of(*one) for one in found])


_ICK: Final = ICK.path
ICK_ROUTES: Final = (
    Route("GET", _ICK, get_ick, Scope.READ, answer=IckView),
    Route(
        "GET",
        f"{_ICK}/members",
        list_ick_members,
        Scope.READ,
        query=MembersQuery,
        answer=ListedMembersView,
    ),
    Route(
        "POST",
        f"{_ICK}/reserve",
        reserve_of_ick,
        Scope.WRITE,
        body=ReserveBody,
        answer=ReservedMembersView,
    ),
    Route(
        "POST",
        f"{_ICK}/exchange",
        exchange_of_ick,
        Scope.WRITE,
        body=ExchangeBody,
        answer=ReservedMembersView,
    ),
    *routes_of(ICK, get_ick),
)


# ── Channels ──────────────────────────────────────────────────────────────────────────────────────


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
