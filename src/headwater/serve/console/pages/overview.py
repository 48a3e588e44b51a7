"""The overview: what is wrong, how much moves, what lags, and what the store promises.

All of it is made of the sample that everybody shares, so that a page costs the store next to
nothing, whatever the number of streams and of tabs.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Final

from headwater.kernel.declaring import Scope
from headwater.metrics.alarms import CONSUMER, Alarm, consumer_letters
from headwater.metrics.history import Series, SpacedPoints
from headwater.metrics.sweeps import StoreSample
from headwater.serve.console.calls import ConsolePage, Context, PageCall, page
from headwater.serve.console.charts import (
    STEPS,
    Chart,
    channel_charts,
    charts_json,
    consumer_charts,
    group_charts,
    outbox_charts,
    queue_charts,
    spark,
    step_of,
    store_charts,
)
from headwater.serve.console.pages.lagging import (
    AlarmButton,
    Lagging,
    button_of,
    gathered,
    lagging,
    link_of,
    worst_of,
)
from headwater.serve.tokens import Grant

# While somebody looks, the store is sampled so often, however many look.
_EVERY_S: Final = 2.0


async def sampled(call: PageCall) -> StoreSample:
    """Return the newest sample that is whole; raises an error while the store does not answer."""
    sample = await call.served.watched.sweeps.whole(_EVERY_S)
    if call.grant.everywhere(Scope.READ):
        return sample

    def visible(name: str) -> bool:
        return call.grant.allows(Scope.READ, name)

    return replace(
        sample,
        streams=[one for one in sample.streams if visible(one.name)],
        groups=[row for row in sample.groups if visible(row.stream)],
        queues=[one for one in sample.queues if visible(one.name)],
        channels=[one for one in sample.channels if visible(one.name)],
        # As their page: a query concerns the whole store.
        queries=[],
    )


def letters_seen(sample: StoreSample, grant: Grant) -> int:
    """Return how many dead letters of groups, queues and SQL consumers a client may see."""
    of_groups = ((row.stream, row.group.dead) for row in sample.groups if row.group.dead)
    of_queues = ((one.name, one.dead) for one in sample.queues if one.dead)
    of_consumers = ((one.consumer, one.dead) for one in consumer_letters(sample))
    return sum(
        dead
        for found in (of_groups, of_queues, of_consumers)
        for name, dead in found
        if grant.allows(Scope.READ, name)
    )


# Rows that are shown, and those of them that have a spark line: each costs a ring of the history.
_ROWS: Final = 50
_SPARKS: Final = 15
# A spark line shows so many seconds, and is this old at most.
_SPARK_SPAN_S: Final = 120
_SPARK_FRESH_S: Final = 10.0


@page("", "overview.html", "Overview")
async def show_overview(call: PageCall) -> Context:
    """Show what lags, what waits and what is wrong, the worst first."""
    sample = await sampled(call)
    whole = call.grant.everywhere(Scope.READ)
    # While the store does not answer, what was known of it is shown, and it is asked for nothing.
    there = call.served.watched.sweeps.missing is None
    facts = await call.served.watched.facts.servers() if whole and there else None
    report = call.served.watched.facts.report() if whole else None
    processes = await call.served.watched.alarms.processes() if whole else []
    rows = lagging(sample)
    # What renews itself beside the charts asks for the rest of the page only.
    drawn = there and call.query.get("part") != "now"
    charts = await store_charts(call, worst_of(rows)) if drawn else []
    sparks = await _sparks(call, rows[:_SPARKS]) if there else {}
    alarms = gathered(await call.served.watched.alarms.found(sample, whole=whole))
    return {
        "alarms": [(one, link_of(one), _button(call, one)) for one in alarms],
        "link_of": link_of,
        "messages": sum(stream.last for stream in sample.streams),
        "bytes": sum(stream.bytes for stream in sample.streams),
        "pending": sum(row.point.pending for row in rows if row.kind in ("group", "queue")),
        "dead": sum(row.dead for row in rows),
        "counted": (len(sample.streams), len(sample.groups), len(sample.queues)),
        "rows": rows[:_ROWS],
        "unshown": max(len(rows) - _ROWS, 0),
        "sparks": sparks,
        "charts": charts if whole else charts[1:2],
        "steps": STEPS,
        "step": step_of(call),
        "facts": facts,
        "report": report,
        "processes": processes,
        "checks": await call.served.watched.facts.past_checks() if whole and there else None,
        "kept": await call.served.watched.history.kept() if whole and there else None,
        "sampled_s": call.served.watched.sweeps.clock() - sample.at,
    }


def _button(call: PageCall, alarm: Alarm) -> AlarmButton | None:
    """Return the button of an alarm, unless the client may not press it."""
    button = button_of(alarm)
    return button if button and call.may(Scope.ADMIN, button.name) else None


async def _sparks(call: PageCall, rows: list[Lagging]) -> dict[Series, str]:
    wanted = [row.series for row in rows]
    if not wanted:
        return {}
    found: SpacedPoints = await call.served.watched.history.points(
        wanted, 1, _SPARK_SPAN_S, fresh_s=_SPARK_FRESH_S
    )
    return {
        one: spark([None if point is None else point.lag for point in found.series[one]])
        for one in wanted
    }


async def _charts_now(call: PageCall) -> list[Chart]:
    return await store_charts(call, worst_of(lagging(await sampled(call))))


async def _charts_of_consumer(call: PageCall) -> list[Chart]:
    # The store notes which streams it reads: the database need not be asked for that.
    sample, reader = await sampled(call), CONSUMER + call.name
    return await consumer_charts(
        call, [one.name for one in sample.streams if reader in one.readers]
    )


def _source(
    page: str, charts: Callable[[PageCall], Awaitable[list[Chart]]], *, whole: bool = False
) -> ConsolePage:
    """Return what the charts of a page are renewed from, as JSON."""

    async def renew(call: PageCall) -> Context:
        return charts_json(await charts(call))

    return ConsolePage(f"{page}/charts", renew, whole=whole)


CHARTS_OF_STORE: Final = _source("", _charts_now)
CHARTS_OF_GROUP: Final = _source("/streams/{stream}/groups/{group}", group_charts)
CHARTS_OF_QUEUE: Final = _source("/queues/{queue}", queue_charts)
CHARTS_OF_CHANNEL: Final = _source("/lists/{channel}", channel_charts)
CHARTS_OF_OUTBOX: Final = _source("/outbox", outbox_charts, whole=True)
CHARTS_OF_CONSUMER: Final = _source("/consumers/{consumer}", _charts_of_consumer)
