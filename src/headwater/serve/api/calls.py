"""One request of the API as its handler sees it: who asks, for what, and by which client."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from headwater.kernel.declaring import Scope
from headwater.serve.api.routes import JSON, Route
from headwater.serve.http.authorization import require
from headwater.serve.http.messages import Request
from headwater.serve.tokens import Grant

if TYPE_CHECKING:
    from headwater.aio_client import AsyncHeadwater
    from headwater.metrics.alarm_watch import AlarmWatch
    from headwater.metrics.alarms import StoreFacts
    from headwater.metrics.history import CachedHistory
    from headwater.metrics.operations import OperationMetrics
    from headwater.metrics.retention_forecasts import RetentionForecasts
    from headwater.metrics.sampler import Sampler
    from headwater.metrics.sweeps import StoreWatch, StreamRates
    from headwater.serve.api.databases import ServedDatabase
    from headwater.serve.api.letter_jobs import LetterJobs
    from headwater.serve.api.replays import Replays
    from headwater.serve.api.scrubs import Scrubs
    from headwater.serve.api.tails import Tails
    from headwater.serve.batching import StreamWrites, TopicWrites
    from headwater.serve.tokens import Tokens
    from headwater.timeline.farm.aio_farm import AsyncFarm


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchedStore:
    """What a process knows of its store by looking at it now and then, for all that ask."""

    sweeps: StoreWatch
    facts: StoreFacts
    alarms: AlarmWatch
    rates: StreamRates
    forecasts: RetentionForecasts
    history: CachedHistory
    sampler: Sampler


@dataclass(frozen=True, slots=True)
class StoreJobs:
    """The kinds of jobs that requests begin."""

    scrubs: Scrubs
    letters: LetterJobs
    replays: Replays


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """What a process serves: the client of its store, and what its requests share.

    ``farm`` and ``database`` are there when the server was given them.
    """

    hw: AsyncHeadwater
    store_url: str | None
    tokens: Tokens
    openapi: bytes
    metrics: OperationMetrics
    writes: StreamWrites
    topic_writes: TopicWrites
    tails: Tails
    watched: WatchedStore
    jobs: StoreJobs
    farm: AsyncFarm | None
    database: ServedDatabase | None


@dataclass(frozen=True, slots=True)
class ApiCall:
    """A request that was admitted; ``query`` and ``body`` are of the types of its route.

    ``accepted`` is the media type in which it is answered. ``names`` are those of its path.
    """

    served: Served
    route: Route
    grant: Grant
    names: tuple[str, ...]
    query: Any
    body: Any
    accepted: str
    request: Request
    id: str

    @property
    def sent(self) -> str:
        """The media type of the body."""
        return media_type((self.request.headers or {}).get(b"content-type"))

    @property
    def hw(self) -> AsyncHeadwater:
        """The client of the store."""
        return self.served.hw

    @property
    def name(self) -> str:
        """The name of the object that the request is about."""
        return self.names[0]

    @property
    def waits(self) -> bool:
        """Whether it waits for a first message; then it ends when its client is gone."""
        return any(getattr(asked, "block_ms", 0) for asked in (self.query, self.body))

    def header(self, name: bytes) -> str | None:
        """Return a header of the request, or None."""
        found = (self.request.headers or {}).get(name)
        return None if found is None else found.decode("latin-1")

    def require(self, needed: Scope, name: str) -> None:
        """Check a further name that the request concerns; raises Refused, 403."""
        require(self.grant, needed, name)


# Most clients send few media types, again and again.
@lru_cache(maxsize=64)
def media_type(header: bytes | None) -> str:
    """Return the media type that a header names, without its parameters; JSON without one."""
    return (header or b"").decode("latin-1").partition(";")[0].strip().lower() or JSON
