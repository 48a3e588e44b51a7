"""Groups over topics over HTTP: read from all partitions, settle, seek.

Offsets count within their partition: what is settled is named by partition, `{"0": [5, 6]}`.
"""

from __future__ import annotations

from typing import Any, Final

from headwater.doors.catalogue import TOPIC_GROUP
from headwater.kernel.declaring import Scope
from headwater.serve.api.calls import ApiCall
from headwater.serve.api.derived import routes_of
from headwater.serve.api.groups import GroupReadBody, messages_taken
from headwater.serve.api.routes import Route
from headwater.serve.api.topics import known_topic
from headwater.views.overview import groups_of
from headwater.views.record import View
from headwater.views.streams import MessageView, TopicGroupView


class TopicGroupsView(View, frozen=True, kw_only=True):
    """Groups over a topic, each in every partition."""

    groups: list[TopicGroupView]  # type: ignore[valid-type]  # mirror makes it at run time


class TopicGroupReadView(View, frozen=True, kw_only=True):
    """Messages of a topic that were handed out to a member of a group."""

    topic: str
    group: str
    messages: list[MessageView]


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


_ALL: Final = "/v1/topics/{topic}/groups"
_ONE: Final = f"{_ALL}/{{group}}"


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
    *routes_of(TOPIC_GROUP, get_topic_group),
)
