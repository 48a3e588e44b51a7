"""Blocked consumers of a queue: woken at once, each message to one, who waits longest first."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any, TypeAlias

import pytest

from headwater import AccessDenied, Delivery, Headwater, aio
from headwater.kernel.instrument import installed
from headwater.queue import moving
from headwater.queue.handles import QueueHandle
from headwater.queue.moving import CALL_MESSAGES
from headwater.store.call import Call, Request
from tests.support.instruments import Recorder
from tests.support.servers import Server, until
from tests.support.stepping import Stepper
from tests.support.stores import Stores
from tests.support.waking import check_quick, check_wakes
from tests.support.watch import blocked

Connect: TypeAlias = Callable[[str], Headwater]
Dial: TypeAlias = Callable[[str | None], Headwater]
LONG_MS = 600_000
SOON_MS = 300


def begin(work: Callable[[], Any]) -> Future[Any]:
    pool = ThreadPoolExecutor(1)
    future = pool.submit(work)
    pool.shutdown(wait=False)
    return future


def value_of(future: Future[list[Delivery]]) -> list[tuple[bytes, int]]:
    return [(d.value, d.attempt) for d in future.result(60)]


@pytest.mark.parametrize("ack_ms", [None, LONG_MS])
def test_a_blocked_pop_is_woken_by_a_push(client: Headwater, name: str, ack_ms: int | None) -> None:
    queue = client.queue(name)
    waiting = begin(lambda: queue.pop(5, ack_ms=ack_ms, block_ms=20_000))
    until(lambda: queue.stats().waiting == 1 and blocked(client) >= 1)
    queue.push_many([b"a", b"b"])
    assert value_of(waiting) == [(b"a", 1), (b"b", 1)]
    facts = queue.stats()
    assert (facts.waiting, facts.ready, facts.unacked) == (0, 0, 2 if ack_ms else 0)
    if ack_ms:
        assert queue.ack(*waiting.result()) == 2


def test_a_wait_that_is_over_gives_nothing(client: Headwater, name: str) -> None:
    queue = client.queue(name)
    begun = time.monotonic()
    assert queue.pop(block_ms=50) == []
    assert time.monotonic() - begun >= 0.05
    assert queue.stats().waiting == 0
    queue.push(b"v")
    assert [d.value for d in queue.pop(block_ms=50)] == [b"v"]


def test_a_blocked_pop_gets_what_comes_due_when_it_does(
    client: Headwater, name: str, pool: ThreadPoolExecutor
) -> None:
    queue = client.queue(name)
    held: list[Delivery] = []

    def wait() -> list[Delivery]:
        held[:] = queue.pop(ack_ms=LONG_MS, block_ms=20_000)
        return held

    for makes in (lambda: queue.push(b"v", delay_ms=100), lambda: queue.nack(*held, delay_ms=100)):
        # Its next look would come after a second.
        check_wakes(
            pool, wait, lambda: queue.stats().waiting == 1, makes, within_ms=600, not_before_ms=99
        )


def test_what_a_pop_that_may_wait_took_reaches_its_caller_when_the_store_then_fails(
    dial: Dial, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Server() as server:
        hw = dial(server.url)
        queue = hw.queue(name)
        some = [b"%d" % i for i in range(CALL_MESSAGES + 10)]
        queue.push_many(some)
        store = getattr(hw, "_target", hw).store
        ask, pops = store.ask, []

        def refused_after_the_first(request: Request, *more: Any) -> Any:
            if isinstance(request, Call):
                pops.append(request)
            if len(pops) == 2:
                with server.client() as admin:
                    admin.execute_command("ACL", "SETUSER", "default", "-fcall")
            return ask(request, *more)

        monkeypatch.setattr(store, "ask", refused_after_the_first)
        taken = queue.pop(len(some), block_ms=20_000)
        assert len(pops) == 2
        assert [delivery.value for delivery in taken] == some[:CALL_MESSAGES]
        with pytest.raises(AccessDenied):
            queue.pop(block_ms=20_000)


def test_a_pop_that_waits_for_a_paused_queue_asks_no_more_often_than_for_an_empty_one(
    connect: Connect, name: str
) -> None:
    hw = connect("plain-sync")
    queue = hw.queue(name)
    queue.push_many([b"due", b"held"])
    queue.release(queue.pop(ack_ms=LONG_MS)[0])
    queue.pause()
    with installed(recorder := Recorder()):
        assert queue.pop(block_ms=300) == []
    assert len(recorder.events) <= 4


def test_a_pop_that_waited_for_a_paused_queue_gets_what_comes_due_when_it_does(
    client: Headwater, name: str, pool: ThreadPoolExecutor
) -> None:
    queue = client.queue(name)

    def wait() -> bool:
        queue.push(b"v", delay_ms=SOON_MS)
        queue.pause()
        return [delivery.value for delivery in queue.pop(block_ms=20_000)] == [b"v"]

    def ready() -> bool:
        return queue.stats().waiting == 1 and blocked(client) >= 1

    # Its next look would come after a second.
    check_wakes(pool, wait, ready, queue.resume, within_ms=800)


def test_who_waits_longest_is_served_first(connect: Connect, name: str) -> None:
    hw = connect("plain-sync")
    queue = hw.queue(name)
    served: list[int] = []
    lock = threading.Lock()

    def consume(number: int) -> None:
        (delivery,) = queue.pop(block_ms=20_000)
        with lock:
            served.append(number)
        assert delivery.value == b"%d" % number

    def waiting(count: int) -> bool:
        return queue.stats().waiting == count

    def seen(count: int) -> bool:
        return len(served) == count

    threads = []
    for number in range(8):
        threads.append(threading.Thread(target=consume, args=(number,)))
        threads[-1].start()
        until(partial(waiting, number + 1))
    for number in range(8):
        queue.push(b"%d" % number)
        until(partial(seen, number + 1))
    for thread in threads:
        thread.join()
    assert served == list(range(8))


def test_nobody_overtakes_those_who_wait(connect: Connect, name: str) -> None:
    hw = connect("plain-sync")
    queue = hw.queue(name)
    queue.pause()
    waiting = begin(lambda: queue.pop(block_ms=20_000))
    until(lambda: queue.stats().waiting == 1)
    queue.push(b"first")
    queue.push(b"second")
    queue.resume()
    assert [d.value for d in queue.pop()] == [b"second"]
    assert value_of(waiting) == [(b"first", 1)]


@pytest.mark.parametrize("deed", ["nack", "release", "redrive", "resume"])
def test_whatever_makes_a_message_available_wakes(connect: Connect, name: str, deed: str) -> None:
    hw = connect("plain-async")
    queue = hw.queue(name)
    queue.push(b"v")
    (held,) = queue.pop(ack_ms=LONG_MS)
    if deed == "redrive":
        queue.configure(max_attempts=1)
        queue.nack(held)
    if deed == "resume":
        queue.release(held)
        queue.pause()
    waiting = begin(lambda: queue.pop(block_ms=20_000))
    until(lambda: queue.stats().waiting == 1)
    getattr(queue, deed)(*([held] if deed in ("nack", "release") else []))
    assert value_of(waiting)[0][0] == b"v"


def test_a_crowd_of_blocked_consumers_shares_everything_once(client: Headwater, name: str) -> None:
    queue = client.queue(name)
    found: list[bytes] = []

    def consume() -> None:
        while taken := queue.pop(3, ack_ms=LONG_MS, block_ms=20_000):
            queue.ack(*taken)
            found.extend(d.value for d in taken if d.value != b"end")
            if any(d.value == b"end" for d in taken):
                queue.push_many([b"end"] * (sum(d.value == b"end" for d in taken) - 1))
                return

    crowd = [threading.Thread(target=consume) for _ in range(6)]
    for thread in crowd:
        thread.start()
    some = [b"%d" % i for i in range(300)]
    for start in range(0, 300, 7):
        queue.push_many(some[start : start + 7])
    queue.push_many([b"end"] * 6, priority=-1)
    for thread in crowd:
        thread.join(60)
    assert sorted(found) == sorted(some)


# Blocked consumers of a queue that go away: nothing of them stays, and nothing waits for them.


def keys_of(hw: Headwater, name: str) -> list[bytes]:
    return [key for found in hw.store.command("KEYS", f"*{{{name}}}*") for key in found]


async def in_line(queue: aio.AsyncQueue, count: int) -> None:
    """Return when so many consumers wait."""
    for _ in range(10_000):
        if (await queue.stats()).waiting == count:
            return
    pytest.fail("they do not wait")


async def cancel_pops(url: str, name: str, count: int, ack_ms: int | None) -> int:
    """Let many tasks wait, cancel all of them, and return how many the queue still counts."""
    async with aio.connect(url) as hw:
        queue = hw.queue(name)
        tasks = [
            asyncio.create_task(queue.pop(ack_ms=ack_ms, block_ms=LONG_MS)) for _ in range(count)
        ]
        await in_line(queue, count)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        return (await queue.stats()).waiting


@pytest.mark.parametrize("ack_ms", [None, LONG_MS])
def test_a_pop_that_is_cancelled_leaves_no_waiter_and_no_key(
    stores: Stores, connect: Connect, name: str, ack_ms: int | None
) -> None:
    assert asyncio.run(cancel_pops(stores.url("plain"), name, 100, ack_ms)) == 0
    assert keys_of(connect("plain-sync"), name) == []


def test_what_was_reserved_for_a_cancelled_pop_goes_to_the_next_at_once(
    stores: Stores, name: str
) -> None:
    async def took_ms() -> float:
        async with aio.connect(stores.url("plain")) as hw:
            queue = hw.queue(name)
            first = asyncio.create_task(queue.pop(2, ack_ms=LONG_MS, block_ms=LONG_MS))
            await in_line(queue, 1)
            second = asyncio.create_task(queue.pop(2, ack_ms=LONG_MS, block_ms=LONG_MS))
            await in_line(queue, 2)
            # The push is answered before the first task has run: its box was emptied for nothing.
            await asyncio.gather(queue.push_many([b"a", b"b"]), cancelled(first))
            begun = time.monotonic()
            found = await second
            assert [(d.value, d.attempt) for d in found] == [(b"a", 1), (b"b", 1)]
            took = (time.monotonic() - begun) * 1000
            await queue.ack(*found)
            return took

    async def cancelled(task: asyncio.Task[Any]) -> None:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    # The reserve would be over after two seconds.
    check_quick(lambda: asyncio.run(took_ms()), 1000)


def wait_and_die(hw: Headwater, name: str, count: int = 1) -> None:
    """Register as consumers who wait and are never heard of again."""
    for _ in range(count):
        Stepper(hw.store, moving.pop(QueueHandle(name, set(), "m"), 1, None, 20_000)).step()


def test_a_queue_that_was_never_pushed_to_keeps_nothing_of_waiters_that_were_killed(
    connect: Connect, name: str
) -> None:
    hw = connect("plain-sync")
    wait_and_die(hw, name, 20)
    assert hw.queue(name).stats().waiting == 20
    until(lambda: hw.queue(name).stats().waiting == 0)
    until(lambda: keys_of(hw, name) == [])


def test_waiters_that_were_killed_are_forgotten_while_others_wait(
    connect: Connect, name: str
) -> None:
    hw = connect("plain-sync")
    wait_and_die(hw, name, 5)
    until(lambda: hw.queue(name).stats().waiting == 0)
    wait_and_die(hw, name, 1)
    assert hw.queue(name).stats().waiting == 1
    (line,) = hw.store.command("ZCARD", f"hw:q:{{{name}}}:waiters")
    assert line == 1


def test_a_push_passes_over_a_bounded_number_of_killed_waiters(connect: Connect, name: str) -> None:
    hw = connect("plain-sync")
    queue = hw.queue(name)
    wait_and_die(hw, name)
    killed = [word for i in range(5000) for word in (1, f"1::killed.{i}")]
    for part in ("looks", "waiters"):
        hw.store.command("ZADD", f"hw:q:{{{name}}}:{part}", *killed)
    left = [5000]
    while left[-1] > 1:
        queue.push(b"v")
        left += hw.store.command("ZCARD", f"hw:q:{{{name}}}:waiters")
        assert left[-2] - left[-1] < 1000
