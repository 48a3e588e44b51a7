"""What charts of a page are renewed from, as JSON: the same charts, with newer points."""

from __future__ import annotations

from headwater.metrics.alarms import CONSUMER
from headwater.serve.console.calls import Context, PageCall
from headwater.serve.console.charts import charts_json
from headwater.serve.console.history_charts import (
    channel_charts,
    consumer_charts,
    group_charts,
    outbox_charts,
    queue_charts,
    store_charts,
)
from headwater.serve.console.pages.lagging import lagging, worst_of
from headwater.serve.console.pages.pipelines import check_everywhere
from headwater.serve.console.pages.sampled import sampled


async def renew_store(call: PageCall) -> Context:
    """Return the charts of the overview."""
    rows = lagging(await sampled(call))
    return charts_json(await store_charts(call, worst_of(rows)))


async def renew_group(call: PageCall) -> Context:
    """Return the charts of a group."""
    stream, group = call.names
    call.check(stream)
    return charts_json(await group_charts(call, stream, group))


async def renew_queue(call: PageCall) -> Context:
    """Return the charts of a queue."""
    call.check(call.name)
    return charts_json(await queue_charts(call, call.name))


async def renew_channel(call: PageCall) -> Context:
    """Return the charts of a channel of dirty lists."""
    call.check(call.name)
    return charts_json(await channel_charts(call, call.name))


async def renew_outbox(call: PageCall) -> Context:
    """Return the charts of the outbox."""
    check_everywhere(call)
    return charts_json(await outbox_charts(call))


async def renew_consumer(call: PageCall) -> Context:
    """Return the charts of a SQL consumer."""
    call.check(call.name)
    # The store notes which streams it reads: the database need not be asked for that.
    sample = await sampled(call)
    reader = CONSUMER + call.name
    streams = [one.name for one in sample.streams if reader in one.readers]
    return charts_json(await consumer_charts(call, streams, call.name))
