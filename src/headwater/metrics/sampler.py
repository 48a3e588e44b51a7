"""One sampler of a store for all scrapes of a process: a page that is renewed while somebody asks.

Objects are asked for a few at a time, with pauses in between, so that a store of many objects
serves others meanwhile, and so does this process. A scrape returns the newest page, and waits only
for the first one, which is made without pauses. Nobody samples a store whose metrics nobody
scrapes.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from typing import Any, Final, TypeVar

import redis

from headwater.aio_client import AsyncHeadwater
from headwater.errors import HeadwaterError, StoreError
from headwater.inputs import check_int
from headwater.log.types import StreamInfo
from headwater.metrics import objects
from headwater.metrics.exposition import Page, label_text
from headwater.metrics.operations import OperationMetrics
from headwater.release import __version__
from headwater.store.call import Operation
from headwater.store.checks import explained
from headwater.views import overview

log = logging.getLogger("headwater.metrics")

T = TypeVar("T")
Extra = Callable[[Page], Awaitable[None]]

# A page this young is returned as it is.
FRESH_S: Final = 5.0
# As long as somebody has asked within this time, pages are renewed beside the scrapes.
ASKED_S: Final = 120.0
MAX_SERIES: Final = 250_000
# How many objects are asked for at a time, and how many times as long the pause behind that is.
_SLICE: Final = 20
_PAUSE: Final = 5.0
# While somebody waits: this many, so many times side by side, to decode some while others come.
_HURRIED_SLICE: Final = 100
_SIDE_BY_SIDE: Final = 4
# A store that has not answered by then is down, although its client still tries.
_PATIENCE_S: Final = 5.0
_FSYNC_MODES: Final = ("off", "no", "everysec", "always")


def check_series(most: int) -> int:
    """Return how many series a page may have; raises InvalidInput for what cannot be."""
    return check_int(most, "max_series", 1000, 10**7)


class Sampler:
    """The metrics of a store and of this process. Raises InvalidInput for a cap below 1000."""

    def __init__(
        self,
        hw: AsyncHeadwater,
        operations: OperationMetrics,
        *,
        max_series: int = MAX_SERIES,
        extras: Sequence[Extra] = (),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._hw = hw
        self._operations = operations
        self._most = check_series(max_series)
        self._extras = extras
        self._clock = clock
        self._store = hw.store.where
        self._page = b""
        self._sampled_at = -float("inf")
        self._asked_at = -float("inf")
        self._took_s = 0.0
        self._dropped = 0
        self._sampling: asyncio.Task[None] | None = None
        self._sampled = asyncio.Event()

    async def page(self) -> bytes:
        """Return the metrics. What is said of the store is at most some seconds old.

        A store that does not answer is a metric, too: ``headwater_store_up`` is 0.
        """
        self._asked_at = self._clock()
        if self._asked_at - self._sampled_at > FRESH_S and self._sampling is None:
            self._sampling = asyncio.create_task(self._renew())
            self._sampling.add_done_callback(self._over)
        await self._sampled.wait()
        return self._own_page() + self._page

    async def close(self) -> None:
        """Stop sampling."""
        if self._sampling is not None:
            self._sampling.cancel()
            await asyncio.wait([self._sampling])

    def _over(self, task: asyncio.Task[None]) -> None:
        self._sampling = None
        # Nobody waits for a page that does not come; the next scrape begins anew.
        self._sampled.set()
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("the metrics of %s could not be sampled", self._store, exc_info=error)

    async def _renew(self) -> None:
        """Sample, and again as long as somebody asks."""
        while True:
            await self._sample(gently=self._sampled.is_set())
            if self._clock() - self._asked_at > ASKED_S:
                return
            await asyncio.sleep(FRESH_S)

    async def _sample(self, *, gently: bool) -> None:
        began = self._clock()
        page = Page(self._most)
        up = 1
        try:
            await self._add_objects(page, gently=gently)
        except (HeadwaterError, TimeoutError) as error:
            log.warning("the metrics of %s are incomplete: %s", self._store, error or "no answer")
            up = 0
        for add in self._extras:
            await add(page)
        labels = label_text(store=self._store)
        page.add(labels, store_up=up)
        blocks = []
        for block in page.blocks():
            blocks.append(block)
            # A page may have 20 MB: others have their turn in between.
            await asyncio.sleep(0)
        self._page, self._dropped = b"".join(blocks), page.dropped
        self._sampled_at = self._clock()
        self._sampled.set()
        self._took_s = self._sampled_at - began

    async def _add_objects(self, page: Page, *, gently: bool) -> None:
        hw, store = self._hw, self._store
        now_ms = await self._now_ms()
        await self._add_fsync(page)
        size = _SLICE if gently else _HURRIED_SLICE
        at_once = 1 if gently else _SIDE_BY_SIDE
        for slices in _sliced(_sliced(await hw.streams(), size), at_once):
            asked = [self._streams(names, gently=gently) for names in slices]
            for streams, groups in await asyncio.gather(*asked):
                for stream in streams:
                    objects.add_stream(page, store, stream)
                for row in groups:
                    objects.add_group(page, store, row.stream, row.group, now_ms)
        for names in _sliced(await hw.queues(), size):
            for queue in await self._ask(overview.some_queues(names), gently=gently):
                objects.add_queue(page, store, queue)
        for channel in await self._ask(overview.all_channels(), gently=gently):
            objects.add_channel(page, store, channel)

    async def _streams(
        self, names: list[str], *, gently: bool
    ) -> tuple[list[StreamInfo], list[overview.StreamGroup]]:
        streams = await self._ask(overview.some_streams(names), gently=gently)
        return streams, await self._ask(overview.groups_of(streams), gently=gently)

    async def _ask(self, operation: Operation[T], *, gently: bool) -> T:
        """Ask for some objects, and then let the store serve others."""
        began = self._clock()
        async with asyncio.timeout(_PATIENCE_S):
            found = await self._hw.store.run(operation)
        if gently:
            await asyncio.sleep(_PAUSE * (self._clock() - began))
        return found

    async def _command(self, *words: str) -> list[Any]:
        """Run a command on every server; raises StoreError."""
        try:
            async with asyncio.timeout(_PATIENCE_S):
                return await self._hw.store.command(*words)
        except (redis.RedisError, OSError) as error:
            raise explained(error, self._store) from error

    async def _now_ms(self) -> int:
        seconds, microseconds = (await self._command("TIME"))[0]
        return int(seconds) * 1000 + int(microseconds) // 1000

    async def _add_fsync(self, page: Page) -> None:
        """Add how often the store syncs; of several servers, the weakest."""
        try:
            enabled = await self._command("CONFIG", "GET", "appendonly")
            policies = await self._command("CONFIG", "GET", "appendfsync")
        except StoreError:
            return  # a managed server does not show it
        modes = {
            policy[1].decode() if on[1] == b"yes" else "off"
            for on, policy in zip(enabled, policies, strict=True)
            if on and policy
        }
        weakest = next((mode for mode in _FSYNC_MODES if mode in modes), None)
        if weakest is not None:
            page.add(label_text(store=self._store, mode=weakest), store_fsync=1)

    def _own_page(self) -> bytes:
        """Return what is known without the store, as it is now."""
        page = Page()
        self._operations.add_to(page)
        page.add(
            "",
            scrape_duration_seconds=round(self._took_s, 6),
            series_dropped=self._dropped,
            series_complete=int(not self._dropped),
        )
        page.add(label_text(version=__version__), build_info=1)
        sampled = self._sampled_at > -float("inf")
        age = round(self._clock() - self._sampled_at, 3) if sampled else None
        page.add(label_text(store=self._store), sample_age_seconds=age)
        return b"".join(page.blocks())


def _sliced(items: Iterable[T], size: int) -> Iterator[list[T]]:
    rest = iter(items)
    while some := list(itertools.islice(rest, size)):
        yield some
