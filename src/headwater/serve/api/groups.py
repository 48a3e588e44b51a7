"""Consumer groups of streams and of topics over HTTP: read, settle, seek.

What a client has read and not acknowledged is redelivered after ``ack_ms``, to the next reader: a
client may die, and another one or another server continue. Of a topic, offsets count within their
partition: what is settled is named by partition, `{"0": [5, 6]}`.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta

from headwater.doors.catalogue import GROUP, TOPIC, TOPIC_GROUP
from headwater.kernel.declaring import Scope
from headwater.kernel.headers import LIST_BYTES
from headwater.log.aio_stream import AsyncStream
from headwater.log.aio_topic import AsyncTopic
from headwater.log.keys import MAX_OFFSET
from headwater.serve.api.calls import ApiCall
from headwater.serve.api.derived import meant, opened, routes_of
from headwater.serve.api.routes import Route
from headwater.serve.fields import AckMs, BlockMs, Count, GivenOffsets, Milliseconds, Start
from headwater.views.overview import groups_of
from headwater.views.record import View
from headwater.views.streams import GroupView, MessageView, TopicGroupView

# Without it a client that dies would take its messages along.
_ACK_MS: Final = 30_000


class GroupsView(View, frozen=True, kw_only=True):
    """The groups of a stream."""

    groups: list[GroupView]  # type: ignore[valid-type]  # mirror makes it at run time


class GroupReadView(View, frozen=True, kw_only=True):
    """Messages that were handed out to a member of a group."""

    stream: str
    group: str
    messages: list[MessageView]


class TopicGroupsView(View, frozen=True, kw_only=True):
    """Groups over a topic, each in every partition."""

    groups: list[TopicGroupView]  # type: ignore[valid-type]  # mirror makes it at run time


class TopicGroupReadView(View, frozen=True, kw_only=True):
    """Messages of a topic that were handed out to a member of a group."""

    topic: str
    group: str
    messages: list[MessageView]


class GroupReadBody(msgspec.Struct, forbid_unknown_fields=True):
    """How much a member takes, and how long it may hold it; null for ``ack_ms`` needs no acks.

    ``start``, ``max_pending``, ``dead_letters`` and ``ordered`` are of the group: the first counts
    when it is new, the others from then on; ``dead_letters`` is true, false, or the name of a
    stream. An ``ordered`` group hands out a message when those before it of its tag are done.
    """

    count: Count = 1
    ack_ms: AckMs | None = _ACK_MS
    expire_ms: AckMs | None = None
    block_ms: BlockMs = 0
    member: str | None = None
    start: Start = "first"
    max_pending: Annotated[int, Meta(ge=0, le=MAX_OFFSET)] | None = None
    dead_letters: bool | str | None = None
    ordered: bool = False


class PendingBody(msgspec.Struct, forbid_unknown_fields=True):
    """What an administrator does to messages that members hold, and to which.

    ``skip`` makes them done without a handler; ``return`` has them redelivered after ``delay_ms``.
    """

    action: Literal["skip", "return"]
    offsets: GivenOffsets
    delay_ms: Milliseconds = 0


class PendingSettledView(View, frozen=True, kw_only=True):
    """How many pending messages an administrator has skipped or returned."""

    stream: str
    group: str
    settled: int


async def list_groups(call: ApiCall) -> GroupsView:
    """List the groups of a stream, and their state."""
    stream = await call.hw.stream(call.name).info()
    found = await call.hw.store.run(groups_of([stream]))
    return GroupsView(groups=[GroupView.of(one.group, stream=one.stream) for one in found])


async def get_group(call: ApiCall) -> msgspec.Struct:
    """Show the state of a group: its next offset, what is pending, its lag, its members."""
    return GroupView.of(await (await opened(call, GROUP)).info(), stream=call.name)


async def read_group(call: ApiCall) -> GroupReadView:
    """Take messages that no other member has; the first read creates the group.

    Each is pending until it is acknowledged, or redelivered ack_ms after it was handed out. With
    block_ms the request waits for a first message. No more are taken once they have 4 MiB. A repeat
    after a lost answer takes other messages; those of the first time are redelivered.
    """
    stream, group = call.names
    messages = await _messages_taken(call, call.hw.stream(stream))
    return GroupReadView(stream=stream, group=group, messages=messages)


async def list_topic_groups(call: ApiCall) -> TopicGroupsView:
    """List the groups of a topic, and their state in each partition."""
    streams = await (await opened(call, TOPIC)).info()
    partitions = {facts.name: partition for partition, facts in enumerate(streams)}
    groups = await call.hw.store.run(groups_of(streams))
    groups.sort(key=lambda row: (row.group.name, partitions[row.stream]))
    return TopicGroupsView(
        groups=[
            TopicGroupView.of(row.group, topic=call.name, partition=partitions[row.stream])
            for row in groups
        ]
    )


async def get_topic_group(call: ApiCall) -> TopicGroupsView:
    """Show the state of a group of a topic in each partition."""
    facts = await (await opened(call, TOPIC_GROUP)).info()
    return TopicGroupsView(
        groups=[
            TopicGroupView.of(one, topic=call.name, partition=partition)
            for partition, one in enumerate(facts)
        ]
    )


async def read_topic_group(call: ApiCall) -> TopicGroupReadView:
    """Take messages of any partition that no other member has; the first read creates the group.

    Each is pending until it is acknowledged, or redelivered ack_ms after it was handed out. With
    block_ms the request waits for a first message. No more are taken once they have 4 MiB.
    """
    topic, group = call.names
    messages = await _messages_taken(call, await opened(call, TOPIC))
    return TopicGroupReadView(topic=topic, group=group, messages=messages)


async def _messages_taken(
    call: ApiCall, source: AsyncStream[Any] | AsyncTopic[Any]
) -> list[MessageView]:
    """Take messages as a member of a group of a stream or topic, as a request asks for."""
    body = call.body
    if isinstance(body.dead_letters, str):
        call.require(Scope.WRITE, body.dead_letters)
    member: Any = source.group(
        call.names[1],
        body.start,
        member=body.member,
        max_pending=body.max_pending,
        dead_letters=body.dead_letters,
        ordered=body.ordered,
    )
    found = await member.read(
        body.count,
        block_ms=body.block_ms,
        ack_ms=body.ack_ms,
        expire_ms=body.expire_ms,
        max_bytes=LIST_BYTES,
    )
    return [MessageView.of(message) for message in found]


async def settle_pending(call: ApiCall) -> PendingSettledView:
    """Skip messages that members hold, or return them to the group; recorded in the audit.

    A member that has one continues with it: its ack then counts for nothing.
    """
    stream, group = call.names
    body = call.body
    opened_group = await opened(call, GROUP)
    if body.action == "skip":
        settled = await opened_group.ack(*meant(body.offsets))
    else:
        settled = await opened_group.nack(*meant(body.offsets), delay_ms=body.delay_ms)
    return PendingSettledView(stream=stream, group=group, settled=settled)


_ALL: Final = "/v1/streams/{stream}/groups"
_ONE: Final = f"{_ALL}/{{group}}"
GROUP_ROUTES: Final = (
    Route("GET", _ALL, list_groups, Scope.READ, answer=GroupsView),
    Route("GET", _ONE, get_group, Scope.READ, answer=GroupView),
    Route(
        "POST",
        f"{_ONE}/read",
        read_group,
        Scope.WRITE,
        body=GroupReadBody,
        answer=GroupReadView,
    ),
    Route(
        "POST",
        f"{_ONE}/pending",
        settle_pending,
        Scope.ADMIN,
        body=PendingBody,
        answer=PendingSettledView,
        look=get_group,
    ),
    *routes_of(GROUP, get_group),
)

_ALL_OF_TOPIC: Final = "/v1/topics/{topic}/groups"
_OF_TOPIC: Final = f"{_ALL_OF_TOPIC}/{{group}}"
TOPIC_GROUP_ROUTES: Final = (
    Route("GET", _ALL_OF_TOPIC, list_topic_groups, Scope.READ, answer=TopicGroupsView),
    Route("GET", _OF_TOPIC, get_topic_group, Scope.READ, answer=TopicGroupsView),
    Route(
        "POST",
        f"{_OF_TOPIC}/read",
        read_topic_group,
        Scope.WRITE,
        body=GroupReadBody,
        answer=TopicGroupReadView,
    ),
    *routes_of(TOPIC_GROUP, get_topic_group),
)
