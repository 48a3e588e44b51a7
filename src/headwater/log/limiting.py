"""Limits of a group: how many of its messages are in flight, and how fast they are delivered."""

from __future__ import annotations

from headwater.limiting import NO_LIMITS, Limits, check_for_topic
from headwater.log import grouping
from headwater.log.handles import GroupHandle
from headwater.log.read_terms import Terms
from headwater.log.topic_groups import TopicGroupHandle
from headwater.store.call import Call, Operation
from headwater.store.faults import Refusal


def limit(group: GroupHandle, limits: Limits) -> Operation[Limits]:
    """Set the limits of a group, which is created if there is none; returns those before."""
    call = Call("hw_group_limit", group.key, (group.name, limits.stored()), repeatable=True)
    try:
        return Limits.of_stored((yield call))
    except Refusal:
        yield from grouping.read_now(group, 0, Terms(None, None))
        return Limits.of_stored((yield call))


def limit_in_topic(group: TopicGroupHandle, limits: Limits) -> Operation[Limits]:
    """Set the limits of a group over a topic, in each partition; returns those before.

    Raises InvalidInput for limits in all: no call sees all partitions, which may be on several
    servers, so they cannot be enforced.
    """
    check_for_topic(limits)
    before = NO_LIMITS
    for member in (yield from group.open()):
        before = (yield from limit(member, limits)) or before
    return before
