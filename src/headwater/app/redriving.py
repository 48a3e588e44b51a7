"""Dead letters of a consumer of an application, handled again by its handler."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from headwater.app.consumer_part import ConsumerPart
from headwater.app.resources import Resources
from headwater.errors import InvalidInput

if TYPE_CHECKING:
    from headwater.app.application import App
    from headwater.outbox.consumer_letters import ConsumerRedriven


def redrive_letters(
    app: App, consumer: str, store: str | None = None, db: str | None = None
) -> ConsumerRedriven:
    """Have a consumer of an application handle its dead letters again; see Consumer.redrive.

    ``store`` and ``db`` take the place of those that the application names. Raises InvalidInput
    for a consumer that it does not have.
    """
    part = app.parts.get(consumer)
    if not isinstance(part, ConsumerPart):
        known = [name for name, one in app.parts.items() if isinstance(one, ConsumerPart)]
        there = f"it has {', '.join(known)}" if known else "it declares none"
        raise InvalidInput(f"the application has no consumer {consumer!r}; {there}")
    given = {"store": store, "db": db}
    places = replace(app.places, **{k: v for k, v in given.items() if v is not None})
    resources = app.resources = Resources(places)
    try:
        if part.is_async:
            return asyncio.run(_in_loop(part, resources))
        work: Any = part.open(resources)
        done: ConsumerRedriven = work.redrive()
        return done
    finally:
        app.resources = None
        resources.close()


async def _in_loop(part: ConsumerPart, resources: Resources) -> ConsumerRedriven:
    try:
        await resources.open_async()
        work: Any = part.open(resources)
        done: ConsumerRedriven = await work.redrive()
        return done
    finally:
        await resources.close_async()
