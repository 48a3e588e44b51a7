"""The alarms of a store for a command: asked for once, with all that it takes."""

from __future__ import annotations

from contextlib import AsyncExitStack

from headwater.aio_client import connect
from headwater.kernel.profiles import store_of
from headwater.metrics.alarm_watch import AlarmWatch, FirstSeen
from headwater.metrics.alarms import StoreFacts
from headwater.metrics.sweeps import StoreWatch
from headwater.serve.api.databases import open_database
from headwater.views.stores import AlarmsView


async def look_once(store: str | None, db: str | None) -> AlarmsView:
    """Return the alarms of a store, and of the outbox of a database if one is given.

    Raises StoreError when the store does not answer.
    """
    url = store_of(store, None)
    async with connect(url, wait_ms=0) as hw, AsyncExitStack() as opened:
        watch = StoreWatch(hw)
        facts = StoreFacts(watch, url)
        outbox = None
        if db is not None:
            outbox = opened.enter_context(open_database(db, url)).status
        facts.report()
        await watch.sample_now()
        await facts.close()
        sample = await watch.whole(60.0)
        alarms = AlarmWatch(watch, facts, FirstSeen(hw, writes=False), outbox=outbox)
        opened.push_async_callback(watch.close)
        found = await alarms.found(sample, once=True)
        return AlarmsView.of(store=hw.store.where, as_of_ms=sample.now_ms, alarms=found)
