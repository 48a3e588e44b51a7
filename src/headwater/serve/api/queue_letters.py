"""Messages of queues that an administrator moves, over HTTP: delayed and held ones."""

from __future__ import annotations

from typing import Annotated, Final

import msgspec
from msgspec import Meta

from headwater.kernel.declaring import Scope
from headwater.serve.api.calls import ApiCall
from headwater.serve.api.queues import get_queue
from headwater.serve.api.routes import Route
from headwater.views.queues import QueuePromotedView, QueueReleasedView


class QueuePromoteBody(msgspec.Struct, forbid_unknown_fields=True):
    """Delayed messages, by id or by place."""

    ids: Annotated[list[str], Meta(max_length=10_000, description="Ids of messages, or places.")]


class QueueReleaseBody(msgspec.Struct, forbid_unknown_fields=True):
    """Messages that consumers hold, by their places, as a look at the queue returns them."""

    places: Annotated[list[str], Meta(max_length=10_000, description="Places of messages.")]


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
)
