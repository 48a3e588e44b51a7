"""Blocking is measured by the client's own clock, whatever the server's clock does meanwhile."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

import headwater
from headwater import Message, Worker
from tests.support.servers import until
from tests.support.stepped_clock import SteppedServer

Dial = Callable[[str | None], headwater.Headwater]
HOUR_S = 3600
# Each blocks for so long; how late it may end is a matter of the machine's load, too.
BLOCK_MS = 3000
LATE_S = 15.0


@pytest.fixture(scope="module")
def server() -> Iterator[SteppedServer]:
    with SteppedServer(tcp=True) as server:
        yield server


@pytest.fixture(autouse=True)
def at_real_time(server: SteppedServer) -> Iterator[None]:
    yield
    server.step(0)


def reads(hw: headwater.Headwater, name: str) -> dict[str, Callable[[], Any]]:
    """All that can block."""
    stream, queue, topic = hw.stream(name), hw.queue(name), hw.topic(name, 2)
    return {
        "read": lambda: stream.read(1, 1, block_ms=BLOCK_MS),
        "read_from": lambda: stream.read_from(1, 1, block_ms=BLOCK_MS).messages,
        "group": lambda: stream.group("g").read(1, block_ms=BLOCK_MS),
        "group, to be acknowledged": lambda: stream.group("h").read(
            1, block_ms=BLOCK_MS, ack_ms=60_000
        ),
        "topic": lambda: topic.group("g").read(1, block_ms=BLOCK_MS),
        "pop": lambda: queue.pop(1, block_ms=BLOCK_MS),
        "pop, to be acknowledged": lambda: queue.pop(1, block_ms=BLOCK_MS, ack_ms=60_000),
    }


def timed(work: Callable[[], Any]) -> tuple[Any, float]:
    begun = time.monotonic()
    return work(), time.monotonic() - begun


def all_blocked(server: SteppedServer) -> int:
    return server.blocked("blpop") + server.blocked("xread")


@pytest.mark.parametrize("step_s", [-HOUR_S, HOUR_S])
def test_what_blocks_ends_in_its_time_when_the_clock_steps(
    step_s: int, server: SteppedServer, dial: Dial, name: str, pool: ThreadPoolExecutor
) -> None:
    work = reads(dial(server.url), name)
    waiting = {kind: pool.submit(timed, one) for kind, one in work.items()}
    until(lambda: all_blocked(server) == len(work))
    server.step(step_s)
    for kind, future in waiting.items():
        found, took = future.result(60)
        assert found == [], kind
        assert BLOCK_MS / 1000 <= took < BLOCK_MS / 1000 + LATE_S, kind


def test_what_comes_after_the_clock_stepped_back_reaches_who_is_blocked(
    server: SteppedServer, dial: Dial, name: str, pool: ThreadPoolExecutor
) -> None:
    hw = dial(server.url)
    work = reads(hw, name)
    waiting = {kind: pool.submit(timed, one) for kind, one in work.items()}
    until(lambda: all_blocked(server) == len(work))
    server.step(-HOUR_S)
    hw.stream(name).write("t", b"v")
    hw.queue(name).push_many([b"v", b"w"])
    hw.topic(name).write("t", b"v")
    for kind, future in waiting.items():
        found, took = future.result(60)
        assert len(found) == 1, kind
        assert took < BLOCK_MS / 1000 + LATE_S, kind


def test_a_worker_stops_soon_after_the_clock_stepped_back(
    server: SteppedServer, name: str, pool: ThreadPoolExecutor
) -> None:
    handled = threading.Event()

    def handle(_: Message) -> None:
        handled.set()

    with headwater.connect(server.url) as hw:
        worker = Worker(hw.stream(name).group("g"), handle)
        running = pool.submit(worker.run)
        hw.stream(name).write("t", b"v")
        assert handled.wait(60)
        until(lambda: server.blocked("blpop") == 1)
        server.step(-HOUR_S)
        worker.stop()
        _, took = timed(lambda: running.result(60))
        assert took < LATE_S


def test_nothing_is_lost_while_the_clock_steps_back_and_back(
    server: SteppedServer, dial: Dial, name: str, pool: ThreadPoolExecutor
) -> None:
    hw = dial(server.url)
    queue, taken = hw.queue(name), list[bytes]()
    over = threading.Event()

    def pop() -> None:
        while not over.is_set():
            taken.extend(each.value for each in queue.pop(1, block_ms=1000))

    popping = [pool.submit(pop) for _ in range(8)]
    for count in range(8):
        server.step(-HOUR_S * (count + 1))
        for each in range(10):
            until(lambda: server.blocked("blpop") > 0)
            queue.push(b"%d" % (count * 10 + each))
    until(lambda: len(taken) >= 80)
    over.set()
    for one in popping:
        one.result(60)
    assert sorted(taken, key=int) == [b"%d" % each for each in range(80)], "each once"


@pytest.mark.parametrize("right", ["client|id", "client|unblock"])
def test_a_user_who_may_not_free_a_connection_does_not_wait_longer(
    right: str, server: SteppedServer, dial: Dial, name: str, pool: ThreadPoolExecutor
) -> None:
    with server.client() as admin:
        admin.execute_command("ACL", "SETUSER", "app", "on", ">pw", "~*", "+@all", f"-{right}")
    hw = dial(server.url.replace("redis://", "redis://app:pw@"))
    waiting = pool.submit(timed, lambda: hw.queue(name).pop(1, block_ms=BLOCK_MS))
    until(lambda: server.blocked("blpop") == 1)
    server.step(-HOUR_S)
    found, took = waiting.result(60)
    assert found == []
    assert took < BLOCK_MS / 1000 + LATE_S
    hw.queue(name).push(b"v")
    assert len(hw.queue(name).pop(1, block_ms=BLOCK_MS)) == 1
