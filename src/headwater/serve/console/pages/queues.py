"""Queues: lists, and what lies in one by state."""

from __future__ import annotations

from typing import Final, NamedTuple, cast

from headwater.errors import InvalidInput
from headwater.kernel.declaring import Scope
from headwater.queue.types import WAIT_BOUNDS_MS, QueueStats, State
from headwater.serve.console.calls import Context, PageCall
from headwater.serve.console.history_charts import queue_charts
from headwater.serve.console.letters import Place
from headwater.serve.console.links import query
from headwater.serve.http.messages import Refused
from headwater.serve.letter_lists import messages_in_queue
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


async def show_queues(call: PageCall) -> Context:
    """Show all queues, page by page."""
    names, part = call.part(call.visible(await call.hw.queues()))
    return {"queues": await call.hw.store.run(overview.some_queues(names)), "part": part}


async def show_queue(call: PageCall) -> Context:
    """Show one queue, and what lies in it by state."""
    name = call.name
    call.check(name)
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
        "charts": await queue_charts(call, name),
        "letters_at": Place(name, "").key,
        "may_write": call.may(Scope.WRITE, name),
        "may_admin": call.may(Scope.ADMIN, name),
    }
