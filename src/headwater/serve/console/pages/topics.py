"""Topics: their partitions, and their groups over all of them."""

from __future__ import annotations

import time
from typing import NamedTuple

from headwater.log.types import GroupInfo, StreamInfo
from headwater.serve.console.calls import Context, PageCall
from headwater.serve.http.messages import Refused
from headwater.views import overview


class TopicRow(NamedTuple):
    """A topic as a whole."""

    name: str
    partitions: int
    length: int
    bytes: int
    last_time_ms: int


class GroupOverTopic(NamedTuple):
    """A group over all partitions of a topic: its sums, and where it stands in each of them."""

    name: str
    lag: int
    pending: int
    dead: int
    missed: int
    members: int
    seen_ms: int
    partitions: list[GroupInfo | None]


async def show_topics(call: PageCall) -> Context:
    """Show all topics, page by page."""
    names, part = call.part(call.visible(await call.hw.topics()))
    found = await call.hw.store.run(overview.some_topics(names))
    rows = [
        TopicRow(
            name=one.topic,
            partitions=len(one.partitions),
            length=sum(stream.length for stream in one.partitions),
            bytes=sum(stream.bytes for stream in one.partitions),
            last_time_ms=max(stream.last_time_ms for stream in one.partitions),
        )
        for one in found
    ]
    return {"topics": rows, "part": part}


async def show_topic(call: PageCall) -> Context:
    """Show one topic: each partition, and each group over all of them."""
    name = call.name
    call.check(name)
    found = await call.hw.store.run(overview.some_topics([name]))
    if not found:
        raise Refused(404, f"there is no topic {name!r}; opening it with its partitions makes it")
    partitions = found[0].partitions
    groups = _groups(partitions, await call.hw.store.run(overview.groups_of(partitions)))
    longest = max((stream.length for stream in partitions), default=0)
    return {"topic": name, "partitions": partitions, "groups": groups, "longest": max(longest, 1)}


def _groups(partitions: list[StreamInfo], rows: list[overview.StreamGroup]) -> list[GroupOverTopic]:
    """Return the groups of a topic by name, each with its place in every partition."""
    by_name: dict[str, dict[str, GroupInfo]] = {}
    now_ms = int(time.time() * 1000)
    for row in rows:
        by_name.setdefault(row.group.name, {})[row.stream] = row.group
    return [
        GroupOverTopic(
            name=name,
            lag=sum(group.lag for group in own.values()),
            pending=sum(group.pending for group in own.values()),
            dead=sum(group.dead for group in own.values()),
            missed=sum(group.missed for group in own.values()),
            members=len(
                set[str]().union(*(overview.live_members(group, now_ms) for group in own.values()))
            ),
            seen_ms=max(group.seen_ms for group in own.values()),
            partitions=[own.get(stream.name) for stream in partitions],
        )
        for name, own in sorted(by_name.items())
    ]
