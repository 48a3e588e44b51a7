"""Limits over HTTP: how many messages of a group or a queue are in flight, and how fast they go."""

from __future__ import annotations

from typing import Annotated, Final

import msgspec
from msgspec import Meta

from headwater.kernel.inputs import MAX_IN_FLIGHT, Limits
from headwater.serve.api.calls import ApiCall
from headwater.serve.api.groups import get_group
from headwater.serve.api.queues import get_queue
from headwater.serve.api.routes import Route
from headwater.serve.api.topic_groups import get_topic_group
from headwater.serve.tokens import Scope
from headwater.views.limits import GroupLimitsView, QueueLimitsView, TopicLimitsView

_Most = Annotated[int, Meta(ge=1, le=MAX_IN_FLIGHT)] | None
_Rate = (
    Annotated[str, Meta(max_length=100, description='"100/s", "10/m" or "100/s burst 20"')] | None
)


class LimitsBody(msgspec.Struct, forbid_unknown_fields=True):
    """All limits that are to count from now on; what is left out or null is not limited."""

    max_in_flight: _Most = None
    max_in_flight_per_key: _Most = None
    rate: _Rate = None
    rate_per_key: _Rate = None

    def limits(self) -> Limits:
        """Return them as the library takes them."""
        return Limits(self.max_in_flight, self.max_in_flight_per_key, self.rate, self.rate_per_key)


async def set_group_limits(call: ApiCall) -> GroupLimitsView:
    """Set how many messages of a group are in flight, and how fast they are delivered.

    All members obey from now on. The limits replace those that were there.
    """
    stream, group = call.names
    found = call.hw.stream(stream).group(group)
    await found.info()
    limits = call.body.limits()
    before = await found.limit(limits)
    return GroupLimitsView(stream=stream, group=group, limits=limits, before=before)


async def set_topic_group_limits(call: ApiCall) -> TopicLimitsView:
    """Set how many messages of a tag are in flight, and how fast they are delivered.

    The group of a topic has limits per key only. They replace those that were there.
    """
    topic, group = call.names
    found = call.hw.topic(topic).group(group)
    await found.info()
    limits = call.body.limits()
    before = await found.limit(limits)
    return TopicLimitsView(topic=topic, group=group, limits=limits, before=before)


async def set_queue_limits(call: ApiCall) -> QueueLimitsView:
    """Set how many messages of a queue are in flight, and how fast they are delivered.

    All consumers obey from now on. The limits replace those that were there; a queue has none per
    key.
    """
    limits = call.body.limits()
    before = await call.hw.queue(call.name).limit(limits)
    return QueueLimitsView(queue=call.name, limits=limits, before=before)


LIMIT_ROUTES: Final = (
    Route(
        "PUT",
        "/v1/streams/{stream}/groups/{group}/limits",
        set_group_limits,
        Scope.ADMIN,
        body=LimitsBody,
        answer=GroupLimitsView,
        look=get_group,
    ),
    Route(
        "PUT",
        "/v1/topics/{topic}/groups/{group}/limits",
        set_topic_group_limits,
        Scope.ADMIN,
        body=LimitsBody,
        answer=TopicLimitsView,
        look=get_topic_group,
    ),
    Route(
        "PUT",
        "/v1/queues/{queue}/limits",
        set_queue_limits,
        Scope.ADMIN,
        body=LimitsBody,
        answer=QueueLimitsView,
        look=get_queue,
    ),
)
