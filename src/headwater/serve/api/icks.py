"""Dirty lists over HTTP."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from headwater.doors.catalogue import ICK
from headwater.errors import UnknownIck
from headwater.ick.types import Listed
from headwater.kernel.declaring import Scope
from headwater.kernel.headers import LIST_BYTES
from headwater.serve.api.calls import ApiCall
from headwater.serve.api.derived import routes_of
from headwater.serve.api.fields import GivenMembers, members_of
from headwater.serve.api.routes import Route
from headwater.views.icks import IckView, ListedView, ScoredView
from headwater.views.record import View

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
