"""A blocked member that is cancelled, interrupted or closed leaves nothing in the server."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

import headwater
from headwater import aio
from headwater.errors import StoreError
from headwater.log.keys import stream_key
from headwater.store.call import Call, Operation, Request, Wait
from tests.support.entries import offsets
from tests.support.groups import FAR
from tests.support.servers import until
from tests.support.stores import Stores
from tests.support.waking import wait_for_members
from tests.support.watch import let_pass

LONG = 60_000
# How long a waiter is believed to live beyond its time; stated in the Lua.
WAITER_GRACE_MS = 1000


@pytest.fixture
def hw(stores: Stores) -> Iterator[headwater.Headwater]:
    with headwater.connect(stores.url("plain")) as hw:
        yield hw


def waiting(hw: headwater.Headwater, name: str) -> tuple[int, bytes | None]:
    """Return how many members wait, and which groups a write of the stream would serve."""
    (groups,) = hw.store.command("HGET", stream_key(name), "waiting")
    return hw.stream(name).group("g").info().waiting, groups


def test_cancelled_members_leave_at_once(hw: headwater.Headwater, name: str) -> None:
    group = hw.stream(name).group("g")
    group.read(1)

    async def cancel_all() -> None:
        async with aio.connect(hw.store.where) as client:
            member = client.stream(name).group("g")
            reads = [asyncio.create_task(member.read(1, block_ms=LONG)) for _ in range(400)]
            await asyncio.to_thread(until, lambda: group.info().waiting == 400)
            for read in reads:
                read.cancel()
            done = await asyncio.gather(*reads, return_exceptions=True)
            assert {type(error) for error in done} == {asyncio.CancelledError}
            assert waiting(hw, name) == (0, None), "they left before they were gone"

    asyncio.run(cancel_all())


@pytest.mark.parametrize("ack_ms", [None, FAR])
def test_what_is_in_the_box_of_a_member_that_leaves_goes_back_at_once(
    hw: headwater.Headwater, name: str, ack_ms: int | None
) -> None:
    stream = hw.stream(name)

    def wait_and_leave() -> Operation[int]:
        terms = ("" if ack_ms is None else ack_ms, "")
        args = ("g", "m", 5, *terms, "first", "", "", "m.1", LONG, 0, "", 10**6)
        yield Call("hw_group_read", stream_key(name), args)
        yield Call("hw_stream_write", stream_key(name), ("", 0, "", "plain", "a", b"1"))
        left: int = yield Call("hw_group_leave", stream_key(name), ("g", "m.1"))
        return left

    assert hw.store.run(wait_and_leave()) == 1
    found = stream.group("g").read(5, ack_ms=ack_ms)
    assert [(message.offset, message.attempt) for message in found] == [(1, 1)]
    assert waiting(hw, name)[0] == 0


def test_what_a_member_leaves_goes_to_the_next_in_line(
    hw: headwater.Headwater, name: str, pool: ThreadPoolExecutor
) -> None:
    stream = hw.stream(name)
    key = stream_key(name)

    def ask(call: Call) -> Operation[None]:
        yield call

    args = ("g", "m", 5, FAR, "", "first", "", "", "m.1", LONG, 0, "", 10**6)
    hw.store.run(ask(Call("hw_group_read", key, args)))
    other = pool.submit(stream.group("g", member="other").read, 5, block_ms=LONG, ack_ms=FAR)
    wait_for_members(stream.group("g"), 2)
    stream.write("a", b"1")
    hw.store.run(ask(Call("hw_group_leave", key, ("g", "m.1"))))
    assert offsets(other.result(60)) == [1]


def test_an_interrupted_member_leaves_at_once(hw: headwater.Headwater, name: str) -> None:
    group = hw.stream(name).group("g")
    group.read(1)

    class Interrupted(BaseException):
        pass

    def interrupt(*_: object) -> None:
        raise Interrupted

    def interrupt_when_blocked() -> None:
        until(lambda: waiting(hw, name)[0] == 1)
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR2)

    before = signal.signal(signal.SIGUSR2, interrupt)
    try:
        thread = threading.Thread(target=interrupt_when_blocked)
        thread.start()
        with headwater.connect(hw.store.where) as other, pytest.raises(Interrupted):
            other.stream(name).group("g").read(1, block_ms=LONG)
        thread.join()
    finally:
        signal.signal(signal.SIGUSR2, before)
    assert waiting(hw, name) == (0, None)


def test_a_member_leaves_whichever_of_its_requests_is_interrupted(
    hw: headwater.Headwater, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Interrupted(BaseException):
        pass

    asked: list[Request] = []

    def read_until_interrupted(stream: str, after: int) -> None:
        """Read as one who waits; the reply of the ``after``-th request never arrives."""
        asked.clear()
        hw.stream(stream).group("g").read(1)
        with headwater.connect(hw.store.where) as other:
            ask = other.store.ask

            def interrupt(request: Request, *rest: Any) -> Any:
                asked.append(request)
                if isinstance(request, Wait):
                    raise Interrupted
                reply = ask(request, *rest)
                if len(asked) == after:
                    raise Interrupted
                return reply

            monkeypatch.setattr(other.store, "ask", interrupt)
            with pytest.raises(Interrupted):
                other.stream(stream).group("g").read(1, block_ms=LONG)

    read_until_interrupted(name, 0)
    assert {"hw_group_read", "hw_registry_add"} <= {
        request.function for request in asked if isinstance(request, Call)
    }
    for after in range(1, len(asked)):
        stream = f"{name}-{after}"
        read_until_interrupted(stream, after)
        assert waiting(hw, stream) == (0, None)


@pytest.mark.parametrize("manner", ["sync", "async"])
def test_members_leave_when_their_client_is_closed(
    hw: headwater.Headwater, name: str, manner: str, pool: ThreadPoolExecutor
) -> None:
    group = hw.stream(name).group("g")
    group.read(1)
    if manner == "sync":
        other = headwater.connect(hw.store.where)
        read = pool.submit(other.stream(name).group("g").read, 1, block_ms=LONG)
        wait_for_members(group, 1)
        other.close()
        assert waiting(hw, name) == (0, None)
        with pytest.raises(StoreError, match="closed"):
            read.result(60)
        return

    async def close() -> None:
        client = await aio.connect(hw.store.where)
        read = asyncio.create_task(client.stream(name).group("g").read(1, block_ms=LONG))
        await asyncio.to_thread(wait_for_members, group, 1)
        await client.close()
        assert waiting(hw, name) == (0, None)
        with pytest.raises(StoreError, match="closed"):
            await read

    asyncio.run(close())


def register_dead(hw: headwater.Headwater, name: str, count: int, wait_ms: int) -> None:
    """Note members as waiting that will never be seen again."""

    def register() -> Operation[None]:
        for n in range(count):
            args = ("g", "m", 1, "", "", "first", "", "", f"dead-{n}", wait_ms, 0, "", 10**6)
            yield Call("hw_group_read", stream_key(name), args)

    hw.store.run(register())


def test_a_write_looks_at_few_of_many_dead_members(hw: headwater.Headwater, name: str) -> None:
    stream = hw.stream(name)
    register_dead(hw, name, 200, 1)
    let_pass(hw, 1 + WAITER_GRACE_MS)
    stream.write("a", b"1")
    assert waiting(hw, name)[0] == 200 - 64
    for _ in range(4):
        stream.write("a", b"1")
    assert waiting(hw, name) == (0, None)
    assert offsets(stream.group("g").read(9)) == [1, 2, 3, 4, 5]


def test_a_member_that_waits_clears_away_dead_ones(
    hw: headwater.Headwater, name: str, pool: ThreadPoolExecutor
) -> None:
    stream = hw.stream(name)
    register_dead(hw, name, 50, 1)
    living = pool.submit(stream.group("g").read, 1, block_ms=LONG)
    wait_for_members(stream.group("g"), 1)
    stream.write("a", b"1")
    assert offsets(living.result(60)) == [1]


def test_housekeeping_clears_away_dead_members_of_a_stream_that_was_never_written(
    hw: headwater.Headwater, name: str
) -> None:
    hw.stream(name).group("g").read(1)
    register_dead(hw, name, 50, 1)
    let_pass(hw, 1 + WAITER_GRACE_MS)
    assert name in {kept.stream for kept in hw.keep()}
    assert waiting(hw, name) == (0, None)
