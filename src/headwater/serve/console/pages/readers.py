"""Who reads the log: groups, and consumers whose position is in SQL."""

from __future__ import annotations

import time
from typing import Final, NamedTuple

import msgspec

from headwater.errors import UnknownConsumer, UnknownGroup
from headwater.kernel.declaring import Scope
from headwater.log.handles import GroupHandle, StreamHandle
from headwater.log.inspecting import group_ruler
from headwater.outbox.consumer_letters import ConsumerLetter
from headwater.serve.audit import AUDIT
from headwater.serve.console.calls import Context, PageCall, page
from headwater.serve.console.charts import consumer_charts, group_charts
from headwater.serve.console.links import Place
from headwater.serve.console.ruler import draw, window_of
from headwater.serve.console.values import each_message
from headwater.serve.http.messages import Refused
from headwater.views.outboxes import ConsumerPlace, consumer_places

_CELLS: Final = 250
# So many rows of what is pending are shown at first, and when all are asked for.
_FEW: Final = 10
_PENDING: Final = 100
# So many notes of the audit are looked at for who has evicted what a group missed.
_NOTES: Final = 500


class MissedRange(NamedTuple):
    """Messages that were evicted before a group had them, and what the audit knows of that."""

    first: int
    last: int
    who: str = ""
    when_ms: int | None = None
    how: str = ""


@page("/streams/{stream}/groups/{group}", "group.html", "Streams")
async def show_group(call: PageCall) -> Context:
    """Show one group: members, pending ranges, and where it can be sent."""
    name, group = call.names
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
    ranges = [] if ruler is None else ruler.pending[:_PENDING]
    shown = _PENDING if call.query.get("pending") == "all" else _FEW
    return {
        "info": info,
        "facts": facts,
        "ruler": draw(info, window, found, [], now_ms),
        "ranges": ranges[:shown],
        "further": len(ranges) - shown if len(ranges) > shown else 0,
        "next_due_ms": min((one.due_ms for one in ranges), default=None),
        "charts": await group_charts(call),
        "letters_at": Place(name, group).key,
        "missed": await _ledger(call, name, facts.gaps) if facts.gaps else [],
        "now_ms": now_ms,
        "may_admin": call.may(Scope.ADMIN, name),
    }


async def rate_of(call: PageCall, stream: str, group: str) -> float | None:
    """Return how many messages a second a group has done in the last ten minutes; None unknown."""
    series = ("group", stream, group)
    found = await call.served.watched.history.points([series], 10, 600)
    rates = [one.out_per_s for one in found.series.get(series, []) if one is not None]
    return sum(rates) / len(rates) if rates else None


async def _ledger(
    call: PageCall, stream: str, gaps: tuple[tuple[int, int], ...]
) -> list[MissedRange]:
    """Return what was missed, the newest first, with what the audit says of each."""
    evictions = await _evictions(call, stream) if call.grant.allows(Scope.READ, AUDIT) else []
    return [
        next(
            (
                one._replace(first=low, last=high)
                for one in evictions
                if one.first <= low <= one.last
            ),
            MissedRange(low, high),
        )
        for low, high in reversed(gaps)
    ]


async def _evictions(call: PageCall, stream: str) -> list[MissedRange]:
    """Return the evictions of a stream that the audit has noted, the newest first."""
    audit = call.hw.stream(AUDIT)
    info = await audit.info()
    begun: dict[str, int] = {}
    found: list[MissedRange] = []
    async for message in each_message(audit, max(info.last - _NOTES + 1, info.first), info.last):
        if message.tag != stream:
            continue
        try:
            note = msgspec.json.decode(message.value)
        except msgspec.DecodeError:
            continue
        before, after = note.get("before") or {}, note.get("after") or {}
        if note.get("outcome") == "begun" and "first" in before:
            begun[note["request_id"]] = before["first"]
        elif (start := begun.get(note.get("request_id", ""))) and after.get("first", 0) > start:
            how = f"{note['method']} {note['path']}"
            found.append(MissedRange(start, after["first"] - 1, note["who"], message.time_ms, how))
    return found[::-1]


_LETTERS: Final = 20


@page("/consumers", "consumers.html", "Consumers")
async def show_consumers(call: PageCall) -> Context:
    """Show the SQL consumers, page by page: how far behind each is, and what it gave up."""
    if call.served.database is None:
        return {"places": None, "part": None}
    there = (await call.served.database.status()).checkpoints
    names, part = call.part(call.visible(list(dict.fromkeys(one.consumer for one in there))))
    some = set(names)
    places = await call.hw.store.run(
        consumer_places([one for one in there if one.consumer in some])
    )
    return {"places": sorted(places, key=lambda one: (-one.lag, -one.dead)), "part": part}


@page("/consumers/{consumer}", "consumer.html", "Consumers")
async def show_consumer(call: PageCall) -> Context:
    """Show a SQL consumer: its position and lag on each of its streams, and its dead letters."""
    name = call.name
    if call.served.database is None:
        return {"consumer": name, "places": None}
    there = (await call.served.database.status()).checkpoints
    own = [one for one in there if one.consumer == name]
    if not own:
        raise UnknownConsumer(name)
    places = await call.hw.store.run(consumer_places(own))
    streams = [one.stream for one in own]
    return {
        "consumer": name,
        "places": places,
        "letters": await _letters(call, places),
        "charts": await consumer_charts(call, streams),
        "may_admin": call.may(Scope.ADMIN, name),
    }


async def _letters(call: PageCall, places: list[ConsumerPlace]) -> list[ConsumerLetter]:
    """Return the oldest letters; none is asked for where no stream has any."""
    if call.served.database is None or not any(one.dead for one in places):
        return []
    return await call.served.database.letters_of(call.name, call.grant, count=_LETTERS)
