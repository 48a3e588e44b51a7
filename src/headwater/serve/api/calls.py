"""One request of the API: who asks, for what, by which client, how often, and for how long."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

from headwater.kernel.declaring import Scope
from headwater.serve.api.routes import JSON, Route
from headwater.serve.http.authorization import require
from headwater.serve.http.messages import Refused, Request
from headwater.serve.tokens import Grant, Tokens

if TYPE_CHECKING:
    from headwater.aio_client import AsyncHeadwater
    from headwater.metrics.alarm_watch import AlarmWatch
    from headwater.metrics.alarms import StoreFacts
    from headwater.metrics.history import CachedHistory
    from headwater.metrics.operations import OperationMetrics
    from headwater.metrics.sampler import Sampler
    from headwater.metrics.sweeps import RetentionForecasts, StoreWatch, StreamRates
    from headwater.serve.api.databases import ServedDatabase
    from headwater.serve.api.jobs import Replays, Scrubs
    from headwater.serve.api.tails import Tails
    from headwater.serve.batching import StreamWrites, TopicWrites
    from headwater.serve.jobs.letters import LetterJobs
    from headwater.timeline.farm.aio_farm import AsyncFarm


_MOST_HOLDERS: Final = 10_000


class Rates:
    """Lets each holder of a token make this many requests a second, and as many at once; 0: any."""

    def __init__(self, per_s: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._per_s = per_s
        self._clock = clock
        # For each holder the requests that are left, and when that was.
        self._left: dict[str, tuple[float, float]] = {}

    def take(self, grant: Grant) -> None:
        """Count a request; raises Refused, 429, for one too many."""
        if not self._per_s:
            return
        now = self._clock()
        left, since = self._left.get(grant.holder, (float(self._per_s), now))
        left = min(float(self._per_s), left + (now - since) * self._per_s)
        if left < 1:
            raise Refused(
                429, f"this token may make {self._per_s} requests a second here; retry later"
            )
        if len(self._left) >= _MOST_HOLDERS:
            self._left.clear()
        self._left[grant.holder] = (left - 1, now)


# How long a request may go on waiting after its token was revoked.
_LOOK_S: Final = 0.4


class WaitingCalls:
    """The requests of a process that wait for messages, each with the grant of its client."""

    def __init__(self, tokens: Tokens) -> None:
        self._tokens = tokens
        self._grants: dict[asyncio.Task[Any], Grant] = {}
        self._timer: asyncio.TimerHandle | None = None

    def add(self, task: asyncio.Task[Any], grant: Grant) -> None:
        """Watch a request until ``discard``."""
        self._grants[task] = grant
        if self._timer is None and self._tokens.required:
            self._timer = asyncio.get_running_loop().call_later(_LOOK_S, self._look)

    def discard(self, task: asyncio.Task[Any]) -> bool:
        """Forget a request, if it is one of these; returns whether its token was revoked."""
        grant = self._grants.pop(task, None)
        return grant is not None and not self._tokens.still(grant)

    def stop(self) -> None:
        """End all of them, so that their clients ask another server."""
        for task in list(self._grants):
            task.cancel()

    def _look(self) -> None:
        self._timer = None
        for task, grant in list(self._grants.items()):
            if not self._tokens.still(grant):
                task.cancel()
        if self._grants:
            self._timer = asyncio.get_running_loop().call_later(_LOOK_S, self._look)


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
