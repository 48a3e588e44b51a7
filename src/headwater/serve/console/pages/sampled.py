"""The newest sample of the store, as far as a client may see it, for pages of many objects."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from headwater.metrics.sweeps import StoreSample
from headwater.serve.console.calls import PageCall
from headwater.serve.tokens import Scope

# While somebody looks, the store is sampled so often, however many look.
_EVERY_S: Final = 2.0


async def sampled(call: PageCall) -> StoreSample:
    """Return the newest sample that is whole; raises an error while the store does not answer."""
    sample = await call.served.watch.whole(_EVERY_S)
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
