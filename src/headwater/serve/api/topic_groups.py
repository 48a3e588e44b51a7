"""Groups over topics over HTTP: read from all partitions, settle, seek, dead letters.

Offsets count within their partition: what is settled is named by partition, `{"0": [5, 6]}`.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, TypeAlias

import msgspec
from msgspec import Meta

from headwater.errors import UnknownGroup
from headwater.log.keys import MAX_PARTITIONS
from headwater.serve.api.calls import ApiCall
from headwater.serve.api.fields import AckMs, Milliseconds, Start
from headwater.serve.api.groups import (
    GivenOffsets,
    GroupReadBody,
    GroupStateBody,
    meant,
    messages_taken,
    paused_or_runs,
)
from headwater.serve.api.letters import LettersCount, LettersQuery, MatchingBody, letter_filter
from headwater.serve.api.routes import Route
from headwater.serve.api.topics import known_topic
from headwater.serve.letter_lists import letters_of_topic
from headwater.serve.tokens import Scope
from headwater.views.group_states import TopicGroupStateView
from headwater.views.overview import groups_of
from headwater.views.record import View
from headwater.views.streams import (
    DeadLetterView,
    MessageView,
    TopicAckedView,
    TopicGroupRemovedView,
    TopicGroupView,
    TopicLettersDiscardedView,
    TopicNackedView,
    TopicRedrivenView,
    TopicSoughtView,
)

Partition: TypeAlias = Annotated[
    int, Meta(ge=0, lt=MAX_PARTITIONS, description="A partition, from 0 on.")
]
_ByPartition = Annotated[
    dict[Partition, GivenOffsets],
    Meta(description='Offsets, and ranges of them, by partition: {"0": [5, 6]}.'),
]


class TopicGroupsView(View, frozen=True, kw_only=True):
    """Groups over a topic, each in every partition."""

    groups: list[TopicGroupView]  # type: ignore[valid-type]  # mirror makes it at run time


class TopicGroupReadView(View, frozen=True, kw_only=True):
    """Messages of a topic that were handed out to a member of a group."""

    topic: str
    group: str
    messages: list[MessageView]


class TopicExtendedView(View, frozen=True, kw_only=True):
    """How many pending messages of a topic got more time."""

    topic: str
    group: str
    extended: int


class TopicDeadLettersView(View, frozen=True, kw_only=True):
    """The oldest dead letters of a group over a topic; ``next`` is where to go on, if anywhere."""

    topic: str
    group: str
    letters: list[DeadLetterView]
    next: str | None


class TopicRedrivesView(View, frozen=True, kw_only=True):
    """How many dead letters of a group are redelivered, by partition."""

    partitions: list[TopicRedrivenView]  # type: ignore[valid-type]  # mirror makes it


class TopicOffsetsBody(msgspec.Struct, forbid_unknown_fields=True):
    """The messages that are meant."""

    offsets: _ByPartition


class TopicNackBody(msgspec.Struct, forbid_unknown_fields=True):
    """The messages that are rejected, and when they are redelivered."""

    offsets: _ByPartition
    delay_ms: Milliseconds = 0


class TopicExtendBody(msgspec.Struct, forbid_unknown_fields=True):
    """The messages that are held, and for how long from now on."""

    offsets: _ByPartition
    ack_ms: AckMs


class TopicSeekBody(msgspec.Struct, forbid_unknown_fields=True):
    """Where a group continues: in all partitions, or by partition, ``{"0": 5}``."""

    to: Start | dict[Partition, Start]


class TopicLettersBody(msgspec.Struct, forbid_unknown_fields=True):
    """Which dead letters, and how many at most: the oldest, those of messages, or those that fit.

    ``offsets`` are those that the messages have in their partitions.
    """

    count: LettersCount = 1000
    offsets: _ByPartition | None = None
    matching: MatchingBody | None = None


async def _group(call: ApiCall) -> Any:
    return (await known_topic(call)).group(call.names[1])


def _by_partition(call: ApiCall) -> dict[int, Any]:
    return {place: meant(offsets) for place, offsets in call.body.offsets.items()}


async def list_topic_groups(call: ApiCall) -> TopicGroupsView:
    """List the groups of a topic, and their state in each partition."""
    streams = await (await known_topic(call)).info()
    places = {facts.name: place for place, facts in enumerate(streams)}
    found = await call.hw.store.run(groups_of(streams))
    found.sort(key=lambda one: (one.group.name, places[one.stream]))
    views = [
        TopicGroupView.of(one.group, topic=call.name, partition=places[one.stream]) for one in found
    ]
    return TopicGroupsView(groups=views)


async def get_topic_group(call: ApiCall) -> TopicGroupsView:
    """Show the state of a group of a topic in each partition."""
    facts = await (await _group(call)).info()
    return TopicGroupsView(
        groups=[
            TopicGroupView.of(one, topic=call.name, partition=place)
            for place, one in enumerate(facts)
        ]
    )


async def read_topic_group(call: ApiCall) -> TopicGroupReadView:
    """Take messages of any partition that no other member has; the first read creates the group.

    Each is pending until it is acknowledged, or redelivered ack_ms after it was handed out. With
    block_ms the request waits for a first message. No more are taken once they have 4 MiB.
    """
    topic, group = call.names
    messages = await messages_taken(call, await known_topic(call))
    return TopicGroupReadView(topic=topic, group=group, messages=messages)


async def ack_in_topic(call: ApiCall) -> TopicAckedView:
    """Acknowledge messages of a topic: they are done. Returns how many were pending."""
    topic, group = call.names
    acked = await (await _group(call)).ack(_by_partition(call))
    return TopicAckedView(topic=topic, group=group, acked=acked)


async def nack_in_topic(call: ApiCall) -> TopicNackedView:
    """Reject messages of a topic: they are redelivered, after delay_ms."""
    topic, group = call.names
    nacked = await (await _group(call)).nack(_by_partition(call), delay_ms=call.body.delay_ms)
    return TopicNackedView(topic=topic, group=group, nacked=nacked)


async def extend_in_topic(call: ApiCall) -> TopicExtendedView:
    """Extend the deadline of messages of a topic: they are redelivered ack_ms from now."""
    topic, group = call.names
    extended = await (await _group(call)).extend(_by_partition(call), ack_ms=call.body.ack_ms)
    return TopicExtendedView(topic=topic, group=group, extended=extended)


async def seek_topic_group(call: ApiCall) -> TopicSoughtView:
    """Set the position of a group of a topic, in all partitions or in those that are named."""
    topic, group = call.names
    offsets = await (await _group(call)).seek(call.body.to)
    return TopicSoughtView(topic=topic, group=group, next=offsets)


async def set_topic_group_state(call: ApiCall) -> TopicGroupStateView:
    """Pause a group in all partitions, so that its members get nothing, or let it run again."""
    topic, group = call.names
    state, changed = await paused_or_runs(await _group(call), call.body.paused)
    return TopicGroupStateView(topic=topic, group=group, state=state, changed=changed)


async def remove_topic_group(call: ApiCall) -> TopicGroupRemovedView:
    """Remove a group from all partitions; retention no longer waits for it."""
    topic, group = call.names
    if not await (await _group(call)).remove():
        raise UnknownGroup(topic, group, topic=topic)
    return TopicGroupRemovedView(topic=topic, group=group)


async def get_topic_dead_letters(call: ApiCall) -> TopicDeadLettersView:
    """Show the oldest dead letters of a group of a topic; they are not removed.

    The list ends early once they have 4 MiB; the next one goes on from its next.
    """
    topic, group = call.names
    query = call.query
    await known_topic(call)
    found = await letters_of_topic(
        call.hw, topic, group, query.count, query.from_, letter_filter(query)
    )
    letters = [DeadLetterView.of(letter) for letter in found.items]
    return TopicDeadLettersView(topic=topic, group=group, letters=letters, next=found.next)


async def redrive_topic_group(call: ApiCall) -> TopicRedrivesView:
    """Redrive dead letters of a topic: they are redelivered at once, as if never tried."""
    topic, group = call.names
    done = await (await _group(call)).redrive(
        call.body.count,
        letters=None if call.body.offsets is None else _by_partition(call),
        matching=letter_filter(call.body.matching),
    )
    return TopicRedrivesView(
        partitions=[
            TopicRedrivenView.of(part, topic=topic, group=group, partition=place)
            for place, part in done.items()
        ]
    )


async def discard_topic_letters(call: ApiCall) -> TopicLettersDiscardedView:
    """Discard the oldest dead letters of each partition; their streams keep the values."""
    topic, group = call.names
    discarded = await (await _group(call)).discard(
        None if call.body.offsets is None else _by_partition(call),
        count=call.body.count,
        matching=letter_filter(call.body.matching),
    )
    return TopicLettersDiscardedView(topic=topic, group=group, discarded=discarded)


_ALL: Final = "/v1/topics/{topic}/groups"
_ONE: Final = f"{_ALL}/{{group}}"


def _settle(verb: str, run: Any, body: Any, answer: Any) -> Route:
    return Route("POST", f"{_ONE}/{verb}", run, Scope.WRITE, body=body, answer=answer)


def _change(verb: str, run: Any, body: Any, answer: Any, method: str = "POST") -> Route:
    return Route(
        method,
        f"{_ONE}/{verb}",
        run,
        Scope.ADMIN,
        body=body,
        answer=answer,
        look=get_topic_group,
    )


TOPIC_GROUP_ROUTES: Final = (
    Route("GET", _ALL, list_topic_groups, Scope.READ, answer=TopicGroupsView),
    Route("GET", _ONE, get_topic_group, Scope.READ, answer=TopicGroupsView),
    Route(
        "DELETE",
        _ONE,
        remove_topic_group,
        Scope.ADMIN,
        answer=TopicGroupRemovedView,
        look=get_topic_group,
    ),
    Route(
        "POST",
        f"{_ONE}/read",
        read_topic_group,
        Scope.WRITE,
        body=GroupReadBody,
        answer=TopicGroupReadView,
    ),
    _settle("ack", ack_in_topic, TopicOffsetsBody, TopicAckedView),
    _settle("nack", nack_in_topic, TopicNackBody, TopicNackedView),
    _settle("extend", extend_in_topic, TopicExtendBody, TopicExtendedView),
    _change("seek", seek_topic_group, TopicSeekBody, TopicSoughtView),
    Route(
        "GET",
        f"{_ONE}/dead",
        get_topic_dead_letters,
        Scope.READ,
        query=LettersQuery,
        answer=TopicDeadLettersView,
    ),
    _change("state", set_topic_group_state, GroupStateBody, TopicGroupStateView, "PUT"),
    _change("redrive", redrive_topic_group, TopicLettersBody, TopicRedrivesView),
    _change("discard", discard_topic_letters, TopicLettersBody, TopicLettersDiscardedView),
)
