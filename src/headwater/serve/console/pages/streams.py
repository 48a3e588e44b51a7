"""Streams and groups: lists, rulers, messages."""

from __future__ import annotations

import time
from typing import Final

from headwater.errors import UnknownGroup
from headwater.log.handles import GroupHandle, StreamHandle
from headwater.log.ruler import group_ruler
from headwater.log.types import GroupInfo
from headwater.serve.console.calls import Context, PageCall
from headwater.serve.console.ruler import draw, window_of
from headwater.serve.http.messages import Refused
from headwater.serve.tokens import Scope
from headwater.views import overview

# How many messages a page shows, and how many rows and cells a ruler has.
_MESSAGES: Final = 50
_ROWS: Final = 40
_CELLS: Final = 250


async def show_streams(call: PageCall) -> Context:
    """Show all streams, page by page."""
    names, part = call.part(call.visible(await call.hw.streams()))
    streams = await call.hw.store.run(overview.some_streams(names))
    groups: dict[str, list[GroupInfo]] = {}
    for row in await call.hw.store.run(overview.groups_of(streams)):
        groups.setdefault(row.stream, []).append(row.group)
    return {"streams": streams, "groups": groups, "part": part}


async def show_group(call: PageCall) -> Context:
    """Show one group: members, pending ranges, and where it can be sent."""
    name, group = call.names
    call.check(name)
    stream = call.hw.stream(name)
    info = await stream.info()
    try:
        facts = await stream.group(group).info()
    except UnknownGroup as error:
        raise Refused(404, str(error)) from None
    window = window_of(info, min(facts.ack_offset, facts.next), None)
    handle = GroupHandle(StreamHandle(name, set()), group, "console")
    ruler = await call.hw.store.run(group_ruler(handle, window.first, window.last, _CELLS))
    now_ms = int(time.time() * 1000)
    found = [] if ruler is None else [(facts, ruler)]
    return {
        "info": info,
        "facts": facts,
        "ruler": draw(info, window, found, [], now_ms),
        "ranges": [] if ruler is None else ruler.pending[:100],
        "now_ms": now_ms,
        "may_admin": call.may(Scope.ADMIN, name),
    }
