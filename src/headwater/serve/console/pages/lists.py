"""Dirty lists: channels with their shards and leases, and Icks, which have only sets and scores."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from typing import Any, Final, NamedTuple

from headwater.ick.types import Listed
from headwater.kernel.declaring import Scope
from headwater.serve.console.calls import Context, PageCall
from headwater.serve.console.history_charts import channel_charts
from headwater.serve.http.messages import Refused
from headwater.views import overview

_SHOWN: Final = 20
# Between these, a score may be a time: from 2001 on, as far as five years from now.
_EARLIEST_S: Final = 1e9
_AHEAD_S: Final = 5 * 366 * 86_400


class IckSet(NamedTuple):
    """One of the two sets of an Ick: its size, and its lowest and highest scores if there are."""

    name: str
    holds: str
    size: int
    lowest: float | None
    highest: float | None


async def show_lists(call: PageCall) -> Context:
    """Show the channels of dirty lists, page by page."""
    names, part = call.part(call.visible(await call.hw.ick_channels()))
    return {"channels": await call.hw.store.run(overview.some_channels(names)), "part": part}


async def show_channel(call: PageCall) -> Context:
    """Show a channel: its shards, who holds them until when, and some of its members."""
    call.check(call.name)
    channel = call.hw.ick_channel(call.name)
    stats = await channel.stats()
    if stats is None:
        raise Refused(404, f"there is no channel {call.name!r}; it is made by the first add")
    return {
        "stats": stats,
        "members": await _some(channel.scan()),
        "charts": await channel_charts(call, call.name),
        "may_admin": call.may(Scope.ADMIN, call.name),
    }


async def show_ick(call: PageCall) -> Context:
    """Show an Ick by its key: the sizes and scores of its sets, and some of its members."""
    key = call.query.get("key", "")
    if not key:
        return {"key": "", "sets": None, "members": [], "may_admin": False}
    call.check(key)
    ick = call.hw.ick(key)
    facts = await ick.stats()
    sets = None if facts is None else _sets(facts)
    return {
        "key": key,
        "sets": sets,
        "members": [] if sets is None else await _some(ick.scan()),
        "score_time": score_time,
        "may_admin": call.may(Scope.ADMIN, key),
    }


def _sets(facts: dict[str, Any]) -> list[IckSet]:
    return [
        IckSet(
            name,
            holds,
            facts[f"{name}_size"],
            facts.get(f"{name}_min"),
            facts.get(f"{name}_max"),
        )
        for name, holds in (("pset", "dirty"), ("cset", "reserved"))
    ]


async def _some(found: AsyncIterator[Listed]) -> list[Listed]:
    some: list[Listed] = []
    async for one in found:
        some.append(one)
        if len(some) == _SHOWN:
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
