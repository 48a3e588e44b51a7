"""The page of metrics: what is sampled of a store and counted in this process, for Prometheus.

It is made of the sample that everybody shares, and made again beside the scrapes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from headwater.kernel.inputs import check_int
from headwater.kernel.packaging import __version__
from headwater.metrics import objects
from headwater.metrics.exposition import Page, label_text
from headwater.metrics.operations import OperationMetrics
from headwater.metrics.sweeps import ASKED_S, StoreSample, StoreWatch

Extra = Callable[[Page], Awaitable[None]]

# A page this young is returned as it is.
FRESH_S: Final = 5.0
MAX_SERIES: Final = 250_000
# After this many objects other tasks run: a page may have 20 MB.
_SLICE: Final = 100


def check_series(most: int) -> int:
    """Return how many series a page may have; raises InvalidInput for what cannot be."""
    return check_int(most, "max_series", 1000, 10**7)


class Sampler:
    """The metrics of a store and of this process. Raises InvalidInput for a cap below 1000."""

    def __init__(
        self,
        watch: StoreWatch,
        operations: OperationMetrics,
        *,
        max_series: int = MAX_SERIES,
        extras: Sequence[Extra] = (),
    ) -> None:
        self._watch = watch
        self._operations = operations
        self._most = check_series(max_series)
        self._extras = extras
        self._store = watch.hw.store.where
        self._page = b""
        self._made_of: StoreSample | None = None
        self._dropped = 0
        self._asked_at = -float("inf")
        self._making = asyncio.Lock()
        watch.follow(self._renew)

    async def page(self) -> bytes:
        """Return the metrics. What is said of the store is at most some seconds old.

        A store that does not answer is a metric, too: ``headwater_store_up`` is 0.
        """
        self._asked_at = self._watch.clock()
        sample = await self._watch.newest(FRESH_S)
        async with self._making:
            if self._made_of is None:
                await self._make(sample)
        return self._own_page() + self._page

    async def _renew(self, sample: StoreSample) -> None:
        """Make the page again beside the scrapes, as long as there are some."""
        if self._watch.clock() - self._asked_at > ASKED_S:
            return
        async with self._making:
            if self._made_of is None or sample.at - self._made_of.at >= FRESH_S / 2:
                await self._make(sample)

    async def _make(self, sample: StoreSample) -> None:
        page = Page(self._most)
        if sample.missing is None:
            mode = await self._watch.fsync_mode()
            if mode is not None:
                page.add(label_text(store=self._store, mode=mode), store_fsync=1)
        await self._add_objects(page, sample)
        for add in self._extras:
            await add(page)
        labels = label_text(store=self._store)
        page.add(labels, store_up=int(sample.missing is None))
        blocks = []
        for block in page.blocks():
            blocks.append(block)
            await asyncio.sleep(0)
        self._page, self._dropped = b"".join(blocks), page.dropped
        self._made_of = sample

    async def _add_objects(self, page: Page, sample: StoreSample) -> None:
        store, now_ms = self._store, sample.now_ms
        for place, stream in enumerate(sample.streams):
            objects.add_stream(page, store, stream)
            if place % _SLICE == 0:
                await asyncio.sleep(0)
        for place, row in enumerate(sample.groups):
            objects.add_group(page, store, row.stream, row.group, now_ms)
            if place % _SLICE == 0:
                await asyncio.sleep(0)
        for queue in sample.queues:
            objects.add_queue(page, store, queue)
        for channel in sample.channels:
            objects.add_channel(page, store, channel)
        for query in sample.queries:
            objects.add_query(page, store, query)

    def _own_page(self) -> bytes:
        """Return what is known without the store, as it is now."""
        page, sample = Page(), self._made_of
        self._operations.add_to(page)
        page.add(
            "",
            scrape_duration_seconds=round(0.0 if sample is None else sample.took_s, 6),
            series_dropped=self._dropped,
            series_complete=int(not self._dropped),
        )
        page.add(label_text(version=__version__), build_info=1)
        age = None if sample is None else round(self._watch.clock() - sample.at, 3)
        page.add(label_text(store=self._store), sample_age_seconds=age)
        return b"".join(page.blocks())
