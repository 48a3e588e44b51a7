"""Consumers whose position is in SQL: how far each is, and what it gave up."""

from __future__ import annotations

from typing import Final

from headwater.errors import UnknownConsumer
from headwater.kernel.declaring import Scope
from headwater.metrics.alarms import ConsumerLetterCount, consumer_letters
from headwater.outbox.consumer_letters import ConsumerLetter
from headwater.serve.console.calls import Context, PageCall
from headwater.serve.console.history_charts import consumer_charts
from headwater.views.outboxes import ConsumerPlace, consumer_places

_LETTERS: Final = 20


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


async def show_consumer(call: PageCall) -> Context:
    """Show a SQL consumer: its position and lag on each of its streams, and its dead letters."""
    name = call.name
    call.check(name)
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
        "charts": await consumer_charts(call, streams, name),
        "may_admin": call.may(Scope.ADMIN, name),
    }


async def _letters(call: PageCall, places: list[ConsumerPlace]) -> list[ConsumerLetter]:
    """Return the oldest letters; none is asked for where no stream has any."""
    if call.served.database is None or not any(one.dead for one in places):
        return []
    return await call.served.database.letters_of(call.name, _LETTERS, call.grant)


async def consumers_with_letters(call: PageCall) -> list[ConsumerLetterCount]:
    """Return what SQL consumers gave up, as far as the client may see it.

    A server without a database knows the consumers that are noted in the store.
    """
    if call.served.database is None:
        known = consumer_letters(call.served.watched.sweeps.latest)
        return [one for one in known if call.grant.allows(Scope.READ, one.consumer)]
    there = (await call.served.database.status()).checkpoints
    seen = [one for one in there if call.grant.allows(Scope.READ, one.consumer)]
    return [
        ConsumerLetterCount(one.checkpoint.consumer, one.checkpoint.stream, one.dead, one.letters)
        for one in await call.hw.store.run(consumer_places(seen))
        if one.dead
    ]
