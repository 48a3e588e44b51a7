"""Messages of queues that an administrator moves, over HTTP: dead letters, delayed, held ones."""

from __future__ import annotations

from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta

from headwater.kernel.declaring import Scope
from headwater.serve.api.calls import ApiCall
from headwater.serve.api.letters import LettersCount, LettersQuery, MatchingBody, letter_filter
from headwater.serve.api.queues import QueueMessagesView, get_queue, messages_view
from headwater.serve.api.routes import Route
from headwater.serve.listing import letters_of_queue
from headwater.views.queues import (
    DiscardedView,
    QueuePromotedView,
    QueueRedrivenView,
    QueueReleasedView,
)


class QueueLettersBody(msgspec.Struct, forbid_unknown_fields=True):
    """Which dead letters, and how many at most: the oldest, some by id, or those that match."""

    count: LettersCount = 1000
    ids: (
        Annotated[list[str], Meta(max_length=10_000, description="Ids of messages, or places.")]
        | None
    ) = None
    matching: MatchingBody | None = None


class QueuePromoteBody(msgspec.Struct, forbid_unknown_fields=True):
    """Delayed messages, by id or by place."""

    ids: Annotated[list[str], Meta(max_length=10_000, description="Ids of messages, or places.")]


class QueueReleaseBody(msgspec.Struct, forbid_unknown_fields=True):
    """Messages that consumers hold, by their places, as a look at the queue returns them."""

    places: Annotated[list[str], Meta(max_length=10_000, description="Places of messages.")]


async def get_queue_letters(call: ApiCall) -> QueueMessagesView:
    """Show the oldest dead letters of a queue that match; they are not removed.

    The list ends early once they have 4 MiB; the next one goes on from its next.
    """
    query = call.query
    found = await letters_of_queue(
        call.hw, call.name, query.count, query.from_, letter_filter(query)
    )
    return messages_view(call, found)


def _meant(body: QueueLettersBody) -> dict[str, Any]:
    return {
        "letters": body.ids,
        "count": body.count,
        "matching": letter_filter(body.matching),
    }


async def redrive_queue(call: ApiCall) -> QueueRedrivenView:
    """Put dead letters back into a queue: the oldest, some by id, or those that match."""
    returned = await call.hw.queue(call.name).redrive(**_meant(call.body))
    return QueueRedrivenView(queue=call.name, returned=returned)


async def discard_letters(call: ApiCall) -> DiscardedView:
    """Remove dead letters of a queue: the oldest, some by id, or those that match."""
    discarded = await call.hw.queue(call.name).discard(**_meant(call.body))
    return DiscardedView(queue=call.name, discarded=discarded)


async def promote_messages(call: ApiCall) -> QueuePromotedView:
    """Deliver delayed messages of a queue now; attempts stay as they are."""
    promoted = await call.hw.queue(call.name).promote(call.body.ids)
    return QueuePromotedView(queue=call.name, promoted=promoted)


async def release_messages(call: ApiCall) -> QueueReleasedView:
    """Take messages from the consumers that hold them; they are redelivered at once.

    A consumer that works on one continues with it: its ack then changes nothing.
    """
    released = await call.hw.queue(call.name).release(*call.body.places)
    return QueueReleasedView(queue=call.name, released=released)


_ONE: Final = "/v1/queues/{queue}"
QUEUE_LETTER_ROUTES: Final = (
    Route(
        "GET",
        f"{_ONE}/dead",
        get_queue_letters,
        Scope.READ,
        query=LettersQuery,
        answer=QueueMessagesView,
    ),
    Route(
        "POST",
        f"{_ONE}/promote",
        promote_messages,
        Scope.ADMIN,
        body=QueuePromoteBody,
        answer=QueuePromotedView,
        look=get_queue,
    ),
    Route(
        "POST",
        f"{_ONE}/release",
        release_messages,
        Scope.ADMIN,
        body=QueueReleaseBody,
        answer=QueueReleasedView,
        look=get_queue,
    ),
    Route(
        "POST",
        f"{_ONE}/redrive",
        redrive_queue,
        Scope.ADMIN,
        body=QueueLettersBody,
        answer=QueueRedrivenView,
        look=get_queue,
    ),
    Route(
        "POST",
        f"{_ONE}/discard",
        discard_letters,
        Scope.ADMIN,
        body=QueueLettersBody,
        answer=DiscardedView,
        look=get_queue,
    ),
)
