"""Blocked consumers of a queue that go away: nothing of them stays, and nothing waits for them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any, TypeAlias

import pytest

from headwater import Headwater, aio
from headwater.queue import moving
from headwater.queue.handles import QueueHandle
from tests.support.servers import until
from tests.support.stepping import Stepper
from tests.support.stores import Stores
from tests.support.waking import check_quick

Connect: TypeAlias = Callable[[str], Headwater]
LONG_MS = 600_000


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
