"""Processes whose workers obey limits, and note when each handler begins and ends, on one page.

A note is one line: "begin key name process time" or "end ...". Appending is atomic, so that the
page has them in the order in which they happened.
"""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from typing import Any

import headwater
from headwater import Limits, QueueWorker, Worker, aio
from headwater.aio import AsyncQueueWorker, AsyncWorker
from headwater.kernel.failures import START_MS
from tests.support.zygote import serve

# Long enough that a process on a busy machine always extends what it holds.
ACK_MS = 4000
CONCURRENCY = 4
GROUP_LIMITS = Limits(max_in_flight=6, max_in_flight_per_key=2)
QUEUE_LIMITS = Limits(max_in_flight=5, rate="60/s burst 5")


class LimitPage:
    """A file on which every handler notes when it begins and ends."""

    def __init__(self, path: str) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def note(self, verb: str, key: str, name: object) -> None:
        line = f"{verb} {key or '-'} {name} {os.getpid()} {time.time():.6f}\n"
        os.write(self._file, line.encode())


def _failing(attempt: int, name: object) -> bool:
    return attempt == 1 and str(name).endswith("7")


def work(order: dict[str, Any]) -> None:
    group_page, queue_page = (LimitPage(order[name]) for name in ("group_page", "queue_page"))

    def handle(message: Any) -> None:
        group_page.note("begin", message.tag, message.offset)
        try:
            time.sleep(0.01)
            if _failing(message.attempt, message.offset):
                raise ValueError("not yet")
        finally:
            group_page.note("end", message.tag, message.offset)

    def pop(delivery: Any) -> None:
        queue_page.note("begin", "", delivery.id)
        time.sleep(0.01)
        queue_page.note("end", "", delivery.id)

    with headwater.connect(order["store"], wait_ms=START_MS) as hw:
        options: dict[str, Any] = {"ack_ms": ACK_MS, "concurrency": CONCURRENCY, "backoff_ms": 20}
        workers: list[Worker | QueueWorker] = [
            Worker(hw.stream(order["name"]).group("g"), handle, limits=GROUP_LIMITS, **options),
            QueueWorker(hw.queue(order["name"]), pop, limits=QUEUE_LIMITS, **options),
        ]
        threads = [threading.Thread(target=worker.run) for worker in workers]
        signal.signal(signal.SIGTERM, lambda *_: [worker.stop() for worker in workers])
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()


async def work_async(order: dict[str, Any]) -> None:
    group_page, queue_page = (LimitPage(order[name]) for name in ("group_page", "queue_page"))

    async def handle(message: Any) -> None:
        group_page.note("begin", message.tag, message.offset)
        try:
            await asyncio.sleep(0.01)
            if _failing(message.attempt, message.offset):
                raise ValueError("not yet")
        finally:
            group_page.note("end", message.tag, message.offset)

    async def pop(delivery: Any) -> None:
        queue_page.note("begin", "", delivery.id)
        await asyncio.sleep(0.01)
        queue_page.note("end", "", delivery.id)

    async with aio.connect(order["store"], wait_ms=START_MS) as hw:
        options: dict[str, Any] = {"ack_ms": ACK_MS, "concurrency": CONCURRENCY, "backoff_ms": 20}
        group, queue = hw.stream(order["name"]).group("g"), hw.queue(order["name"])
        workers: list[AsyncWorker | AsyncQueueWorker] = [
            AsyncWorker(group, handle, limits=GROUP_LIMITS, **options),
            AsyncQueueWorker(queue, pop, limits=QUEUE_LIMITS, **options),
        ]
        asyncio.get_running_loop().add_signal_handler(
            signal.SIGTERM, lambda: [one.stop() for one in workers]
        )
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
        await asyncio.gather(*(worker.run() for worker in workers))


def run(order: dict[str, Any]) -> None:
    if order["manner"] == "async":
        asyncio.run(work_async(order))
    else:
        work(order)


if __name__ == "__main__":
    serve(run)
