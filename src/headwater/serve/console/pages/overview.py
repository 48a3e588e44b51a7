"""The overview: what is wrong, what lags and what waits, the worst first."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Final, NamedTuple

from headwater.log.types import GroupInfo, StreamInfo
from headwater.queue.types import QueueStats
from headwater.serve.console.calls import Context, PageCall
from headwater.serve.console.links import group_link, queue_link, stream_link
from headwater.views import overview
from headwater.views.overview import StreamGroup

# As many objects of a kind are looked at, and as many rows are shown of each.
MOST: Final = 500
_ROWS: Final = 50


class Alarm(NamedTuple):
    """Something that somebody should look at (``look``) or do something about (``act``)."""

    level: str
    text: str
    cure: str
    link: str


async def show_overview(call: PageCall) -> Context:
    """Show what lags, what waits and what is wrong, the worst first."""
    hw = call.hw
    names = call.visible(await hw.streams())
    queues = call.visible(await hw.queues())
    streams = await hw.store.run(overview.some_streams(names[:MOST]))
    groups = await hw.store.run(overview.groups_of(streams))
    stats = await hw.store.run(overview.some_queues(queues[:MOST]))
    lagging = sorted(groups, key=lambda row: (-row.group.lag, row.stream, row.group.name))
    fullest = sorted(stats, key=lambda one: -(one.ready + one.dead))
    return {
        "alarms": sorted([*_of_groups(groups), *_of_streams(streams), *_of_queues(stats)]),
        "messages": sum(stream.last for stream in streams),
        "bytes": sum(stream.bytes for stream in streams),
        "groups": lagging[:_ROWS],
        "queues": fullest[:_ROWS],
        "pending": sum(row.group.pending for row in groups),
        "dead": sum(row.group.dead for row in groups) + sum(one.dead for one in stats),
        "counted": (len(names), len(queues)),
        "unseen": max(len(names) - MOST, 0) + max(len(queues) - MOST, 0),
        "now_ms": int(time.time() * 1000),
    }


def _of_groups(groups: list[StreamGroup]) -> Iterator[Alarm]:
    for stream, facts in groups:
        yield from _of_group(stream, facts)


def _of_group(stream: str, facts: GroupInfo) -> Iterator[Alarm]:
    who, where = f"{facts.name} of {stream}", group_link(stream, facts.name)
    if facts.missed:
        yield Alarm(
            "act",
            f"{who} missed {facts.missed:,} messages: they were evicted before it read them",
            "give the stream a longer retention, or the group more members",
            where,
        )
    if facts.dead:
        yield Alarm(
            "look",
            f"{who} has {facts.dead:,} dead letters",
            "look at their errors, then redrive or discard them",
            where,
        )
    if facts.abandoned:
        yield Alarm(
            "look",
            f"{who} is abandoned: nobody reads it, and retention does not wait for it",
            "start a member, or remove the group",
            where,
        )


def _of_streams(streams: list[StreamInfo]) -> Iterator[Alarm]:
    for stream in streams:
        if stream.idle_holder:
            yield Alarm(
                "look",
                f"{stream.idle_holder} holds up the retention of {stream.name}",
                "start it again, or remove it",
                stream_link(stream.name),
            )


def _of_queues(queues: list[QueueStats]) -> Iterator[Alarm]:
    for queue in queues:
        link = queue_link(queue.name)
        if queue.damaged:
            text = f"{queue.name} has {queue.damaged:,} damaged messages"
            yield Alarm("act", text, "run headwater scrub", link)
        if queue.dead:
            text = f"{queue.name} has {queue.dead:,} dead letters"
            cure = "look at their errors, then redrive or discard them"
            yield Alarm("look", text, cure, f"{link}?state=dead")
        if queue.paused:
            cure = "resume it when its consumers may work again"
            yield Alarm("look", f"{queue.name} is paused", cure, link)
