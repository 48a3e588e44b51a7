"""Opens what answers the requests of the API in one process: by our own server, or under ASGI."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import Final

from headwater.aio_client import AsyncHeadwater
from headwater.errors import HeadwaterError
from headwater.metrics.alarm_watch import AlarmWatch, FirstSeen
from headwater.metrics.alarms import StoreFacts
from headwater.metrics.exposition import Page
from headwater.metrics.history import CachedHistory, HistoryRecorder, check_history
from headwater.metrics.operations import OperationMetrics
from headwater.metrics.sampler import MAX_SERIES, Extra, Sampler, add_instances, check_series
from headwater.metrics.sweeps import RetentionForecasts, StoreWatch, StreamRates
from headwater.serve.api.calls import Rates, Served, StoreJobs, WatchedStore
from headwater.serve.api.databases import ServedDatabase, open_database
from headwater.serve.api.jobs import Replays, Scrubs
from headwater.serve.api.routes import Router, document
from headwater.serve.api.service import ApiService, Guard
from headwater.serve.api.table import ROUTES
from headwater.serve.api.tails import Tails
from headwater.serve.batching import StreamWrites, TopicWrites
from headwater.serve.http.authorization import Cors, check_local
from headwater.serve.jobs.engine import ServerJobs
from headwater.serve.jobs.letters import LetterJobs
from headwater.serve.tokens import Tokens
from headwater.store.presence import BEAT_S, Presence, program_name
from headwater.timeline.farm.aio_farm import AsyncFarm

# How long a server that ends waits until the store has noted that.
_LEAVE_S: Final = 1.0


@dataclass(frozen=True, slots=True)
class ApiSettings:
    """What is served, and to whom.

    ``requests_per_s`` is what each token may ask for of each process; 0 is no limit. Browsers let
    pages of the ``origins`` ask. ``farm`` has the timelines, ``db`` the outbox. ``max_series`` is
    how many series of objects a page of metrics has at most, ``history`` how many the console has
    in the store; 0 keeps none.
    """

    store_url: str | None
    tokens: Tokens
    read_only: bool = False
    requests_per_s: int = 0
    origins: tuple[str, ...] = ()
    guard: Guard = check_local
    farm: str | None = None
    db: str | None = None
    max_series: int = MAX_SERIES
    history: int = 0

    def check(self) -> None:
        """Check what would fail later; raises InvalidInput, DatabaseUnreachable, ExtraMissing."""
        check_series(self.max_series)
        check_history(self.history)
        if self.origins:
            Cors(self.origins)
        if self.farm is not None:
            AsyncFarm.open(self.farm)
        if self.db is not None:
            with open_database(self.db, self.store_url):
                pass


async def _add_farm(farm: AsyncFarm, page: Page) -> None:
    add_instances(page, await farm.status())


@asynccontextmanager
async def open_farm(farm: str | None) -> AsyncIterator[AsyncFarm | None]:
    """Open a farm in the block, if there is one."""
    if farm is None:
        yield None
        return
    async with AsyncFarm.open(farm) as opened:
        yield opened


@asynccontextmanager
async def open_api(
    settings: ApiSettings,
    hw: AsyncHeadwater,
    writes: StreamWrites,
    metrics: OperationMetrics,
    farm: AsyncFarm | None,
) -> AsyncIterator[ApiService]:
    """Serve a store in the block; at its end no request is under way."""
    with ExitStack() as opened:
        database = None
        if settings.db is not None:
            database = opened.enter_context(open_database(settings.db, settings.store_url))
        async with _answering(settings, hw, writes, metrics, farm, database) as service:
            yield service


@asynccontextmanager
async def _reporting(hw: AsyncHeadwater) -> AsyncIterator[None]:
    """Report this process among those that use the store, as long as the block runs."""
    presence = Presence("server", program_name())

    async def beat() -> None:
        with suppress(HeadwaterError):
            await hw.store.run(presence.beat(), 1.0)

    async def beat_on() -> None:
        while True:
            await asyncio.sleep(BEAT_S)
            await beat()

    # Every client of this server sees it.
    await beat()
    task = asyncio.create_task(beat_on())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait([task])
        # A store that does not answer must not delay the end of the server.
        with suppress(HeadwaterError, TimeoutError):
            async with asyncio.timeout(_LEAVE_S):
                await hw.store.run(presence.leave(), _LEAVE_S)


def _watched(
    settings: ApiSettings,
    hw: AsyncHeadwater,
    metrics: OperationMetrics,
    farm: AsyncFarm | None,
    database: ServedDatabase | None,
) -> WatchedStore:
    sweeps = StoreWatch(hw)
    facts = StoreFacts(sweeps, settings.store_url)
    outbox = None if database is None else database.status
    first_seen = FirstSeen(hw, writes=not settings.read_only)
    alarms = AlarmWatch(sweeps, facts, first_seen, outbox=outbox, farm=farm)
    extras: list[Extra] = [] if database is None else [database.add_metrics]
    if farm is not None:
        extras.append(partial(_add_farm, farm))
    extras.append(alarms.add_metrics)
    return WatchedStore(
        sweeps=sweeps,
        facts=facts,
        alarms=alarms,
        rates=StreamRates(sweeps),
        forecasts=RetentionForecasts(hw),
        history=CachedHistory(hw),
        sampler=Sampler(sweeps, metrics, max_series=settings.max_series, extras=extras),
    )


@asynccontextmanager
async def _answering(
    settings: ApiSettings,
    hw: AsyncHeadwater,
    writes: StreamWrites,
    metrics: OperationMetrics,
    farm: AsyncFarm | None,
    database: ServedDatabase | None,
) -> AsyncIterator[ApiService]:
    tails = Tails(hw, partial(metrics.change, "sse_tails"))
    watched = _watched(settings, hw, metrics, farm, database)
    jobs = ServerJobs(hw)
    service = ApiService(
        Served(
            hw=hw,
            store_url=settings.store_url,
            tokens=settings.tokens,
            openapi=document(ROUTES),
            metrics=metrics,
            writes=writes,
            topic_writes=TopicWrites(hw, writes),
            tails=tails,
            watched=watched,
            jobs=StoreJobs(Scrubs(jobs), LetterJobs(jobs), Replays(jobs)),
            farm=farm,
            database=database,
        ),
        Router(ROUTES),
        read_only=settings.read_only,
        rates=Rates(settings.requests_per_s),
        cors=Cors(settings.origins) if settings.origins else None,
        guard=settings.guard,
    )
    async with AsyncExitStack() as opened:
        opened.push_async_callback(watched.sweeps.close)
        opened.push_async_callback(watched.facts.close)
        opened.push_async_callback(watched.alarms.close)
        if not settings.read_only:
            await opened.enter_async_context(_reporting(hw))
            await opened.enter_async_context(jobs.running())
        if settings.history and not settings.read_only:
            staged = None if database is None else database.staged
            recorder = HistoryRecorder(watched.sweeps, settings.history, staged)
            await opened.enter_async_context(recorder.recording())
        try:
            yield service
        finally:
            service.drain()
            tails.stop()
            await service.close()
