"""One sample of a store for all requests: scrapes, pages of the console, its history.

Objects are asked for many in one call, with pauses in between, so that a store of many objects
serves others meanwhile, and so does this process. A request gets the newest sample, and waits only
for the first one, which is made without pauses. A store without requests is not sampled.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

import redis

from headwater.aio_client import AsyncHeadwater
from headwater.errors import HeadwaterError, StoreError
from headwater.ick.types import ChannelStats
from headwater.log.replies import rows
from headwater.log.types import StreamInfo
from headwater.metrics.lag_clock import LagClock
from headwater.queue.types import QueueStats
from headwater.spark.queries.status import QueryStatus, query_statuses
from headwater.store.call import Operation
from headwater.store.doctor import explained
from headwater.views import overview

log = logging.getLogger("headwater.metrics")

T = TypeVar("T")

# The store is sampled in the background as long as there was a request within this time.
ASKED_S: Final = 120.0
# How many objects are asked for in a call; behind it is a pause, of at least so long, and so many
# times as long as the call took.
_SLICE: Final = 100
_GAP_S: Final = 0.25
_PAUSE: Final = 5.0
# While a request waits: this many calls in parallel, to decode some while others arrive.
_SIDE_BY_SIDE: Final = 4
# Names, channels, which cost a call for each shard on a cluster, and queries of Spark, which cost
# some for each stream, are asked for so often.
_SELDOM_S: Final = 10.0
# A store that has not answered by then is down, although its client still tries.
_PATIENCE_S: Final = 5.0
# What was seen longer ago says nothing of now.
_RECENT_S: Final = 30.0
_FSYNC_MODES: Final = ("off", "no", "everysec", "always")


@dataclass(slots=True)
class StoreSample:
    """Where every object of a store stood at about one moment, by its clock.

    ``missing`` is what kept it from being complete: an error of the store, or None. ``at`` is the
    time of this process at which it was complete, ``took_s`` how long that took.
    """

    now_ms: int = 0
    streams: list[StreamInfo] = field(default_factory=list)
    groups: list[overview.StreamGroup] = field(default_factory=list)
    queues: list[QueueStats] = field(default_factory=list)
    channels: list[ChannelStats] = field(default_factory=list)
    queries: list[QueryStatus] = field(default_factory=list)
    missing: Exception | None = None
    at: float = -float("inf")
    took_s: float = 0.0


class StoreWatch:
    """Samples a store while somebody asks for it, as often as whoever asks most often wants."""

    def __init__(self, hw: AsyncHeadwater, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.hw = hw
        self.clock = clock
        self._newest = StoreSample()
        self._good = StoreSample()
        self._followers: list[Callable[[StoreSample], Awaitable[None]]] = []
        self._lag_clock = LagClock()
        self._asked: dict[float, float] = {}
        self._sampling: asyncio.Task[None] | None = None
        self._sampled = asyncio.Event()
        self._names: tuple[float, list[str], list[str]] = (-float("inf"), [], [])
        self._channels: tuple[float, list[ChannelStats]] = (-float("inf"), [])
        self._queries: tuple[float, list[QueryStatus]] = (-float("inf"), [])

    async def newest(self, every_s: float) -> StoreSample:
        """Return the newest sample, whole or not; it is refreshed this often from now on."""
        self.ask(every_s)
        await self._sampled.wait()
        return self._newest

    def ask(self, every_s: float) -> None:
        """Have the sample refreshed this often from now on, without waiting for it."""
        now = self.clock()
        self._asked[every_s] = now
        if now - self._newest.at > every_s and self._sampling is None:
            self._sampling = asyncio.create_task(self._renew())
            self._sampling.add_done_callback(self._over)

    async def whole(self, every_s: float) -> StoreSample:
        """Return the newest sample that is complete; raises the error for which there is none."""
        found = await self.newest(every_s)
        if self._good.missing is None and self._good.at > -float("inf"):
            return self._good
        if isinstance(found.missing, HeadwaterError):
            raise found.missing
        raise TimeoutError(f"{self.hw.store.where} does not answer")

    @property
    def latest(self) -> StoreSample:
        """The newest sample that was complete, without asking for another; empty before one."""
        return self._good

    @property
    def missing(self) -> str | None:
        """Why the store did not answer when it was sampled just now; None when it did."""
        error = self._newest.missing
        if error is None or self.clock() - self._newest.at > _RECENT_S:
            return None
        return str(error) or f"no answer within {_PATIENCE_S:.0f} s"

    def follow(self, use: Callable[[StoreSample], Awaitable[None]]) -> None:
        """Have each new sample given to a function, before it is given to those who ask."""
        self._followers.append(use)

    async def close(self) -> None:
        """Stop sampling."""
        if self._sampling is not None:
            self._sampling.cancel()
            await asyncio.wait([self._sampling])

    def _over(self, task: asyncio.Task[None]) -> None:
        self._sampling = None
        # No request waits for a sample that does not come; the next request starts again.
        self._sampled.set()
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("%s could not be sampled", self.hw.store.where, exc_info=error)

    async def _renew(self) -> None:
        """Sample, and again as long as somebody asks."""
        while True:
            await self.sample_now(gently=self._sampled.is_set())
            now = self.clock()
            self._asked = {s: at for s, at in self._asked.items() if now - at <= ASKED_S}
            if not self._asked:
                return
            every_s = min(self._asked)
            await asyncio.sleep(max(every_s - self._newest.took_s, min(every_s, _GAP_S)))

    async def sample_now(self, *, gently: bool = False) -> StoreSample:
        """Sample the store, without pauses unless ``gently``; returns the sample, whole or not."""
        began = self.clock()
        sample = StoreSample()
        try:
            await self._look_at_objects(sample, gently=gently)
        except (HeadwaterError, TimeoutError) as error:
            why = str(error) or "the store is too slow"
            log.warning("the sample of %s is incomplete: %s", self.hw.store.where, why)
            sample.missing = error
        sample.at = self.clock()
        sample.took_s = sample.at - began
        self._newest = sample
        if sample.missing is None:
            self._good = sample
        for use in self._followers:
            await use(sample)
        self._sampled.set()
        return sample

    async def _look_at_objects(self, sample: StoreSample, *, gently: bool) -> None:
        streams, queues = await self._known_names(gently=gently)
        at_once = 1 if gently else _SIDE_BY_SIDE
        for pairs in _sliced(_paired(streams, queues), at_once):
            asked = [self._ask(self._look(*pair), gently=gently) for pair in pairs]
            for found in await asyncio.gather(*asked):
                sample.streams += found.streams
                sample.groups += found.groups
                sample.queues += found.queues
                sample.now_ms = found.now_ms
        sample.channels = await self._known_channels(gently=gently)
        sample.queries = await self._known_queries(gently=gently)
        # Where objects are apart, or there is none, no reply says what time it is.
        sample.now_ms = sample.now_ms or await self._now_ms()
        sample.streams, sample.groups = self._lag_clock.measured(
            sample.now_ms, sample.streams, sample.groups
        )

    def _look(self, streams: list[str], queues: list[str]) -> Operation[overview.StoreLook]:
        look = overview.look_apart if self._is_apart else overview.look_together
        return look(streams, queues)

    async def _known_names(self, *, gently: bool) -> tuple[list[str], list[str]]:
        listed_at, streams, queues = self._names
        if not gently or self.clock() - listed_at > self._seldom_s:
            async with asyncio.timeout(_PATIENCE_S):
                streams, queues = await self.hw.streams(), await self.hw.queues()
            self._names = (self.clock(), streams, queues)
        return streams, queues

    async def _known_channels(self, *, gently: bool) -> list[ChannelStats]:
        seen_at, channels = self._channels
        if not gently or self.clock() - seen_at > self._seldom_s:
            look = overview.all_channels(apart=self._is_apart)
            channels = await self._ask(look, gently=gently)
            self._channels = (self.clock(), channels)
        return channels

    async def _known_queries(self, *, gently: bool) -> list[QueryStatus]:
        seen_at, queries = self._queries
        if not gently or self.clock() - seen_at > self._seldom_s:
            queries = await self._ask(query_statuses(), gently=gently)
            self._queries = (self.clock(), queries)
        return queries

    @property
    def _is_apart(self) -> bool:
        """Whether objects may be on different servers, so that no call is about two of them."""
        return self.hw.store.kind == "cluster"

    @property
    def _seldom_s(self) -> float:
        """How old names may be: who asks once in a while gets them as they are."""
        return min(_SELDOM_S, 10 * min(self._asked, default=_SELDOM_S))

    async def _ask(self, operation: Operation[T], *, gently: bool) -> T:
        """Ask for some objects, and then let the store serve others."""
        began = self.clock()
        async with asyncio.timeout(_PATIENCE_S):
            found = await self.hw.store.run(operation)
        if gently:
            await asyncio.sleep(max(_PAUSE * (self.clock() - began), _GAP_S))
        return found

    async def command(self, *words: str) -> list[Any]:
        """Run a command on every server of the store; raises StoreError."""
        try:
            async with asyncio.timeout(_PATIENCE_S):
                return await self.hw.store.command(*words)
        except (redis.RedisError, OSError) as error:
            raise explained(error, self.hw.store.where) from error

    async def fsync_mode(self) -> str | None:
        """Return how often the store syncs; of several servers, the weakest; None if not known."""
        try:
            replies = await self.command("CONFIG", "GET", "appendonly", "appendfsync")
        except (StoreError, TimeoutError):
            return None  # a managed server does not show it, and a slow one not in time
        settings = [dict(rows(reply, 2)) for reply in replies]
        modes = {
            one[b"appendfsync"].decode() if one[b"appendonly"] == b"yes" else "off"
            for one in settings
            if len(one) == 2
        }
        return next((mode for mode in _FSYNC_MODES if mode in modes), None)

    async def _now_ms(self) -> int:
        seconds, microseconds = (await self.command("TIME"))[0]
        return int(seconds) * 1000 + int(microseconds) // 1000


def _paired(streams: list[str], queues: list[str]) -> Iterator[tuple[list[str], list[str]]]:
    """Yield names for one call after the other: queues go with streams as long as there are."""
    empty: list[str] = []
    parts = (_sliced(streams, _SLICE), _sliced(queues, _SLICE))
    return itertools.zip_longest(*parts, fillvalue=empty)


def _sliced(items: Iterable[T], size: int) -> Iterator[list[T]]:
    rest = iter(items)
    while some := list(itertools.islice(rest, size)):
        yield some
