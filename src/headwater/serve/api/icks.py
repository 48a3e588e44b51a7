"""Dirty lists over HTTP."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta

from headwater.errors import InvalidInput, UnknownIck
from headwater.ick.types import Listed
from headwater.kernel.headers import LIST_BYTES
from headwater.kernel.inputs import Encoding, from_text
from headwater.serve.api.calls import ApiCall
from headwater.serve.api.routes import Route
from headwater.serve.tokens import Scope
from headwater.views.icks import (
    IckAddedView,
    IckCommittedView,
    IckDeletedView,
    IckView,
    ListedView,
    ScoredView,
)
from headwater.views.record import View

ReserveCount = Annotated[int, Meta(ge=0, le=10_000)]


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

    count: ReserveCount
    backwash: bool = False


class CommitBody(msgspec.Struct, forbid_unknown_fields=True):
    """Members that are clean."""

    members: Annotated[list[MemberBody], Meta(max_length=10_000)]


class ExchangeBody(msgspec.Struct, forbid_unknown_fields=True):
    """Members that are clean, and how many are handed out next."""

    count: ReserveCount
    members: Annotated[list[MemberBody], Meta(max_length=10_000)] = []
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


def member_of(given: MemberBody | ScoredBody) -> str | bytes:
    """Return a member as it was given; raises InvalidInput for what is not base64."""
    try:
        return from_text(given.member, given.encoding)
    except ValueError as error:
        raise InvalidInput(str(error)) from None


def scores_of(body: AddBody) -> dict[str | bytes, float]:
    """Return the members with their scores; the lower one counts where a member is given twice."""
    found: dict[str | bytes, float] = {}
    for one in body.members:
        member = member_of(one)
        found[member] = min(one.score, found.get(member, one.score))
    return found


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


async def add_to_ick(call: ApiCall) -> msgspec.Struct:
    """Add members that have become dirty; a repeat does no harm."""
    added = await call.hw.ick(call.name).add(scores_of(call.body))
    return IckAddedView.of(added, key=call.name)


async def reserve_of_ick(call: ApiCall) -> ReservedMembersView:
    """Reserve members by score; they stay reserved until they are committed.

    No more are shown once they have 4 MiB: the next reserve shows the others when these are
    committed.
    """
    ick, body = call.hw.ick(call.name), call.body
    found = await ick.reserve(body.count, body.backwash, max_bytes=LIST_BYTES)
    return ReservedMembersView(key=call.name, members=[ScoredView.of(*one) for one in found])


async def commit_of_ick(call: ApiCall) -> IckCommittedView:
    """Commit members: they are clean and removed."""
    done = await call.hw.ick(call.name).commit(*map(member_of, call.body.members))
    return IckCommittedView(key=call.name, committed=done)


async def exchange_of_ick(call: ApiCall) -> ReservedMembersView:
    """Commit members and reserve others, in one call; no more are shown once they have 4 MiB."""
    body = call.body
    members = map(member_of, body.members)
    ick = call.hw.ick(call.name)
    found = await ick.exchange(body.count, *members, backwash=body.backwash, max_bytes=LIST_BYTES)
    return ReservedMembersView(key=call.name, members=[ScoredView.of(*one) for one in found])


async def delete_ick(call: ApiCall) -> IckDeletedView:
    """Delete an Ick with all its members."""
    if not await call.hw.ick(call.name).delete():
        raise UnknownIck(call.name)
    return IckDeletedView(key=call.name)


_ICK: Final = "/v1/icks/{ick}"


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
)
