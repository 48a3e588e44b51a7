"""Queues while consumers and servers die: nothing is lost, nothing is delivered twice in time.

Consumers are stopped between any two of their calls, or killed as processes; the server is killed
with kill -9 and comes back on what it wrote to disk.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest

import headwater
from headwater import Delivery, OutcomeUnknown, Queue
from headwater.errors import StoreError
from headwater.queue import moving, settling
from headwater.queue.handles import QueueHandle
from headwater.store.call import Operation
from tests.support.forwarder import Forwarder
from tests.support.servers import Server, until
from tests.support.stepping import Stepper, abandon_after
from tests.support.watch import let_pass

pytestmark = pytest.mark.fault
LONG_MS = 600_000
RESERVE_MS = 2000


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with Server(tcp=True) as server:
        yield server


@pytest.fixture
def hw(server: Server) -> Iterator[headwater.Headwater]:
    with headwater.connect(server.url) as hw:
        yield hw


def handle(name: str) -> QueueHandle:
    return QueueHandle(name, set(), "member")


# ── Consumers that die while they wait ───────────────────────────────────────────────────────


@pytest.mark.parametrize("ack_ms", [None, LONG_MS])
def test_what_was_kept_for_a_dead_waiter_reaches_another_untried(
    hw: headwater.Headwater, name: str, ack_ms: int | None
) -> None:
    queue = hw.queue(name)
    Stepper(hw.store, moving.pop(handle(name), 2, ack_ms, 20_000)).step()
    assert queue.stats().waiting == 1
    queue.push_many([b"a", b"b", b"c"])
    assert [d.value for d in queue.pop(9, ack_ms=ack_ms)] == [b"c"], "two are kept for the waiter"
    begun = time.monotonic()
    found = queue.pop(9, ack_ms=ack_ms, block_ms=20_000)
    assert [(d.value, d.attempt) for d in found] == [(b"a", 1), (b"b", 1)]
    assert time.monotonic() - begun > RESERVE_MS / 1000 - 1, "not while it may still come"
    assert queue.pop(9) == []


@pytest.mark.parametrize("ack_ms", [None, LONG_MS])
def test_a_waiter_that_comes_late_has_what_nobody_took(
    hw: headwater.Headwater, name: str, ack_ms: int | None
) -> None:
    queue = hw.queue(name)
    late = Stepper(hw.store, moving.pop(handle(name), 1, ack_ms, 300))
    too_late = Stepper(hw.store, moving.pop(handle(name), 1, ack_ms, 300))
    late.step()
    too_late.step()
    queue.push_many([b"a", b"b"])
    assert [d.value for d in late.run()] == [b"a"]
    let_pass(hw, RESERVE_MS)
    assert [(d.value, d.attempt) for d in queue.pop(9, ack_ms=ack_ms)] == [(b"b", 1)]
    assert too_late.run() == []
    assert queue.stats().unacked == (2 if ack_ms else 0)


def test_who_comes_just_when_a_message_comes_due_does_not_overtake_who_waits(
    hw: headwater.Headwater, name: str
) -> None:
    queue = hw.queue(name)
    waiter = Stepper(hw.store, moving.pop(handle(name), 1, None, 20_000))
    waiter.step()
    queue.push_many([b"a"], delay_ms=20)
    queue.push_many([b"b"], delay_ms=21)
    let_pass(hw, 25)
    assert [d.value for d in queue.pop(9)] == [b"b"]
    assert [d.value for d in waiter.run()] == [b"a"]


def test_a_waiter_that_was_killed_is_passed_over(hw: headwater.Headwater, name: str) -> None:
    program = f"import headwater; print(headwater.connect({hw.store.where!r}).queue({name!r})"
    waiter = subprocess.Popen(
        [sys.executable, "-c", program + ".pop(block_ms=60_000), flush=True)"]
    )
    queue = hw.queue(name)
    until(lambda: queue.stats().waiting == 1)
    os.kill(waiter.pid, signal.SIGKILL)
    waiter.wait()
    queue.push(b"v")
    assert [d.value for d in queue.pop(block_ms=20_000)] == [b"v"]


# ── Every two calls ──────────────────────────────────────────────────────────────────────────


def operations(name: str, held: list[Delivery]) -> dict[str, Operation[Any]]:
    queue = handle(name)
    return {
        "push": moving.push_many(queue, [b"x"] * 5, 0, 0, None, None, 1, "p", 1),
        "pop": moving.pop(queue, 5000, 200, None),
        "ack": settling.ack(queue, held),
        "nack": settling.nack(queue, held, 0),
        "release": settling.release(queue, held),
    }


@pytest.mark.parametrize("deed", ["push", "pop", "ack", "nack", "release"])
def test_a_consumer_that_dies_between_two_calls_loses_nothing(
    hw: headwater.Headwater, name: str, deed: str
) -> None:
    queue = hw.queue(name)
    for calls in range(1, 10):
        queue.purge()
        pushed = queue.push_many([b"%d" % i for i in range(4500)])
        # Taken one by one, so that settling them takes several calls.
        held = [queue.pop(ack_ms=LONG_MS)[0] for _ in range(600)]
        over = abandon_after(hw.store, operations(f"{name}", held)[deed], calls)
        facts = queue.stats()
        there = facts.ready + facts.unacked + facts.delayed
        done = facts.acked if deed == "ack" else 0
        assert there >= len(pushed) - (600 if deed == "ack" else 0)
        if deed == "ack":
            assert there + min(600, (calls if not over else 9) * settling.BUNDLES_PER_CALL) >= 4500
            assert done % 100 == 0
        if deed == "pop":
            until(lambda: queue.stats().ready == 3900)
        if over:
            return
    raise AssertionError("it never ends")


def test_the_server_is_killed_between_every_two_steps(name: str) -> None:
    with Server(fsync="always") as server, headwater.connect(server.url) as hw:
        queue = hw.queue(name)
        queue.configure(max_attempts=3)
        steps: list[Any] = []

        def crash() -> None:
            server.kill()
            server.restart()

        ids = queue.push_many([b"%d" % i for i in range(20)])
        crash()
        late = queue.push(b"late", delay_ms=1)
        crash()
        first = queue.pop(10, ack_ms=LONG_MS)
        crash()
        assert queue.ack(*first[:5]) == 5
        crash()
        assert queue.nack(*first[5:8]) == 3
        crash()
        assert queue.extend(first[8], ack_ms=1) == 1
        crash()
        steps += queue.pop(100, ack_ms=LONG_MS)
        crash()
        assert queue.ack(*steps, first[9], *first[:9]) == len(steps) + 1
        crash()
        assert Counter(d.id for d in steps) == Counter([*ids[5:9], *ids[10:], late])
        facts = queue.stats()
        assert (facts.ready, facts.unacked, facts.delayed, facts.acked) == (0, 0, 0, 21)


# ── Answers that are lost ────────────────────────────────────────────────────────────────────


@pytest.fixture
def door(server: Server) -> Iterator[Forwarder]:
    with Forwarder(server.port) as door:
        yield door


@pytest.fixture
def behind(door: Forwarder, name: str) -> Iterator[Queue]:
    with headwater.connect(f"redis://127.0.0.1:{door.port}") as hw:
        queue = hw.queue(name)
        queue.push(b"first")
        yield queue


def test_a_push_whose_answer_is_lost_is_not_repeated(door: Forwarder, behind: Queue) -> None:
    door.lose("reply", b"_queue_push")
    with pytest.raises(OutcomeUnknown, match="dedupe="):
        behind.push(b"v")
    assert behind.stats().ready == 2


def test_a_push_that_can_be_recognised_is_repeated(door: Forwarder, behind: Queue) -> None:
    door.lose("reply", b"_queue_push")
    behind.push(b"v", dedupe="k")
    door.lose("reply", b"_queue_push")
    behind.push_many([b"w", b"x"], producer="p", sequence=1)
    assert [d.value for d in behind.pop(9)] == [b"first", b"v", b"w", b"x"]


def test_a_pop_whose_answer_is_lost_comes_again_if_it_must_be_acknowledged(
    door: Forwarder, behind: Queue
) -> None:
    door.lose("reply", b"_queue_pop")
    assert behind.pop(ack_ms=100) == []
    (again,) = behind.pop(ack_ms=LONG_MS, block_ms=20_000)
    assert again.attempt == 2
    behind.release(again)
    door.lose("reply", b"_queue_pop")
    with pytest.raises(OutcomeUnknown, match="ack_ms="):
        behind.pop()
    assert behind.stats().ready == 0


def test_settling_is_repeated_and_counts_once(door: Forwarder, behind: Queue) -> None:
    (held,) = behind.pop(ack_ms=LONG_MS)
    door.lose("reply", b"_queue_settle")
    behind.nack(held)
    assert [d.attempt for d in behind.pop(9, ack_ms=LONG_MS)] == [2]
    assert behind.stats().unacked == 1


# ── Many at once ─────────────────────────────────────────────────────────────────────────────

CONSUMER = """
import os, random, sys, time
import headwater
url, name, seed = sys.argv[1:]
chance = random.Random(int(seed))
queue = headwater.connect(url).queue(name)
while True:
    for d in queue.pop(chance.choice([1, 3, 10]), ack_ms=700, block_ms=500):
        began = time.monotonic_ns()
        os.write(1, b"%s %d %d took\\n" % (d.id.encode(), d.attempt, began))
        acked = queue.ack(d)
        if acked:
            os.write(1, b"%s %d %d done\\n" % (d.id.encode(), d.attempt, time.monotonic_ns()))
"""


def test_killed_consumers_lose_nothing_and_share_nothing_in_time(name: str) -> None:
    with Server(fsync="everysec") as server, headwater.connect(server.url) as hw:
        queue = hw.queue(name)
        ids = queue.push_many([b"%d" % i for i in range(900)])
        lines: list[bytes] = []

        def read(pipe: Any) -> None:
            with pipe:
                lines.extend(pipe)

        def start(seed: int) -> tuple[subprocess.Popen[bytes], threading.Thread]:
            words = [sys.executable, "-c", CONSUMER, server.url, name, str(seed)]
            process = subprocess.Popen(words, stdout=subprocess.PIPE)
            reader = threading.Thread(target=read, args=(process.stdout,))
            reader.start()
            return process, reader

        def far_enough(count: int) -> bool:
            return len(lines) > count

        crowd = [start(seed) for seed in range(3)]
        for seed in range(4, 7):
            until(partial(far_enough, 200 * (seed - 3)), 60)
            victim, _ = crowd[seed - 4]
            victim.kill()
            crowd.append(start(seed))
        until(lambda: queue.stats().acked == 900, 60)
        for process, _ in crowd:
            process.kill()
        for process, reader in crowd:
            process.wait()
            reader.join()
    done = Counter(line.split()[0].decode() for line in lines if line.endswith(b"done\n"))
    assert set(done.values()) <= {1}, "an ack counts once"
    took: dict[bytes, list[tuple[int, int]]] = {}
    for line in lines:
        if line.endswith(b"took\n"):
            key, attempt, at, _ = line.split()
            took.setdefault(key, []).append((int(attempt), int(at)))
    assert {key.decode() for key in took} == set(ids)
    for times in took.values():
        attempts = [attempt for attempt, _ in sorted(times)]
        assert len(set(attempts)) == len(attempts), "a delivery is one consumer's"
    with pytest.raises(StoreError):
        queue.stats()
