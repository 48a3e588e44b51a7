"""The metrics of a server, of all its processes together, in the format of Prometheus.

The names are Roshi's with the prefix ``headwater_``: a counter ends in ``_count``, a histogram of
times in ``_duration_nanoseconds``. Each process counts in its own part of memory that all share, so
each can return the metrics of all; they outlive a process that is started again.
"""

from __future__ import annotations

import mmap
import os
import time
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any, Final, Protocol, TypeAlias

from headwater.errors import HeadwaterError, InvalidInput
from headwater.kernel.declaring import Scope
from headwater.metrics.exposition import CONTENT_TYPE, Page
from headwater.metrics.operations import FARM_COUNTS
from headwater.metrics.sampler import add_instances
from headwater.serve.batching import Batcher, BatchPart
from headwater.serve.http.authorization import LOOKED_AT, authorize, check_local
from headwater.serve.http.messages import (
    Admitted,
    Refused,
    Reply,
    Request,
    StreamedReply,
    own_fault,
)
from headwater.serve.timeline import lenient as roshis
from headwater.serve.timeline import wire
from headwater.serve.tokens import Tokens
from headwater.timeline.cluster import Window
from headwater.timeline.farm.aio_farm import AsyncFarm
from headwater.timeline.farm.reading import Answer, Background
from headwater.timeline.metrics import COUNTERS, DURATIONS, RoshiMetrics
from headwater.timeline.records import InstanceStatus, Spelled, Written

PREFIX: Final = "headwater_"
STATUSES: Final = (200, 400, 401, 403, 404, 405, 408, 413, 431, 500, 503)
# Upper ends of the buckets of a histogram, in seconds.
BOUNDS: Final = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0)

_REQUESTS: Final = len(COUNTERS)
_TIMES: Final = _REQUESTS + len(STATUSES)
# Of each histogram: its buckets, one for what is beyond, and the sum in nanoseconds.
_WIDTH: Final = len(BOUNDS) + 2
_PLACES: Final = _TIMES + _WIDTH * len(DURATIONS)


class ServerMetrics(RoshiMetrics):
    """The metrics of one process, and a view of those of all processes of its server."""

    def __init__(self, memory: memoryview[int], process: int) -> None:
        self._all = memory
        self._own = memory[process * _PLACES : (process + 1) * _PLACES]
        self._counters = {name: place for place, name in enumerate(COUNTERS)}
        self._statuses = {code: _REQUESTS + place for place, code in enumerate(STATUSES)}
        self._times = {name: _TIMES + _WIDTH * place for place, name in enumerate(DURATIONS)}

    def add(self, counter: str, n: int) -> None:
        """Count one of COUNTERS up by n."""
        self._own[self._counters[counter]] += n

    def observe(self, duration: str, seconds: float) -> None:
        """Add a time to the histogram of one of DURATIONS."""
        place = self._times[duration]
        self._own[place + bisect_left(BOUNDS, seconds)] += 1
        self._own[place + _WIDTH - 1] += round(seconds * 1e9)

    def count_request(self, status: int) -> None:
        """Count a request by the status it was answered with."""
        self._own[self._statuses[status]] += 1

    def text(self, instances: Iterable[InstanceStatus] = ()) -> str:
        """Return the metrics of all processes as Prometheus reads them, and which instances serve.

        What every server says of a farm has the same names here, so that dashboards and alerts
        know it.
        """
        totals = [sum(self._all[place::_PLACES]) for place in range(_PLACES)]
        own = "\n".join((*_counters(totals), *_requests(totals), *_histograms(totals), ""))
        page = Page()
        add_instances(page, instances)
        for name, metric in FARM_COUNTS.items():
            page.add("", **{metric: totals[self._counters[name.removeprefix("farm.")]]})
        return own + page.text()


def shared_memory(processes: int, file: int = -1) -> memoryview[int]:
    """Return memory for the metrics of this many processes, which they share by a file."""
    size = processes * _PLACES * 8
    if file >= 0 and os.fstat(file).st_size < size:
        os.ftruncate(file, size)
    return memoryview(mmap.mmap(file, size)).cast("q")


def _counters(totals: list[int]) -> Iterator[str]:
    for place, name in enumerate(COUNTERS):
        full = f"{PREFIX}{name.removesuffix('_count')}_count"
        yield f"# TYPE {full} counter"
        yield f"{full} {totals[place]}"


def _requests(totals: list[int]) -> Iterator[str]:
    full = f"{PREFIX}http_request_count"
    yield f"# TYPE {full} counter"
    for place, code in enumerate(STATUSES, _REQUESTS):
        yield f'{full}{{code="{code}"}} {totals[place]:.0f}'


def _histograms(totals: list[int]) -> Iterator[str]:
    for at, name in enumerate(DURATIONS):
        full = f"{PREFIX}{name}_nanoseconds"
        place = _TIMES + _WIDTH * at
        yield f"# TYPE {full} histogram"
        seen = 0
        for bound, count in zip(BOUNDS, totals[place:], strict=False):
            seen += count
            yield f'{full}_bucket{{le="{round(bound * 1e9)}"}} {seen:.0f}'
        seen += totals[place + len(BOUNDS)]
        yield f'{full}_bucket{{le="+Inf"}} {seen:.0f}'
        yield f"{full}_sum {totals[place + _WIDTH - 1]}"
        yield f"{full}_count {seen}"


# ── Service ───────────────────────────────────────────────────────────────────────────────────────
# What the server answers to a request: its route, its token, and what the farm returns.


Answered: TypeAlias = Callable[[Reply], None]

_WRITES: Final = {"insert": "inserted", "delete": "deleted"}
# Whether the server is alive may be asked by everybody.
_SCOPES: Final = {
    "insert": Scope.WRITE,
    "delete": Scope.WRITE,
    "select": Scope.READ,
    "metrics": Scope.READ,
    "health": None,
}


class RequestReading(Protocol):
    """How requests are read: strictly, or as Roshi does."""

    def route(self, method: str, path: str) -> str:
        """Return what is asked for; raises Refused."""

    def read_tuples(self, body: bytes | bytearray) -> list[Spelled]:
        """Read the body of an insert or delete; raises InvalidInput, or Refused."""

    def read_query(self, text: str) -> wire.SelectParameters:
        """Read the query of a select; raises InvalidInput."""

    def read_keys(
        self, body: bytes | bytearray, query: wire.SelectParameters, max_size: int
    ) -> list[bytes]:
        """Read which keys are asked for; raises InvalidInput, or Refused."""


class Service:
    """Answers requests out of a farm; a Handler of HTTP."""

    def __init__(
        self, farm: AsyncFarm, metrics: ServerMetrics, tokens: Tokens, *, lenient: bool = False
    ) -> None:
        self._farm = farm
        self._reading: RequestReading = roshis if lenient else wire
        self._metrics = metrics
        self._tokens = tokens
        self._admitted = {
            known: {action: Admitted((action, known), known) for action in _SCOPES}
            for known in (True, False)
        }
        self._writes: dict[str, Batcher[Spelled, Written]] = {
            verb: Batcher(partial(farm.write, verb)) for verb in _WRITES
        }
        self._selects: dict[Window, Batcher[bytes, Answer]] = {}
        # Scrapes of one moment ask the instances once.
        self._status: Batcher[None, list[InstanceStatus]] = Batcher(lambda _: farm.status())
        self._background = Background()

    @property
    def needs_token(self) -> bool:
        """Whether a client is anonymous until it shows a token."""
        return self._tokens.required

    @property
    def headers(self) -> frozenset[bytes]:
        """The headers that it looks at, by which it knows requests of pages."""
        return LOOKED_AT

    def admit(self, method: str, path: str, authorization: str) -> Admitted:
        """Decide on a request by its head: its route and its token; raises Refused."""
        action = self._reading.route(method, path)
        known = authorize(self._tokens, authorization, _SCOPES[action]) is not None
        return self._admitted[known][action]

    def handle(self, request: Request, answer: Answered) -> None:
        """Answer a request that was admitted, at once or later."""
        action, known = request.action
        try:
            if not self.needs_token:
                check_local(request.headers, None)
            if action in _WRITES:
                self._write(action, request, answer)
            elif action == "select":
                self._select(request, answer)
            elif action == "metrics":
                self._status.add(BatchPart((None,), partial(self._show_metrics, answer)))
            else:
                self._background.start(self._answer_health(answer, known=known))
        except Refused as refused:
            answer(self.refuse(refused))
        except InvalidInput as error:
            answer(wire.failed(400, str(error)))

    def refuse(self, refused: Refused) -> Reply:
        """Return the reply to a request that is refused."""
        return wire.failed(refused.status, str(refused), refused.headers, close=refused.close)

    def count(self, reply: Reply | StreamedReply) -> None:
        """Count a request that is answered, whether or not its client is still there."""
        self._metrics.count_request(reply.status)

    def _write(self, verb: str, request: Request, answer: Answered) -> None:
        began = time.perf_counter()
        tuples = self._reading.read_tuples(request.body)

        def done(result: Written | Exception, _at: int) -> None:
            if isinstance(result, Exception):
                answer(self._failed(result))
            else:
                answer(wire.written(_WRITES[verb], len(tuples), time.perf_counter() - began))

        self._writes[verb].add(BatchPart(tuples, done))

    def _select(self, request: Request, answer: Answered) -> None:
        began = time.perf_counter()
        query = self._reading.read_query(request.query)
        keys = self._reading.read_keys(request.body, query, self._farm.max_size)
        if query.limit < 1:
            answer(wire.selected(query, keys, Answer.empty(), time.perf_counter() - began))
            return

        def done(result: Answer | Exception, _at: int) -> None:
            if isinstance(result, Exception):
                answer(self._failed(result))
            else:
                answer(wire.selected(query, keys, result, time.perf_counter() - began))

        batcher = self._selects.get(query.window)
        if batcher is None:
            self._forget_idle()
            batcher = Batcher(partial(self._farm.read, window=query.window))
            self._selects[query.window] = batcher
        batcher.add(BatchPart(keys, done))

    def _forget_idle(self) -> None:
        """Drop the batchers of windows that nobody asks for any more."""
        if len(self._selects) > 100:
            self._selects = {w: g for w, g in self._selects.items() if not g.idle}

    def _show_metrics(
        self, answer: Answered, found: list[InstanceStatus] | Exception, _at: int
    ) -> None:
        """Answer with the metrics; what was counted is shown whether or not instances answer."""
        instances = [] if isinstance(found, Exception) else found
        answer(Reply(200, self._metrics.text(instances).encode(), CONTENT_TYPE))

    async def _answer_health(self, answer: Answered, *, known: bool) -> None:
        """Answer whether instances serve; the server is healthy as long as one of them does.

        Only clients that are ``known`` learn which instances there are.
        """
        try:
            found = await self._farm.status()
            serving = sum(instance.up for instance in found)
            status = "ok" if serving == len(found) else "degraded" if serving else "down"
            facts: dict[str, Any] = {"status": status}
            if known:
                facts["instances"] = [
                    {"cluster": one.cluster, "instance": one.instance, "up": one.up}
                    for one in found
                ]
            answer(wire.document(200 if serving else 503, facts))
        except Exception as error:  # noqa: BLE001  whatever it is, the client waits for an answer
            answer(self._failed(error))

    def _failed(self, error: Exception) -> Reply:
        """Return the reply to a failure; one that nobody foresaw is shown in the log only."""
        if isinstance(error, HeadwaterError):
            return wire.failed(500, str(error))
        return self.refuse(own_fault(error))
