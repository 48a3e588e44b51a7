"""The metrics of a server, of all its processes together, in the format of Prometheus.

The names are Roshi's with the prefix ``headwater_``: a counter ends in ``_count``, a histogram of
times in ``_duration_nanoseconds``. Each process counts in its own part of memory that all share, so
each can return the metrics of all; they outlive a process that is started again.
"""

from __future__ import annotations

import mmap
import os
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from typing import Final

from headwater.metrics.exposition import Page
from headwater.metrics.operations import FARM_COUNTS
from headwater.metrics.sampler import add_instances
from headwater.timeline.metrics import COUNTERS, DURATIONS, RoshiMetrics
from headwater.timeline.records import InstanceStatus

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
