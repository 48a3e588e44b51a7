"""Consumers whose position is in SQL: how far each is, and what it gave up."""

from __future__ import annotations

from typing import Final

from headwater.errors import UnknownConsumer
from headwater.outbox.consumer_letters import ConsumerLetter
from headwater.serve.console.calls import Context, PageCall
from headwater.serve.console.history_charts import reader_charts
from headwater.serve.tokens import Scope
from headwater.views.outboxes import ConsumerPlace, consumer_places

_LETTERS: Final = 20
_CHARTED: Final = 5


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
    streams = [one.checkpoint.stream for one in places[:_CHARTED]]
    return {
        "consumer": name,
        "places": places,
        "letters": await _letters(call, places),
        "charts": await reader_charts(call, streams, f"consumer:{name}"),
        "may_admin": call.may(Scope.ADMIN, name),
    }


async def _letters(call: PageCall, places: list[ConsumerPlace]) -> list[ConsumerLetter]:
    """Return the oldest letters; none is asked for where no stream has any."""
    if call.served.database is None or not any(one.dead for one in places):
        return []
    return await call.served.database.letters_of(call.name, _LETTERS, call.grant)


async def places_with_letters(call: PageCall) -> list[ConsumerPlace]:
    """Return where SQL consumers gave messages up, as far as the client may see it."""
    if call.served.database is None:
        return []
    there = (await call.served.database.status()).checkpoints
    seen = [one for one in there if call.grant.allows(Scope.READ, one.consumer)]
    return [one for one in await call.hw.store.run(consumer_places(seen)) if one.dead]
