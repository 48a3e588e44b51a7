"""Streams and groups: lists, rulers, messages."""

from __future__ import annotations

import datetime as dt
import time
from typing import Final

import msgspec

from headwater.errors import InvalidInput, UnknownGroup
from headwater.log.handles import GroupHandle, StreamHandle
from headwater.log.ruler import group_ruler
from headwater.log.types import GroupInfo, StreamInfo
from headwater.serve.console.calls import Context, PageCall
from headwater.serve.console.ruler import draw, window_of
from headwater.serve.http.messages import Refused
from headwater.serve.tokens import Scope
from headwater.spark.queries.status import query_statuses
from headwater.store.many import together
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


async def show_stream(call: PageCall) -> Context:
    """Show one stream: its ruler, and messages from an offset on."""
    name = call.name
    call.check(name)
    stream = call.hw.stream(name)
    info = await stream.info()
    if not info.exists:
        raise Refused(404, f"there is no stream {name!r}; it is made by the first write")
    window = window_of(info, call.number("first"), call.number("last"))
    rows = await call.hw.store.run(overview.groups_of([info]))
    shown = rows[:_ROWS]
    handles = [GroupHandle(StreamHandle(name, set()), row.group.name, "console") for row in shown]
    rulers = await call.hw.store.run(
        together(group_ruler(one, window.first, window.last, _CELLS) for one in handles)
    )
    found = [
        (row.group, ruler) for row, ruler in zip(shown, rulers, strict=True) if ruler is not None
    ]
    readers = [("reader", reader, needed) for reader, needed in sorted(info.readers.items())]
    readers += [
        ("Spark", query.name or query.query[:8], read.next)
        for query in await call.hw.store.run(query_statuses())
        for read in query.reads
        if read.stream == name
    ]
    now_ms = int(time.time() * 1000)
    picture = draw(info, window, found, readers[:_ROWS], now_ms)
    at = await _place(call, info)
    messages = await stream.read(at, _MESSAGES) if info.length else []
    return {
        "info": info,
        "ruler": picture,
        "hidden": len(rows) - len(shown) + max(len(readers) - _ROWS, 0),
        "at": at,
        "messages": list(enumerate(messages, at)),
        "page": _MESSAGES,
        "may_admin": call.may(Scope.ADMIN, name),
        "may_write": call.may(Scope.WRITE, name),
    }


async def _place(call: PageCall, info: StreamInfo) -> int:
    """Return the offset that is asked for: a number, first, last, or a time."""
    given = call.query.get("at", "").replace(",", "").strip()
    if not given or given == "last":
        return max(info.last - _MESSAGES + 1, info.first)
    if given == "first":
        return info.first
    if given.isdecimal():
        return max(min(int(given), info.last), info.first)
    try:
        moment = msgspec.convert(given, dt.datetime)
    except msgspec.ValidationError:
        raise InvalidInput(
            f"{given!r} is no place: give an offset, first, last, or a time like "
            "2026-11-17T14:00:00Z"
        ) from None
    found = await call.hw.stream(info.name).offset_at(moment)
    return max(min(found, info.last), info.first)


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
