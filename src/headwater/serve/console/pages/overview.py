"""The overview: what is wrong, how much moves, what lags, and what the store promises.

All of it is made of the sample that everybody shares, so that a page costs the store next to
nothing, whatever the number of streams and of tabs.
"""

from __future__ import annotations

from typing import Final

from headwater.kernel.declaring import Scope
from headwater.metrics.alarms import Alarm
from headwater.metrics.history import Series, SpacedPoints
from headwater.serve.console.calls import Context, PageCall
from headwater.serve.console.charts import spark
from headwater.serve.console.history_charts import STEPS, step_of, store_charts
from headwater.serve.console.pages.alarms import AlarmButton, button_of, gathered, link_of
from headwater.serve.console.pages.lagging import Lagging, lagging, worst_of
from headwater.serve.console.pages.sampled import sampled

# Rows that are shown, and those of them that have a spark line: each costs a ring of the history.
_ROWS: Final = 50
_SPARKS: Final = 15
# A spark line shows so many seconds, and is this old at most.
_SPARK_SPAN_S: Final = 120
_SPARK_FRESH_S: Final = 10.0


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
