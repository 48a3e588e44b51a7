"""Work queues over HTTP: push, pop, look, and what is derived."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from headwater.doors.catalogue import QUEUE
from headwater.errors import InvalidInput
from headwater.kernel.declaring import Scope
from headwater.kernel.headers import LIST_BYTES
from headwater.kernel.inputs import Encoding
from headwater.log.keys import MAX_OFFSET
from headwater.queue.keys import MAX_PRIORITY, MAX_PUSH_MESSAGES
from headwater.queue.types import QueueItem
from headwater.serve.api.calls import ApiCall
from headwater.serve.api.derived import routes_of
from headwater.serve.api.formats import value_of
from headwater.serve.api.routes import Route
from headwater.serve.fields import AckMs, BlockMs, Count, ListQuery, Milliseconds
from headwater.serve.listing import ListedPage, messages_in_queue
from headwater.views.overview import some_queues
from headwater.views.queues import DeliveryView, QueueItemView, QueueStatsView
from headwater.views.record import View

_ACK_MS: Final = 30_000


class QueuesView(View, frozen=True, kw_only=True):
    """Queues by name; ``next`` is the name to continue after, when there are more."""

    queues: list[QueueStatsView]  # type: ignore[valid-type]  # mirror makes it at run time
    next: str | None


class QueuePushedView(View, frozen=True, kw_only=True):
    """The ids of messages that were pushed, in order."""

    queue: str
    ids: list[str]


class PoppedView(View, frozen=True, kw_only=True):
    """Messages that were handed out."""

    queue: str
    deliveries: list[DeliveryView]


class QueueMessagesView(View, frozen=True, kw_only=True):
    """Messages as they are stored in a queue; ``next`` is where to go on, null without more."""

    queue: str
    messages: list[QueueItemView]  # type: ignore[valid-type]  # as above
    next: str | None


class NewQueueMessage(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    """A message to push: its value as text, as base64 by ``encoding``, or ``data``, any JSON."""

    value: str | UnsetType = UNSET
    data: msgspec.Raw | UnsetType = UNSET
    encoding: Encoding | None = None
    headers: dict[str, str] | None = None
    dedupe: str | None = None


class PushQuery(msgspec.Struct, forbid_unknown_fields=True):
    """When messages come due, in which order, and how long they live.

    A repeat of ``producer`` and ``sequence`` changes nothing.
    """

    delay_ms: Milliseconds = 0
    priority: Annotated[int, Meta(ge=-MAX_PRIORITY, le=MAX_PRIORITY)] = 0
    ttl_ms: AckMs | None = None
    producer: str | None = None
    sequence: Annotated[int, Meta(ge=0, le=MAX_OFFSET)] | None = None


class PopBody(msgspec.Struct, forbid_unknown_fields=True):
    """How much a consumer takes, and how long it may hold it; null for ``ack_ms`` needs no acks."""

    count: Count = 1
    ack_ms: AckMs | None = _ACK_MS
    block_ms: BlockMs = 0


class PeekQuery(msgspec.Struct, forbid_unknown_fields=True):
    """Which messages are shown; ``from`` is where a list before ended, as its ``next``."""

    state: Literal["ready", "delayed", "unacked", "dead"] = "ready"
    count: Count = 10
    from_: str = msgspec.field(default="", name="from")


async def list_queues(call: ApiCall) -> QueuesView:
    """List the queues that the token may read, by name."""
    names = [name for name in await call.hw.queues() if call.grant.allows(Scope.READ, name)]
    page, following = call.query.of(names)
    found = await call.hw.store.run(some_queues(page))
    return QueuesView(queues=[QueueStatsView.of(queue) for queue in found], next=following)


async def push_messages(call: ApiCall) -> QueuePushedView:
    """Put messages into a queue, all or none; returns their ids.

    A repeat with the same producer and sequence changes nothing and is answered as the first time.
    """
    query = call.query
    given = call.body if isinstance(call.body, list) else [call.body]
    keys = [message.dedupe for message in given if message.dedupe is not None]
    if keys and len(keys) != len(given):
        raise InvalidInput("either all messages of a push have dedupe, or none; send two pushes")
    headers: Any = [message.headers for message in given]
    ids = await call.hw.queue(call.name).push_many(
        [value_of(message) for message in given],
        delay_ms=query.delay_ms,
        priority=query.priority,
        ttl_ms=query.ttl_ms,
        dedupe=keys or None,
        producer=query.producer,
        sequence=query.sequence,
        headers=headers if any(headers) else None,
    )
    return QueuePushedView(queue=call.name, ids=ids)


async def pop_messages(call: ApiCall) -> PoppedView:
    """Take messages that no other consumer has.

    No more are taken once they have 4 MiB. Each has a receipt, by which it is acknowledged; else it
    is redelivered after ack_ms. With block_ms the request waits for a first message. A repeat after
    a lost answer takes other messages; those of the first time are redelivered.
    """
    body = call.body
    found = await call.hw.queue(call.name).pop(
        body.count, ack_ms=body.ack_ms, block_ms=body.block_ms, max_bytes=LIST_BYTES
    )
    return PoppedView(queue=call.name, deliveries=[DeliveryView.of(one) for one in found])


async def peek_queue(call: ApiCall) -> QueueMessagesView:
    """Show messages of a queue without taking them; dead ones are dead letters.

    The list ends early once they have 4 MiB; the next one goes on from its next.
    """
    query = call.query
    found = await messages_in_queue(call.hw, call.name, query.state, query.count, query.from_)
    return messages_view(call, found)


def messages_view(call: ApiCall, page: ListedPage[QueueItem]) -> QueueMessagesView:
    """Return the view of messages of the queue that a request names."""
    messages = [QueueItemView.of(one) for one in page.items]
    return QueueMessagesView(queue=call.name, messages=messages, next=page.next)


_ONE: Final = "/v1/queues/{queue}"


QUEUE_ROUTES: Final = (
    Route("GET", "/v1/queues", list_queues, Scope.READ, query=ListQuery, answer=QueuesView),
    Route(
        "POST",
        f"{_ONE}/messages",
        push_messages,
        Scope.WRITE,
        query=PushQuery,
        body=NewQueueMessage | Annotated[list[NewQueueMessage], Meta(max_length=MAX_PUSH_MESSAGES)],
        answer=QueuePushedView,
        status=201,
    ),
    Route(
        "GET",
        f"{_ONE}/messages",
        peek_queue,
        Scope.READ,
        query=PeekQuery,
        answer=QueueMessagesView,
    ),
    Route(
        "POST",
        f"{_ONE}/pop",
        pop_messages,
        Scope.WRITE,
        body=PopBody,
        answer=PoppedView,
    ),
    *routes_of(QUEUE),
)
