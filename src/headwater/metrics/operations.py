"""Counts what a process does: an Instrument whose counts all processes of a server share.

Each process counts in its own part of memory, so that no count waits for another process, and a
scrape that reaches any of them returns the sum of all. What a process counted stays when another
one takes its place. Rows are the same in all processes of a release: they come from the names of
the server functions. What has no row is counted as ``other``.
"""

from __future__ import annotations

import itertools
import mmap
import os
import re
import threading
from bisect import bisect_left
from functools import cache
from typing import Any, Final, get_args

from headwater.kernel.instrument import Event, Outcome
from headwater.metrics.exposition import Page, histogram_lines, label_text
from headwater.store.faults import name_of
from headwater.store.library import library

# Upper ends of the buckets, in seconds.
BOUNDS: Final = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.1, 0.5, 2.5, 10.0)
OTHER: Final = "other"
# Why a call is sent again: what the store says of a connection, and codes of servers.
REASONS: Final = (
    *("unreachable", "disconnected", "library missing", "LOADING", "MOVED", "ASK", "TRYAGAIN"),
    *("CLUSTERDOWN", "READONLY", "MASTERDOWN", "BUSY", OTHER),
)

# Statuses that a server of ours answers with.
STATUSES: Final = (
    *(200, 201, 202, 204, 206, 304, 400, 401, 403, 404, 405, 406, 408, 409, 412, 413, 415, 422),
    *(429, 431, 500, 501, 502, 503, 504),
)

# What goes up and down, of each process.
LEVELS: Final = ("http_connections", "sse_tails", "resp_connections", "resp_blocked")
# What farms of timelines count, and the metric that it is.
FARM_COUNTS: Final = {
    "farm.repair_write_success": "farm_repairs_total",
    "farm.repair_write_failure": "farm_repair_failures_total",
    "farm.select_divergent_keys": "farm_divergent_keys_total",
}
_COUNTED: Final = {**FARM_COUNTS, "store.restart": "embedded_restarts_total"}

_OUTCOMES: Final[tuple[Outcome, ...]] = get_args(Outcome)
_UNKNOWN: Final = _OUTCOMES.index("unknown")
_READS: Final = ("stream", "group", "topic", "queue", "channel", "ick", "store")
_PARTS: Final = ("store.many", "worker.handle", "timed.run", "streamer.batch", "consumer.batch")
_FARMS: Final = ("farm.insert", "farm.delete", "farm.select", "farm.score", "farm.repair")
# Of each operation and outcome: its buckets, one for what is beyond, and the sum in nanoseconds.
_WIDTH: Final = len(BOUNDS) + 2
# Of each operation: its outcomes, then messages and bytes.
_ROW: Final = len(_OUTCOMES) * _WIDTH + 2


@cache
def operation_names() -> tuple[str, ...]:
    """Return the operations that have a row; the last one stands for all others."""
    functions = sorted(set(re.findall(r"hw\d+_(\w+)'", library().source)))
    looks = (f"{kind}.{verb}" for kind in _READS for verb in ("look", "wait"))
    return (*dict.fromkeys((*map(name_of, functions), *looks, *_PARTS, *_FARMS)), OTHER)


def _places() -> int:
    further = len(REASONS) + len(STATUSES) + 1 + len(LEVELS) + len(_COUNTED)
    return len(operation_names()) * _ROW + further


def shared_counts(processes: int = 1, file: int = -1) -> memoryview[int]:
    """Return memory for the counts of this many processes.

    They share it by a ``file``, a descriptor, which grows to the size that is needed; without one
    it is that of this process alone.
    """
    size = processes * _places() * 8
    if file >= 0 and os.fstat(file).st_size < size:
        os.ftruncate(file, size)
    return memoryview(mmap.mmap(file, size)).cast("q")


class OperationMetrics:
    """An Instrument that counts operations by name and outcome, and times them."""

    def __init__(self, memory: memoryview[int] | None = None, process: int = 0) -> None:
        places = _places()
        self._all = shared_counts() if memory is None else memory
        self._own = self._all[process * places : (process + 1) * places]
        self._rows = {name: at * _ROW for at, name in enumerate(operation_names())}
        self._outcomes = {name: at * _WIDTH for at, name in enumerate(_OUTCOMES)}
        free = itertools.count(len(self._rows) * _ROW)
        self._reasons = dict(zip(REASONS, free, strict=False))
        self._statuses = dict(zip((*map(str, STATUSES), OTHER), free, strict=False))
        self._levels = dict(zip(LEVELS, free, strict=False))
        self._counted = dict(zip(_COUNTED, free, strict=False))
        # Nothing is open yet; the process that had this place before may have died with operations
        # open.
        for place in self._levels.values():
            self._own[place] = 0
        # Threads share the part of their process: adding to a count is two steps.
        self._lock = threading.Lock()

    def begin(self, name: str, object: str) -> None:
        """Do nothing: all is known at the end."""

    def end(self, token: Any, event: Event) -> None:  # noqa: ARG002
        """Count an operation that is over."""
        row = self._rows.get(event.name, self._rows[OTHER])
        place = row + self._outcomes[event.outcome]
        bucket = place + bisect_left(BOUNDS, event.seconds)
        own = self._own
        with self._lock:
            own[bucket] += 1
            own[place + _WIDTH - 1] += round(event.seconds * 1e9)
            if event.messages:
                own[row + _ROW - 2] += event.messages
            if event.bytes:
                own[row + _ROW - 1] += event.bytes

    def count(self, name: str, object: str, n: int = 1) -> None:
        """Count a retry by its reason, what farms repair, and restarts; no other count is shown."""
        if name == "store.retry":
            place = self._reasons.get(object, self._reasons[OTHER])
        elif name in self._counted:
            place = self._counted[name]
        else:
            return
        with self._lock:
            self._own[place] += n

    def change(self, level: str, n: int) -> None:
        """Let one of LEVELS go up by n, or down."""
        with self._lock:
            self._own[self._levels[level]] += n

    def count_request(self, status: int) -> None:
        """Count a request by the status it was answered with."""
        with self._lock:
            self._own[self._statuses.get(str(status), self._statuses[OTHER])] += 1

    def counted(self, name: str) -> int:
        """Return how often all processes have counted something of farms or of stores."""
        place, places = self._counted[name], _places()
        return sum(self._all[at + place] for at in range(0, len(self._all), places))

    def add_to(self, page: Page, others: memoryview[int] | None = None) -> None:
        """Add the counts of all processes to a page; operations that never happened are left out.

        What is counted without a label is there from the beginning: Prometheus does not notice that
        a count has grown when it first appears as 1.

        ``others`` is memory of further processes, whose counts are added to these.
        """
        places = _places()
        memories = (self._all,) if others is None else (self._all, others)
        parts = [
            memory[at : at + places] for memory in memories for at in range(0, len(memory), places)
        ]
        totals = [sum(counts) for counts in zip(*parts, strict=True)]
        for name, row in self._rows.items():
            _add_operation(page, name, totals[row : row + _ROW])
        for label, metric, places_of in (
            ("why", "retries_total", self._reasons),
            ("code", "http_requests_total", self._statuses),
        ):
            for value, place in places_of.items():
                if totals[place]:
                    page.add(label_text(**{label: value}), **{metric: totals[place]})
        for level, place in self._levels.items():
            page.add("", **{level: totals[place]})
        for counted, place in self._counted.items():
            page.add("", **{_COUNTED[counted]: totals[place]})


def _add_operation(page: Page, name: str, row: list[int]) -> None:
    if not any(row):
        return
    for at, outcome in enumerate(_OUTCOMES):
        counts = row[at * _WIDTH : (at + 1) * _WIDTH]
        if any(counts):
            labels = label_text(op=name, outcome=outcome)
            lines = histogram_lines(labels, BOUNDS, counts[:-1], counts[-1] / 1e9)
            page.add_lines("operation_duration_seconds", lines)
    labels = label_text(op=name)
    page.add(
        labels, operation_messages_total=row[-2] or None, operation_bytes_total=row[-1] or None
    )
    unknown = sum(row[_UNKNOWN * _WIDTH : (_UNKNOWN + 1) * _WIDTH - 1])
    page.add(labels, outcome_unknown_total=unknown)
