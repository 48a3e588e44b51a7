"""Queues, and dirty lists: channels with their shards and leases, and Icks."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from typing import Final, NamedTuple, cast

from headwater.errors import InvalidInput
from headwater.ick.types import Listed
from headwater.kernel.declaring import Scope
from headwater.queue.types import WAIT_BOUNDS_MS, QueueStats, State
from headwater.serve.console.calls import Context, PageCall, page
from headwater.serve.console.charts import channel_charts, queue_charts
from headwater.serve.console.links import Place, query
from headwater.serve.http.messages import Refused
from headwater.serve.listing import messages_in_queue
from headwater.views import overview

_SHOWN: Final = 25


class WaitSpan(NamedTuple):
    """Messages that waited up to a bound; None stands for longer than the largest."""

    bound_ms: int | None
    messages: int
    share: float


def wait_spans(stats: QueueStats) -> list[WaitSpan]:
    """Return how long messages waited, from the first span that has any to the last."""
    total = sum(stats.waits)
    if not total:
        return []
    spans = [
        WaitSpan(bound, count, count / total)
        for bound, count in zip((*WAIT_BOUNDS_MS, None), stats.waits, strict=True)
    ]
    known = [place for place, one in enumerate(spans) if one.messages]
    return spans[known[0] : known[-1] + 1]


@page("/queues", "queues.html", "Queues")
async def show_queues(call: PageCall) -> Context:
    """Show all queues, page by page."""
    names, part = call.part(call.visible(await call.hw.queues()))
    return {"queues": await call.hw.store.run(overview.some_queues(names)), "part": part}


@page("/queues/{queue}", "queue.html", "Queues")
async def show_queue(call: PageCall) -> Context:
    """Show one queue, and what lies in it by state."""
    name = call.name
    queue = call.hw.queue(name)
    stats = await queue.stats()
    if not stats.exists:
        raise Refused(404, f"there is no queue {name!r}; it is made by the first push")
    state = call.query.get("state", "ready")
    if state not in ("ready", "delayed", "unacked", "dead"):
        raise InvalidInput("state is one of ready, delayed, unacked, dead")
    begin = call.query.get("from", "")
    page = await messages_in_queue(call.hw, name, cast(State, state), _SHOWN, begin)
    held = await queue.peek(1, state="unacked") if stats.unacked else []
    later = await queue.peek(1, state="delayed") if stats.delayed else []
    return {
        "next_deadline_ms": held[0].due_ms if held else None,
        "next_due_ms": later[0].due_ms if later else None,
        "spans": wait_spans(stats),
        "stats": stats,
        "state": state,
        "items": page.items,
        "older": query(state=state, **{"from": page.next}) if page.next else None,
        "charts": await queue_charts(call),
        "letters_at": Place(name, "").key,
        "may_write": call.may(Scope.WRITE, name),
        "may_admin": call.may(Scope.ADMIN, name),
    }


_SHOWN_MEMBERS: Final = 20
# Between these, a score may be a time: from 2001 on, as far as five years from now.
_EARLIEST_S: Final = 1e9
_AHEAD_S: Final = 5 * 366 * 86_400


@page("/lists", "lists.html", "Dirty lists")
async def show_lists(call: PageCall) -> Context:
    """Show the channels of dirty lists, page by page."""
    names, part = call.part(call.visible(await call.hw.ick_channels()))
    return {"channels": await call.hw.store.run(overview.some_channels(names)), "part": part}


@page("/lists/{channel}", "channel.html", "Dirty lists")
async def show_channel(call: PageCall) -> Context:
    """Show a channel: its shards, who holds them until when, and some of its members."""
    channel = call.hw.ick_channel(call.name)
    stats = await channel.stats()
    if stats is None:
        raise Refused(404, f"there is no channel {call.name!r}; it is made by the first add")
    return {
        "stats": stats,
        "members": await _some(channel.scan()),
        "charts": await channel_charts(call),
        "may_admin": call.may(Scope.ADMIN, call.name),
    }


@page("/ick", "ick.html", "Dirty lists")
async def show_ick(call: PageCall) -> Context:
    """Show an Ick by its key: the sizes and scores of its sets, and some of its members."""
    key = call.query.get("key", "")
    if not key:
        return {"key": "", "facts": None, "members": [], "may_admin": False}
    call.check(key)
    ick = call.hw.ick(key)
    facts = await ick.stats()
    return {
        "key": key,
        "facts": facts,
        "members": [] if facts is None else await _some(ick.scan()),
        "score_time": score_time,
        "may_admin": call.may(Scope.ADMIN, key),
    }


async def _some(found: AsyncIterator[Listed]) -> list[Listed]:
    some: list[Listed] = []
    async for one in found:
        some.append(one)
        if len(some) == _SHOWN_MEMBERS:
            break
    return some


def score_time(score: float) -> int | None:
    """Return the ms since 1970 that a score may stand for, as seconds or as ms; None if neither.

    What a score is, only its producers know: this says how it reads if it is a time.
    """
    latest_s = time.time() + _AHEAD_S
    for unit in (1, 1000):
        if _EARLIEST_S <= score / unit <= latest_s:
            return round(score / unit * 1000)
    return None
