"""Ordered and limited work against plain work, in one process: 1,000 tags, several handlers."""

from __future__ import annotations

import threading
import time

import headwater
from bench.harness import Pair, Row, interleave
from headwater import Limits, Stream

TAGS = 1000
BATCH = 1000
# What a handler waits for: a database, another service.
WAITS_S = 0.001


def ordered_work(pair: Pair, messages: int) -> list[Row]:
    """Measure a worker that keeps the order of each tag against one that does not.

    With an empty handler all that is left is what the order itself costs.
    """
    stream = _written(pair, messages)
    rows = []
    for title, count, threads, waits_s, least, aim in (
        ("empty handler", messages, 1, 0.0, 0.5, 0.75),
        ("handler of 1 ms in 8 threads", messages // 5, 8, WAITS_S, 0.5, 0.9),
    ):
        figures = [
            Work(stream, pair, count, threads, waits_s, ordered=ordered).rate
            for ordered in (True, False)
        ]
        a, b = interleave(figures[0], figures[1], pair.rounds)
        name = f"worker in order, 1,000 tags, {title} / without order, messages/s"
        rows.append(Row.of(name, pair.fsync, a, b, least, aim))
    stream.delete()
    return rows


def limited_work(pair: Pair, messages: int) -> list[Row]:
    """Measure a worker whose group has limits, which do not bind, against one without."""
    stream = _written(pair, messages)
    in_all = Limits(max_in_flight=messages, rate="1000000/s burst 100000")
    per_key = Limits(max_in_flight_per_key=100, rate_per_key="10000/s burst 1000")
    rows = []
    for title, limits, count, threads, waits_s, least, aim in (
        ("in all, empty handler", in_all, messages, 1, 0.0, 0.5, 0.8),
        ("per key of 1,000, empty handler", per_key, messages, 1, 0.0, 0, 0),
        ("per key, handler of 1 ms in 8 threads", per_key, messages // 5, 8, WAITS_S, 0.5, 0.9),
    ):
        figures = [
            Work(stream, pair, count, threads, waits_s, limits=each).rate for each in (limits, None)
        ]
        a, b = interleave(figures[0], figures[1], pair.rounds)
        name = f"worker with limits {title} / without limits, messages/s"
        rows.append(Row.of(name, pair.fsync, a, b, least, aim))
    stream.delete()
    return rows


def _written(pair: Pair, messages: int) -> Stream:
    """Return a stream of messages whose tags come in no order, and again after a while."""
    stream = pair.ours.stream(pair.name())
    for at in range(0, messages, BATCH):
        stream.write_many([(f"tag-{n * 7919 % TAGS}", b"x" * 130) for n in range(at, at + BATCH)])
    return stream


class Work:
    """What a worker does with the first messages of a stream."""

    def __init__(
        self,
        stream: Stream,
        pair: Pair,
        count: int,
        threads: int,
        waits_s: float,
        *,
        ordered: bool = False,
        limits: Limits | None = None,
    ) -> None:
        self._stream, self._pair, self._ordered, self._limits = stream, pair, ordered, limits
        self._count, self._threads, self._waits_s = count, threads, waits_s

    def rate(self) -> float:
        """Handle them by a new group; returns how many a second, from the first on."""
        group = self._stream.group(self._pair.name())
        left, began, lock = self._count, 0.0, threading.Lock()

        def handle(_: headwater.Message) -> None:
            nonlocal left, began
            began = began or time.perf_counter()
            if self._waits_s:
                time.sleep(self._waits_s)
            with lock:
                left -= 1
                if left == 0:
                    took.append(time.perf_counter() - began)
                    worker.stop()

        took: list[float] = []
        worker = headwater.Worker(
            group,
            handle,
            concurrency=self._threads,
            ordered=self._ordered,
            limits=self._limits,
        )
        worker.run()
        group.remove()
        return self._count / took[0]
