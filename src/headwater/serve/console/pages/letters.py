"""Dead letters of all groups and queues together."""

from __future__ import annotations

from typing import Final, NamedTuple

from headwater.failures import Cause
from headwater.serve.console.calls import Context, PageCall
from headwater.serve.console.links import group_link, queue_link
from headwater.serve.console.pages.overview import MOST
from headwater.serve.tokens import Scope
from headwater.views import overview

_SHOWN: Final = 100


class Letter(NamedTuple):
    """A message that a group or a queue gave up, and where it is looked at."""

    buried_ms: int
    where: str
    link: str
    tag: str
    id: str
    attempts: int
    cause: Cause | None
    value: bytes


async def show_dead(call: PageCall) -> Context:
    """Show the dead letters of all groups and queues together, the newest first."""
    hw = call.hw
    streams = await hw.store.run(overview.some_streams(call.visible(await hw.streams())[:MOST]))
    groups = [row for row in await hw.store.run(overview.groups_of(streams)) if row.group.dead]
    names = call.visible(await hw.queues())[:MOST]
    queues = [one for one in await hw.store.run(overview.some_queues(names)) if one.dead]
    letters = []
    for stream, facts in groups:
        letters += await _of_group(call, stream, facts.name)
    for one in queues:
        letters += await _of_queue(call, one.name)
    wanted = call.query.get("error", "").lower()
    letters = [one for one in letters if wanted in str(one.cause or "").lower()]
    letters.sort(key=lambda one: -one.buried_ms)
    return {
        "letters": letters[:_SHOWN],
        "groups": groups,
        "queues": queues,
        "error": call.query.get("error", ""),
        "q": call.query.get("q", ""),
        "total": sum(row.group.dead for row in groups) + sum(one.dead for one in queues),
        "may_admin": not call.read_only and call.grant.widest is Scope.ADMIN,
    }


async def _of_group(call: PageCall, stream: str, group: str) -> list[Letter]:
    return [
        Letter(
            letter.buried_ms,
            f"{stream} / {group}",
            group_link(stream, group),
            letter.tag,
            str(letter.origin),
            letter.attempts,
            letter.cause,
            letter.value,
        )
        for letter in await call.hw.stream(stream).group(group).dead(_SHOWN)
    ]


async def _of_queue(call: PageCall, queue: str) -> list[Letter]:
    return [
        Letter(
            item.buried_ms or 0,
            queue,
            f"{queue_link(queue)}?state=dead",
            "",
            item.id,
            item.attempt,
            item.cause,
            item.value,
        )
        for item in await call.hw.queue(queue).dead(_SHOWN)
    ]
