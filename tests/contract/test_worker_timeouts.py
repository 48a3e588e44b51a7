"""Time limits of handlers: past it a handler is stopped or left behind, and its message fails."""

from __future__ import annotations

import asyncio
import logging
import threading
from typing import Any

import pytest

import headwater
from headwater import HandlerTimeout, InvalidInput, Queue, QueueWorker, aio
from headwater.aio import AsyncWorker
from tests.support.blocking import Loop
from tests.support.entries import entries
from tests.support.servers import until
from tests.support.stores import Stores
from tests.support.workers import Crew, all_done, at_work


class StuckOnce:
    """A handler that hangs the first time, until it is let go; ``tried`` has all attempts."""

    def __init__(self) -> None:
        self.tried: list[tuple[Any, int]] = []
        self.free = threading.Event()

    def __call__(self, item: Any) -> None:
        self.tried.append((item.value, item.attempt))
        if item.value == b"stuck" and item.attempt == 1:
            assert self.free.wait(60)


@pytest.mark.parametrize("timeout_ms", [0, -1, "30s", 1.5])
def test_a_time_limit_that_cannot_be_meant_is_refused(
    crew: Crew, name: str, timeout_ms: Any
) -> None:
    with pytest.raises((InvalidInput, TypeError)):
        crew.worker(crew.hw.stream(name), print, timeout_ms=timeout_ms)
    with pytest.raises((InvalidInput, TypeError)):
        crew.queue_worker(crew.hw.queue(name), print, timeout_ms=timeout_ms)


def test_a_message_of_a_stuck_handler_is_retried_while_others_continue(
    crew: Crew, name: str
) -> None:
    stream = crew.hw.stream(name)
    stream.write("a", b"stuck")
    stream.write_many(entries(6))
    handler = StuckOnce()
    worker = crew.worker(stream, handler, concurrency=1, timeout_ms=1500, backoff_ms=1)
    try:
        with at_work(worker):
            until(all_done(stream.group("g"), 7))
        assert [attempt for value, attempt in handler.tried if value == b"stuck"] == [1, 2]
        assert len(handler.tried) == 8, "the others were handled once"
    finally:
        handler.free.set()


def test_a_message_whose_handlers_are_stuck_is_buried_with_that_cause(
    stores: Stores, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    free = threading.Event()
    with headwater.connect(stores.url("plain")) as hw:
        queue = hw.queue(name)
        queue.push(b"stuck")

        def handler(_: Any) -> None:
            assert free.wait(60)

        worker = QueueWorker(
            queue, handler, concurrency=1, timeout_ms=50, max_attempts=2, backoff_ms=1
        )
        with caplog.at_level(logging.WARNING, "headwater.workers"), at_work(worker):
            until(lambda: queue.stats().dead == 1)
            # A worker that ends does not wait for threads that it has given up.
        left_behind = [thread for thread in threading.enumerate() if "handler" in thread.name]
        letter = queue.dead()[0]
        assert (letter.attempt, letter.cause and letter.cause.type) == (2, "HandlerTimeout")
        assert len(left_behind) >= 2
        assert caplog.text.count("a thread cannot be stopped") == 2
        free.set()
        for thread in left_behind:
            thread.join(60)
        assert queue.stats().dead == 1, "what they returned later counts for nothing"


def test_an_async_handler_past_its_time_is_cancelled(stores: Stores, name: str, loop: Loop) -> None:
    cancelled: list[int] = []
    done = asyncio.Event()

    async def handler(message: Any) -> None:
        try:
            if message.attempt == 1:
                await asyncio.Event().wait()
            done.set()
        except asyncio.CancelledError:
            cancelled.append(message.attempt)
            raise

    async def work() -> headwater.GroupInfo:
        async with await aio.connect(stores.url("plain")) as hw:
            stream = hw.stream(name)
            await stream.write("a", b"1")
            worker = AsyncWorker(stream.group("g"), handler, timeout_ms=50, backoff_ms=1)
            running = asyncio.create_task(worker.run())
            await asyncio.wait_for(done.wait(), 60)
            worker.stop()
            await running
            return await stream.group("g").info()

    assert loop.wait(work()).ack_offset == 2
    assert cancelled == [1]


def test_an_error_of_a_handler_is_its_own_though_it_says_timeout(crew: Crew, name: str) -> None:
    queue: Queue = crew.hw.queue(name)
    queue.push(b"1")

    def handler(_: Any) -> None:
        raise TimeoutError("the mail server is away")

    with at_work(crew.queue_worker(queue, handler, timeout_ms=60_000, max_attempts=1)):
        until(lambda: queue.stats().dead == 1)
    cause = queue.dead()[0].cause
    assert cause is not None
    assert str(cause) == "TimeoutError: the mail server is away"


def test_a_handler_may_take_many_deadlines_as_long_as_it_has_no_limit(
    crew: Crew, name: str
) -> None:
    stream = crew.hw.stream(name)
    stream.write_many(entries(3))
    free, begun = threading.Event(), []

    def handler(message: Any) -> None:
        begun.append(message.offset)
        assert free.wait(60)

    with at_work(crew.worker(stream, handler, ack_ms=2000, concurrency=4)):
        until(lambda: len(begun) == 3)
        # Somebody else would get them as soon as a deadline is over.
        assert stream.group("g").read(3, ack_ms=1000, block_ms=5000) == []
        free.set()
        until(all_done(stream.group("g"), 3))
    assert sorted(begun) == [1, 2, 3]


def test_the_error_names_its_limit() -> None:
    error = HandlerTimeout(50)
    assert error.timeout_ms == 50
    assert "raise timeout_ms" in str(error)
