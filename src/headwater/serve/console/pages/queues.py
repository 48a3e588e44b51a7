"""Queues: lists, and what lies in one by state."""

from __future__ import annotations

from typing import Final, cast

from headwater.errors import InvalidInput
from headwater.queue.types import State
from headwater.serve.console.calls import Context, PageCall
from headwater.serve.console.history_charts import queue_charts
from headwater.serve.http.messages import Refused
from headwater.serve.tokens import Scope
from headwater.views import overview

_SHOWN: Final = 50


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
    if state == "dead":
        items = await queue.dead(_SHOWN)
    else:
        items = await queue.peek(_SHOWN, state=cast(State, state))
    return {
        "stats": stats,
        "state": state,
        "items": items,
        "charts": await queue_charts(call, name),
        "may_write": call.may(Scope.WRITE, name),
        "may_admin": call.may(Scope.ADMIN, name),
    }
