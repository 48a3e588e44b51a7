"""The newest sample of the store, as far as a client may see it, for pages of many objects."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from headwater.kernel.declaring import Scope
from headwater.metrics.alarms import consumer_letters
from headwater.metrics.sweeps import StoreSample
from headwater.serve.console.calls import PageCall
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
