"""Dead letters of groups over HTTP: look at them, have them redelivered, forget them."""

from __future__ import annotations

from typing import Final

import msgspec

from headwater.kernel.declaring import Scope
from headwater.serve.api.calls import ApiCall
from headwater.serve.api.derived import meant
from headwater.serve.api.groups import get_group, group_of
from headwater.serve.api.letters import LettersCount, LettersQuery, MatchingBody, letter_filter
from headwater.serve.api.routes import Route
from headwater.serve.fields import GivenOffsets
from headwater.serve.listing import letters_of_group
from headwater.views.record import View
from headwater.views.streams import DeadLetterView, RedrivenView


class DeadLettersView(View, frozen=True, kw_only=True):
    """The oldest dead letters of a group; ``next`` is where to go on, null without more."""

    stream: str
    group: str
    letters: list[DeadLetterView]
    next: str | None


class GroupDiscardedView(View, frozen=True, kw_only=True):
    """How many dead letters of a group were forgotten."""

    stream: str
    group: str
    discarded: int


class GroupLettersBody(msgspec.Struct, forbid_unknown_fields=True):
    """Which dead letters, and how many at most: the oldest, those of messages, or those that fit.

    ``offsets`` are those that the messages have in the stream.
    """

    count: LettersCount = 1000
    offsets: GivenOffsets | None = None
    matching: MatchingBody | None = None


async def get_dead_letters(call: ApiCall) -> DeadLettersView:
    """Show the oldest dead letters of a group that match; they are not removed.

    The list ends early once they have 4 MiB; the next one goes on from its next.
    """
    stream, group = call.names
    query = call.query
    found = await letters_of_group(
        call.hw, stream, group, query.count, query.from_, letter_filter(query)
    )
    letters = [DeadLetterView.of(letter) for letter in found.items]
    return DeadLettersView(stream=stream, group=group, letters=letters, next=found.next)


async def redrive_group(call: ApiCall) -> msgspec.Struct:
    """Redrive dead letters: they are redelivered at once, as if they had never been tried."""
    stream, group = call.names
    body = call.body
    done = await group_of(call).redrive(
        body.count,
        letters=None if body.offsets is None else meant(body.offsets),
        matching=letter_filter(body.matching),
    )
    return RedrivenView.of(done, stream=stream, group=group)


async def discard_group_letters(call: ApiCall) -> GroupDiscardedView:
    """Discard dead letters of a group; their stream keeps the values."""
    stream, group = call.names
    body = call.body
    discarded = await group_of(call).discard(
        None if body.offsets is None else meant(body.offsets),
        count=body.count,
        matching=letter_filter(body.matching),
    )
    return GroupDiscardedView(stream=stream, group=group, discarded=discarded)


_ONE: Final = "/v1/streams/{stream}/groups/{group}"
GROUP_LETTER_ROUTES: Final = (
    Route(
        "GET",
        f"{_ONE}/dead",
        get_dead_letters,
        Scope.READ,
        query=LettersQuery,
        answer=DeadLettersView,
    ),
    Route(
        "POST",
        f"{_ONE}/redrive",
        redrive_group,
        Scope.ADMIN,
        body=GroupLettersBody,
        answer=RedrivenView,
        look=get_group,
    ),
    Route(
        "POST",
        f"{_ONE}/discard",
        discard_group_letters,
        Scope.ADMIN,
        body=GroupLettersBody,
        answer=GroupDiscardedView,
        look=get_group,
    ),
)
