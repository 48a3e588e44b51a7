"""Dirty lists over HTTP: Icks, and channels of them for many consumers."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta

from headwater.errors import InvalidInput, UnknownIck
from headwater.ick.types import Batch, Listed
from headwater.serve.api.calls import ApiCall
from headwater.serve.api.fields import AckMs, ListQuery, Milliseconds
from headwater.serve.api.routes import Route
from headwater.serve.tokens import Scope
from headwater.text_or_base64 import Encoding, from_text
from headwater.views.icks import (
    BatchView,
    ChannelAddedView,
    ChannelCommittedView,
    ChannelDeletedView,
    ChannelShardsView,
    IckAddedView,
    IckCommittedView,
    IckDeletedView,
    IckView,
    LayoutView,
    ListedView,
    ReleasedView,
    ScoredView,
)
from headwater.views.record import View

_Count = Annotated[int, Meta(ge=0, le=10_000)]


class ScoredBody(msgspec.Struct, forbid_unknown_fields=True):
    """A member, as text or base64, and its score."""

    member: str
    score: float
    encoding: Encoding | None = None


class MemberBody(msgspec.Struct, forbid_unknown_fields=True):
    """A member, as text or base64."""

    member: str
    encoding: Encoding | None = None


class AddBody(msgspec.Struct, forbid_unknown_fields=True):
    """What has become dirty; the lower of two scores of a member counts."""

    members: Annotated[list[ScoredBody], Meta(max_length=10_000)]


class ReserveBody(msgspec.Struct, forbid_unknown_fields=True):
    """How many members are handed out; with ``backwash``, lower scores that came since go first."""

    count: _Count
    backwash: bool = False


class CommitBody(msgspec.Struct, forbid_unknown_fields=True):
    """Members that are clean."""

    members: Annotated[list[MemberBody], Meta(max_length=10_000)]


class ExchangeBody(msgspec.Struct, forbid_unknown_fields=True):
    """Members that are clean, and how many are handed out next."""

    count: _Count
    members: Annotated[list[MemberBody], Meta(max_length=10_000)] = []
    backwash: bool = False


class ReservedMembersView(View, frozen=True, kw_only=True):
    """Members that were handed out, by score."""

    key: str
    members: list[ScoredView]


class ChannelsView(View, frozen=True, kw_only=True):
    """Names of channels; ``next`` is the name to go on after, when there are more."""

    channels: list[str]
    next: str | None


class ChannelReserveBody(msgspec.Struct, forbid_unknown_fields=True):
    """How much a consumer takes, under its name, and for how long; ``shards`` for a new channel."""

    count: _Count
    consumer: str
    ack_ms: AckMs = 30_000
    shards: Annotated[int, Meta(ge=1, le=1024)] | None = None


class ShardsBody(msgspec.Struct, forbid_unknown_fields=True):
    """How many shards a channel has from now on."""

    shards: Annotated[int, Meta(ge=1, le=1024)]


class MembersQuery(msgspec.Struct, forbid_unknown_fields=True):
    """How many members."""

    count: Annotated[int, Meta(ge=1, le=10_000)] = 100


class ListedMembersView(View, frozen=True, kw_only=True):
    """Some members of a dirty list and where they are, in no order."""

    members: list[ListedView]


class BatchBody(msgspec.Struct, forbid_unknown_fields=True):
    """A batch as it was reserved; with ``members``, only these of it."""

    batch: BatchView
    consumer: str
    members: Annotated[list[MemberBody], Meta(max_length=10_000)] = []


class ReleaseBody(BatchBody, forbid_unknown_fields=True):
    """A batch that is given back, and when it is handed out again."""

    delay_ms: Milliseconds = 0


def _member(given: MemberBody | ScoredBody) -> str | bytes:
    try:
        return from_text(given.member, given.encoding)
    except ValueError as error:
        raise InvalidInput(str(error)) from None


def _scores(body: AddBody) -> dict[str | bytes, float]:
    """Return the members with their scores; the lower one counts where a member is given twice."""
    found: dict[str | bytes, float] = {}
    for one in body.members:
        member = _member(one)
        found[member] = min(one.score, found.get(member, one.score))
    return found


async def get_ick(call: ApiCall) -> msgspec.Struct:
    """Show how an Ick stands, by the names of redis-ick."""
    stats = await call.hw.ick(call.name).stats()
    if stats is None:
        raise UnknownIck(call.name)
    return IckView.of(stats)


async def list_ick_members(call: ApiCall) -> ListedMembersView:
    """Show members of an Ick, their scores and the set they are in, in no order."""
    if await call.hw.ick(call.name).stats() is None:
        raise UnknownIck(call.name)
    return await _listed(call.hw.ick(call.name).scan(), call.query.count)


async def _listed(found: AsyncIterator[Listed], count: int) -> ListedMembersView:
    async with aclosing(_first(found, count)) as some:
        return ListedMembersView(members=[ListedView.of(one) async for one in some])


async def _first(found: AsyncIterator[Listed], count: int) -> AsyncGenerator[Listed]:
    async for one in found:
        yield one
        count -= 1
        if not count:
            return


async def add_to_ick(call: ApiCall) -> msgspec.Struct:
    """Add members that have become dirty; a repeat does no harm."""
    added = await call.hw.ick(call.name).add(_scores(call.body))
    return IckAddedView.of(added, key=call.name)


async def reserve_of_ick(call: ApiCall) -> ReservedMembersView:
    """Hand out members by score; they stay reserved until they are committed."""
    found = await call.hw.ick(call.name).reserve(call.body.count, call.body.backwash)
    return ReservedMembersView(key=call.name, members=[ScoredView.of(*one) for one in found])


async def commit_of_ick(call: ApiCall) -> IckCommittedView:
    """Take members out that are clean."""
    done = await call.hw.ick(call.name).commit(*map(_member, call.body.members))
    return IckCommittedView(key=call.name, committed=done)


async def exchange_of_ick(call: ApiCall) -> ReservedMembersView:
    """Commit members and reserve others, in one call."""
    body = call.body
    members = map(_member, body.members)
    found = await call.hw.ick(call.name).exchange(body.count, *members, backwash=body.backwash)
    return ReservedMembersView(key=call.name, members=[ScoredView.of(*one) for one in found])


async def delete_ick(call: ApiCall) -> IckDeletedView:
    """Delete an Ick with all its members."""
    if not await call.hw.ick(call.name).delete():
        raise UnknownIck(call.name)
    return IckDeletedView(key=call.name)


async def list_channels(call: ApiCall) -> ChannelsView:
    """List the channels that the token may read, by name."""
    names = [name for name in await call.hw.ick_channels() if call.grant.allows(Scope.READ, name)]
    page, following = call.query.of(names)
    return ChannelsView(channels=page, next=following)


async def get_channel(call: ApiCall) -> ChannelShardsView:
    """Show how a channel stands, shard by shard."""
    stats = await call.hw.ick_channel(call.name).stats()
    if stats is None:
        raise UnknownIck(call.name)
    return ChannelShardsView.of(stats)


async def list_channel_members(call: ApiCall) -> ListedMembersView:
    """Show members of a channel, where they are and in which shard, in no order."""
    if await call.hw.ick_channel(call.name).stats() is None:
        raise UnknownIck(call.name)
    return await _listed(call.hw.ick_channel(call.name).scan(), call.query.count)


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
    added = await call.hw.ick_channel(call.name).add(_scores(call.body))
    return ChannelAddedView.of(added, channel=call.name)


def _channel(call: ApiCall) -> Any:
    return call.hw.ick_channel(call.name, consumer=call.body.consumer)


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
    """Hand out members of a shard that no other consumer holds, for ack_ms."""
    body = call.body
    channel = call.hw.ick_channel(
        call.name, body.shards, consumer=body.consumer, ack_ms=body.ack_ms
    )
    return BatchView.of(await channel.reserve(body.count))


async def commit_of_channel(call: ApiCall) -> ChannelCommittedView:
    """Take members of a batch out that are clean."""
    body = call.body
    done = await _channel(call).commit(_batch(call), *map(_member, body.members))
    return ChannelCommittedView(channel=call.name, committed=done)


async def release_of_channel(call: ApiCall) -> ReleasedView:
    """Give members of a batch back: others get them, after delay_ms."""
    body = call.body
    members = map(_member, body.members)
    done = await _channel(call).release(_batch(call), *members, delay_ms=body.delay_ms)
    return ReleasedView(channel=call.name, released=done)


async def delete_channel(call: ApiCall) -> ChannelDeletedView:
    """Delete a channel with all its members."""
    if not await call.hw.ick_channel(call.name).delete():
        raise UnknownIck(call.name)
    return ChannelDeletedView(channel=call.name)


_ICK: Final = "/v1/icks/{ick}"
_CHANNEL: Final = "/v1/channels/{channel}"


def _change(path: str, run: Any, body: Any, answer: Any) -> Route:
    return Route("POST", path, run, Scope.WRITE, body=body, answer=answer)


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
    _change(f"{_ICK}/add", add_to_ick, AddBody, IckAddedView),
    _change(f"{_ICK}/reserve", reserve_of_ick, ReserveBody, ReservedMembersView),
    _change(f"{_ICK}/commit", commit_of_ick, CommitBody, IckCommittedView),
    _change(f"{_ICK}/exchange", exchange_of_ick, ExchangeBody, ReservedMembersView),
    Route("DELETE", _ICK, delete_ick, Scope.ADMIN, answer=IckDeletedView, look=get_ick),
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
    _change(f"{_CHANNEL}/commit", commit_of_channel, BatchBody, ChannelCommittedView),
    _change(f"{_CHANNEL}/release", release_of_channel, ReleaseBody, ReleasedView),
    Route(
        "DELETE", _CHANNEL, delete_channel, Scope.ADMIN, answer=ChannelDeletedView, look=get_channel
    ),
)
