"""Groups over topics over HTTP: read from all partitions, settle, seek, dead letters.

Offsets count within their partition: what is settled is named by partition, `{"0": [5, 6]}`.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from headwater.doors.catalogue import TOPIC_GROUP
from headwater.kernel.declaring import Scope
from headwater.serve.api.calls import ApiCall
from headwater.serve.api.derived import OffsetsByPartition, meant_by_partition, routes_of
from headwater.serve.api.groups import GroupReadBody, messages_taken
from headwater.serve.api.letters import LettersCount, LettersQuery, MatchingBody, letter_filter
from headwater.serve.api.routes import Route
from headwater.serve.api.topics import known_topic
from headwater.serve.listing import letters_of_topic
from headwater.views.overview import groups_of
from headwater.views.record import View
from headwater.views.streams import (
    DeadLetterView,
    MessageView,
    TopicGroupView,
    TopicLettersDiscardedView,
    TopicRedrivenView,
)


class TopicGroupsView(View, frozen=True, kw_only=True):
    """Groups over a topic, each in every partition."""

    groups: list[TopicGroupView]  # type: ignore[valid-type]  # mirror makes it at run time


class TopicGroupReadView(View, frozen=True, kw_only=True):
    """Messages of a topic that were handed out to a member of a group."""

    topic: str
    group: str
    messages: list[MessageView]


class TopicDeadLettersView(View, frozen=True, kw_only=True):
    """The oldest dead letters of a group over a topic; ``next`` is where to go on, if anywhere."""

    topic: str
    group: str
    letters: list[DeadLetterView]
    next: str | None


class TopicRedrivesView(View, frozen=True, kw_only=True):
    """How many dead letters of a group are redelivered, by partition."""

    partitions: list[TopicRedrivenView]  # type: ignore[valid-type]  # mirror makes it


class TopicLettersBody(msgspec.Struct, forbid_unknown_fields=True):
    """Which dead letters, and how many at most: the oldest, those of messages, or those that fit.

    ``offsets`` are those that the messages have in their partitions.
    """

    count: LettersCount = 1000
    offsets: OffsetsByPartition | None = None
    matching: MatchingBody | None = None


async def _group(call: ApiCall) -> Any:
    return (await known_topic(call)).group(call.names[1])


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
        letters=None if call.body.offsets is None else meant_by_partition(call.body.offsets),
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
        None if call.body.offsets is None else meant_by_partition(call.body.offsets),
        count=call.body.count,
        matching=letter_filter(call.body.matching),
    )
    return TopicLettersDiscardedView(topic=topic, group=group, discarded=discarded)


_ALL: Final = "/v1/topics/{topic}/groups"
_ONE: Final = f"{_ALL}/{{group}}"


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
        "POST",
        f"{_ONE}/read",
        read_topic_group,
        Scope.WRITE,
        body=GroupReadBody,
        answer=TopicGroupReadView,
    ),
    Route(
        "GET",
        f"{_ONE}/dead",
        get_topic_dead_letters,
        Scope.READ,
        query=LettersQuery,
        answer=TopicDeadLettersView,
    ),
    _change("redrive", redrive_topic_group, TopicLettersBody, TopicRedrivesView),
    _change("discard", discard_topic_letters, TopicLettersBody, TopicLettersDiscardedView),
    *routes_of(TOPIC_GROUP, get_topic_group),
)
