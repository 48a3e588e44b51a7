"""Workers: every message until its handler succeeded, several at a time, whoever dies."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import headwater
from headwater.outbox import AsyncWorker, Worker
from tests.entries import entries
from tests.servers import until

pytestmark = pytest.mark.parametrize("store_url", ["plain"], indirect=True)


@contextmanager
def at_work(worker: Worker) -> Iterator[None]:
    thread = threading.Thread(target=worker.run)
    thread.start()
    try:
        yield
    finally:
        worker.stop()
        thread.join()


def all_done(group: headwater.Group, count: int) -> Callable[[], bool]:
    def done() -> bool:
        try:
            return group.info().ack_offset == count + 1
        except headwater.UnknownGroup:
            return False

    return done


def test_every_message_is_handled_and_acknowledged(hw: headwater.Headwater, name: str) -> None:
    stream = hw.stream(name)
    stream.write_many(entries(300))
    group = stream.group("g")
    seen: list[int] = []
    with at_work(Worker(group, lambda message: seen.append(message.offset))):
        until(all_done(group, 300))
    assert sorted(seen) == list(range(1, 301))


def test_as_many_handlers_run_at_once_as_asked_for(hw: headwater.Headwater, name: str) -> None:
    stream = hw.stream(name)
    stream.write_many(entries(6))
    group = stream.group("g")
    together = threading.Barrier(3, timeout=20)
    with at_work(Worker(group, lambda _: together.wait(), concurrency=3)):
        until(all_done(group, 6))


def test_a_failed_message_comes_again_after_a_pause(hw: headwater.Headwater, name: str) -> None:
    stream = hw.stream(name)
    stream.write("t", b"v")
    group = stream.group("g")
    attempts: list[int] = []

    def fails_twice(message: headwater.Message) -> None:
        attempts.append(message.attempt)
        if message.attempt < 3:
            raise RuntimeError("not yet")

    with at_work(Worker(group, fails_twice, backoff_ms=5)):
        until(all_done(group, 1))
    assert attempts == [1, 2, 3]


def test_what_never_succeeds_becomes_a_dead_letter(hw: headwater.Headwater, name: str) -> None:
    stream = hw.stream(name)
    stream.write_many([("good", b"1"), ("bad", b"2"), ("good", b"3")])
    group = stream.group("g", dead_letters=True)

    def refuses(message: headwater.Message) -> None:
        if message.tag == "bad":
            raise RuntimeError("never")

    with at_work(Worker(group, refuses, backoff_ms=5, expire_ms=50)):
        until(all_done(group, 3))
    assert [(letter.origin, letter.value) for letter in group.dead()] == [(2, b"2")]


def test_a_message_is_kept_while_its_handler_takes_longer_than_its_retry_time(
    hw: headwater.Headwater, name: str
) -> None:
    stream = hw.stream(name)
    stream.write("t", b"v")
    group = stream.group("g")
    begun, go_on = threading.Event(), threading.Event()
    deliveries: list[int] = []

    def slow(message: headwater.Message) -> None:
        deliveries.append(message.attempt)
        begun.set()
        assert go_on.wait(20)

    with at_work(Worker(group, slow, retry_ms=300)):
        assert begun.wait(20)
        # Another member waits for longer than the retry time, and is given nothing.
        assert stream.group("g").read(1, block_ms=900, retry_ms=300) == []
        go_on.set()
        until(all_done(group, 1))
    assert deliveries == [1]


def test_a_worker_that_stops_ends_what_it_began_and_gives_back_the_rest(
    hw: headwater.Headwater, name: str
) -> None:
    stream = hw.stream(name)
    stream.write_many(entries(2))
    group = stream.group("g")
    begun, go_on = threading.Event(), threading.Event()

    def slow(_: headwater.Message) -> None:
        begun.set()
        assert go_on.wait(20)

    worker = Worker(group, slow, concurrency=1, retry_ms=60_000)
    thread = threading.Thread(target=worker.run)
    thread.start()
    assert begun.wait(20)
    until(lambda: group.info().next == 3)
    worker.stop()
    # Back with the group long before its retry time, while the first is still being handled.
    (again,) = group.read(1, block_ms=20_000, retry_ms=60_000)
    assert (again.offset, again.attempt) == (2, 2)
    go_on.set()
    thread.join()
    assert group.ack(1) == 0


@pytest.mark.fault
def test_what_a_killed_worker_held_goes_to_another(
    hw: headwater.Headwater, name: str, store_url: str
) -> None:
    stream = hw.stream(name)
    stream.write("t", b"v")
    program = (
        "import sys, time, headwater\n"
        "from headwater.outbox import Worker\n"
        "group = headwater.connect(sys.argv[1]).stream(sys.argv[2]).group('g')\n"
        "def hang(message):\n"
        "    print('begun', flush=True)\n"
        "    time.sleep(600)\n"
        "Worker(group, hang, retry_ms=500).run()\n"
    )
    words = [sys.executable, "-c", program, store_url, name]
    with subprocess.Popen(words, stdout=subprocess.PIPE, cwd=Path.cwd()) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"begun\n"
        os.kill(process.pid, signal.SIGKILL)
    group = stream.group("g")
    attempts: list[int] = []
    with at_work(Worker(group, lambda message: attempts.append(message.attempt))):
        until(all_done(group, 1))
    assert attempts == [2]


def test_the_async_worker_does_the_same(name: str, store_url: str) -> None:
    attempts: list[tuple[int, int]] = []

    async def work() -> None:
        enough = asyncio.Event()

        async def fails_once(message: headwater.Message) -> None:
            attempts.append((message.offset, message.attempt))
            if len(attempts) == 21:
                enough.set()
            if message.attempt == 1 and message.offset == 2:
                raise RuntimeError("not yet")

        async with headwater.aio.connect(store_url) as hw:
            stream = hw.stream(name)
            await stream.write_many(entries(20))
            group = stream.group("g")
            worker = AsyncWorker(group, fails_once, backoff_ms=5)
            running = asyncio.create_task(worker.run())
            async with asyncio.timeout(20):
                await enough.wait()
                worker.stop()
                await running
            assert (await group.info()).ack_offset == 21

    asyncio.run(work())
    assert sorted(attempts) == sorted([(offset, 1) for offset in range(1, 21)] + [(2, 2)])
