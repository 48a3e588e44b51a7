"""Blocked readers of a stream wake when their offset is written, at once."""

from __future__ import annotations

import asyncio
import math
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest

import headwater
from headwater import Headwater, Stream, aio
from headwater.errors import StoreError
from headwater.log.keys import stream_key
from headwater.store.call import Call, Operation, Request, Wait
from tests.support.entries import entries, offsets, pairs
from tests.support.groups import FAR
from tests.support.servers import until
from tests.support.stores import Stores
from tests.support.waking import check_quick, check_wakes, wait_for_members
from tests.support.watch import blocked, let_pass

LONG = 60_000


@pytest.mark.parametrize("size", [1, 5, 40, 600])
def test_a_write_wakes_a_blocked_reader_within_milliseconds(
    client: Headwater, stream: Stream, pool: ThreadPoolExecutor, size: int
) -> None:
    stream.write("a", b"1")
    reader = client.stream(stream.name)

    def wait() -> list[int]:
        last = reader.info().last
        found = reader.read(last + 1, size, block_ms=LONG)
        assert pairs(found) == entries(size)
        return offsets(found)

    def act() -> None:
        stream.write_many(entries(size))

    check_wakes(pool, wait, lambda: blocked(client), act, within_ms=50)


def test_a_reader_waits_for_the_very_offset_it_asks_for(
    client: Headwater, stream: Stream, pool: ThreadPoolExecutor
) -> None:
    rows = entries(200)
    stream.write_many(rows[:3])
    reader: Future[list[Any]] = pool.submit(stream.read, 103, 10, block_ms=LONG)
    until(lambda: blocked(client))
    for at in (3, 4, 11, 60):
        stream.write_many(rows[at : at + {3: 1, 4: 7, 11: 49, 60: 42}[at]])
        until(lambda: blocked(client))
        assert not reader.done()
    stream.write_many(rows[102:110])
    assert pairs(reader.result(60)) == rows[102 : 102 + len(reader.result())]
    assert reader.result()


@pytest.mark.parametrize("size", [40, 700])
def test_a_batch_wakes_a_reader_that_waits_for_its_middle(
    client: Headwater, stream: Stream, pool: ThreadPoolExecutor, size: int
) -> None:
    reader = pool.submit(stream.read, size // 2, 5, block_ms=LONG)
    until(lambda: blocked(client))
    stream.write_many(entries(size))
    assert pairs(reader.result(60)) == entries(size)[size // 2 - 1 : size // 2 + 4]


def test_a_reader_may_wait_before_the_stream_exists(
    client: Headwater, stream: Stream, pool: ThreadPoolExecutor
) -> None:
    reader = pool.submit(stream.read, 1, 5, block_ms=math.inf)
    until(lambda: blocked(client))
    stream.write("a", b"1")
    assert pairs(reader.result(60)) == [("a", b"1")]


def test_a_reader_that_waits_in_vain_gets_nothing_when_its_time_is_up(stream: Stream) -> None:
    stream.write("a", b"1")
    for wait in (
        lambda: stream.read(2, 5, block_ms=60),
        lambda: stream.group("g", "last").read(5, block_ms=60),
        lambda: stream.group("g", "last").read(5, block_ms=60, ack_ms=10),
    ):
        begun = time.monotonic()
        assert wait() == []
        assert 0.055 <= time.monotonic() - begun < 5


def test_a_reader_that_need_not_wait_does_not(stream: Stream) -> None:
    stream.write_many(entries(3))
    stream.evict(1)
    begun = time.monotonic()
    assert pairs(stream.read(1, 5, block_ms=LONG)) == [None, *entries(2, 2)]
    assert offsets(stream.group("g").read(5, block_ms=LONG)) == [2, 3]
    for block_ms in (None, 0):
        assert stream.read(4, 5, block_ms=block_ms) == []
        assert stream.group("g").read(5, block_ms=block_ms) == []
    assert time.monotonic() - begun < 5


def test_who_follows_the_end_misses_nothing(stream: Stream, pool: ThreadPoolExecutor) -> None:
    def follow() -> list[Any]:
        seen: list[Any] = []
        while len(seen) < 1500:
            seen += stream.read(len(seen) + 1, 100, block_ms=LONG)
        return seen

    follower = pool.submit(follow)
    written = 0
    for place in range(10_000):
        if written >= 1500:
            break
        size = (1, 3, 20, 120)[place % 4]
        written = stream.write_many(entries(size, written + 1)).stop - 1
        if place % 5 == 0:
            stream.seal()
    assert pairs(follower.result(60)) == entries(len(follower.result()))


def test_a_member_that_stopped_waiting_takes_nothing(stream: Stream) -> None:
    gone = stream.group("g", member="gone")
    assert gone.read(5, block_ms=30, ack_ms=FAR) == []
    stream.write_many(entries(3))
    assert offsets(stream.group("g", member="here").read(5, ack_ms=FAR)) == [1, 2, 3]


@pytest.mark.slow
@pytest.mark.parametrize("client", ["embedded-sync", "plain-async"], indirect=True)
@pytest.mark.parametrize("ack_ms", [None, FAR])
def test_what_was_handed_to_a_member_that_died_is_handed_to_another(
    client: Headwater, stream: Stream, ack_ms: int | None
) -> None:
    def wait_and_die() -> Operation[None]:
        terms = ("" if ack_ms is None else ack_ms, "")
        args = ("g", "dying", 5, *terms, "first", "", "", "dying.1", 60_000, 0, "", 10**6)
        yield Call("hw_group_read", stream_key(stream.name), args)

    client.store.run(wait_and_die())
    stream.write_many(entries(3))
    found = stream.group("g", member="living").read(5, block_ms=10_000, ack_ms=ack_ms)
    assert [(m.offset, m.attempt) for m in found] == [(1, 1), (2, 1), (3, 1)]


def test_what_a_blocked_member_has_is_pending_at_once(
    stream: Stream, pool: ThreadPoolExecutor
) -> None:
    group = stream.group("g")
    members = [pool.submit(group.read, 1, ack_ms=LONG, block_ms=LONG) for _ in range(3)]
    wait_for_members(group, 3)
    for n in range(1, 4):
        # What a member has is still needed: a backlog of one leaves it where it is.
        assert stream.write("a", b"%d" % n, backlog=1) == n
        info = group.info()
        assert (info.ack_offset, info.pending, info.next) == (1, n, n + 1)
    assert sorted(offsets([each for member in members for each in member.result(60)])) == [1, 2, 3]
    assert group.ack(2) == 1
    assert group.nack(1) == 1
    assert offsets(group.read(2, ack_ms=LONG)) == [1]
    assert group.ack(1, 3) == 2
    assert group.info().ack_offset == 4
    assert stream.info().first == 1


def test_a_read_that_is_sent_again_finds_what_came_for_its_first_try(
    client: Headwater, stream: Stream
) -> None:
    def ask() -> Operation[bytes]:
        args = ("g", "m", 5, LONG, "", "first", "", "", "m.1", LONG, 7, "", 10**6)
        boxed: bytes = (yield Call("hw_group_read", stream_key(stream.name), args))[8]
        return boxed

    assert client.store.run(ask()) == b""
    # The answer was lost; before the next try a message comes, and is put into the box.
    stream.write("a", b"1")
    assert client.store.run(ask()).startswith(b"r1:1:1\n")
    stream.write("a", b"2")
    info = stream.group("g").info()
    assert (info.waiting, info.pending, info.lag) == (0, 1, 1), "nobody waits any more"


def test_members_that_block_in_great_number_are_all_served(
    client: Headwater, stream: Stream
) -> None:
    # More than are noted in one place; each takes its turn before any of them calls again.
    count = 40
    group = stream.group("g")
    group.read(1)

    def register(waiter: str) -> Operation[None]:
        args = ("g", waiter, 1, LONG, "", "first", "", "", waiter, LONG, 0, "", 10**6)
        yield Call("hw_group_read", stream_key(stream.name), args)

    for n in range(count):
        client.store.run(register(f"waiter-{n:032d}"))
    for n in range(count):
        stream.write("a", b"%d" % n)
    info = group.info()
    assert (info.pending, info.waiting, info.ack_offset) == (count, 0, 1)
    assert group.ack((1, count)) == count
    assert group.info().ack_offset == count + 1


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


@pytest.mark.parametrize("ack_ms", [None, FAR])
@pytest.mark.parametrize("size", [1, 5, 40, 600])
def test_a_write_wakes_a_blocked_member_within_milliseconds(
    stream: Stream, pool: ThreadPoolExecutor, size: int, ack_ms: int | None
) -> None:
    group = stream.group("g")
    group.read(0)

    def wait() -> list[int]:
        found = group.read(size, block_ms=LONG, ack_ms=ack_ms)
        assert pairs(found) == entries(size)
        assert {m.attempt for m in found} == {1}
        return offsets(found)

    def ready() -> bool:
        return group.info().waiting == 1

    def act() -> None:
        stream.write_many(entries(size))

    rounds = check_wakes(pool, wait, ready, act, within_ms=50)
    assert group.info().pending == (0 if ack_ms is None else rounds * size)


def test_blocked_members_are_served_in_turn(stream: Stream, pool: ThreadPoolExecutor) -> None:
    members = 4
    writes = 5 * members
    served: list[str] = []

    def work(name: str) -> None:
        group = stream.group("g", member=name)
        while group.read(1, block_ms=LONG)[0].value != b"stop":
            served.append(name)

    group = stream.group("g")
    group.read(0)
    workers = [pool.submit(work, f"m{i}") for i in range(members)]
    for done in range(writes):
        wait_for_members(group, members)
        stream.write("t", b"%d" % done)
        until(lambda: len(served) == done + 1)  # noqa: B023
    for left in range(members, 0, -1):
        wait_for_members(group, left)
        stream.write("t", b"stop")
    for worker in workers:
        worker.result(60)
    assert set(served[:members]) == {f"m{i}" for i in range(members)}
    assert served == served[:members] * (writes // members)


def test_a_batch_is_shared_among_blocked_members(stream: Stream, pool: ThreadPoolExecutor) -> None:
    group = stream.group("g")
    group.read(0)
    waits = [
        pool.submit(stream.group("g", member=f"m{i}").read, 10, block_ms=LONG, ack_ms=FAR)
        for i in range(3)
    ]
    wait_for_members(group, 3)
    stream.write_many(entries(30))
    shares = [offsets(wait.result(60)) for wait in waits]
    assert sorted(offset for share in shares for offset in share) == list(range(1, 31))
    assert [len(share) for share in shares] == [10, 10, 10]


def test_reads_that_block_through_one_client_are_all_served(
    client: Headwater, stream: Stream, pool: ThreadPoolExecutor
) -> None:
    one = stream.group("g")
    one.read(0)
    waits = [pool.submit(one.read, 1, block_ms=LONG) for _ in range(2)]
    waits += [
        pool.submit(client.stream(stream.name).group("g").read, 1, block_ms=LONG) for _ in range(2)
    ]
    wait_for_members(one, 4)
    stream.write_many(entries(4))
    assert sorted(m.offset for wait in waits for m in wait.result(60)) == [1, 2, 3, 4]


def test_one_write_wakes_every_group(stream: Stream, pool: ThreadPoolExecutor) -> None:
    groups = [stream.group(f"g{i}") for i in range(5)]
    for group in groups:
        group.read(0)
    waits = [pool.submit(group.read, 9, block_ms=LONG) for group in groups]
    for group in groups:
        wait_for_members(group, 1)
    stream.write_many(entries(3))
    assert [offsets(wait.result(60)) for wait in waits] == [[1, 2, 3]] * 5


def test_an_ack_wakes_a_member_that_max_pending_held_back(
    stream: Stream, pool: ThreadPoolExecutor
) -> None:
    stream.write_many(entries(100))
    group = stream.group("g", max_pending=2)
    group.read(2, ack_ms=FAR)

    def act() -> None:
        group.ack(group.info().ack_offset)

    def wait() -> list[int]:
        return offsets(group.read(5, block_ms=LONG, ack_ms=FAR))

    check_wakes(pool, wait, lambda: group.info().waiting == 1, act, within_ms=50)
    assert group.info().pending == 2


def test_a_nack_wakes_a_blocked_member(stream: Stream, pool: ThreadPoolExecutor) -> None:
    stream.write("a", b"1")
    group = stream.group("g")
    group.read(1, ack_ms=FAR)

    def wait() -> list[int]:
        return offsets(group.read(5, block_ms=LONG, ack_ms=FAR))

    def act() -> None:
        group.nack(1)

    check_wakes(pool, wait, lambda: group.info().waiting == 1, act, within_ms=50)


def test_a_nack_with_delay_wakes_a_blocked_member_when_it_is_due(
    stream: Stream, pool: ThreadPoolExecutor
) -> None:
    stream.write("a", b"1")
    group = stream.group("g")
    group.read(1, ack_ms=FAR)

    def wait() -> list[int]:
        return offsets(group.read(5, block_ms=LONG, ack_ms=FAR))

    def act() -> None:
        group.nack(1, delay_ms=120)

    def ready() -> bool:
        return group.info().waiting == 1

    check_wakes(pool, wait, ready, act, within_ms=250, not_before_ms=118)


def test_an_unacked_message_wakes_a_blocked_member_when_it_is_due(
    stream: Stream, pool: ThreadPoolExecutor
) -> None:
    group = stream.group("g")
    other = stream.group("g", member="other")

    def took_ms() -> float:
        offset = stream.write("a", b"1")
        begun = time.perf_counter()
        assert offsets(group.read(1, ack_ms=150)) == [offset]
        again = pool.submit(other.read, 5, block_ms=LONG, ack_ms=FAR).result(60)
        took = (time.perf_counter() - begun) * 1000
        assert [(m.offset, m.attempt) for m in again] == [(offset, 2)]
        assert took > 149
        return took

    check_quick(took_ms, 500, least=3)


def test_a_seek_wakes_a_blocked_member(stream: Stream, pool: ThreadPoolExecutor) -> None:
    stream.write_many(entries(3))
    group = stream.group("g", "last")
    group.read(0)

    def wait() -> list[int]:
        return offsets(group.read(5, block_ms=LONG))

    def act() -> None:
        group.seek(2)

    check_wakes(pool, wait, lambda: group.info().waiting == 1, act, within_ms=50)


def test_a_member_that_is_sent_among_holes_gets_the_next_message(
    stream: Stream, pool: ThreadPoolExecutor
) -> None:
    stream.write_many(entries(2500, tags=3))
    stream.compact()
    group = stream.group("g", "last")
    group.read(0)
    for ack_ms in (None, FAR):
        wait = pool.submit(group.read, 1, block_ms=LONG, ack_ms=ack_ms)
        wait_for_members(group, 1)
        group.seek("first")
        assert offsets(wait.result(60)) == [2498]
        assert group.info().pending == (0 if ack_ms is None else 1)
        group.seek("last")


@pytest.mark.parametrize("dead_letters", [False, True])
def test_a_message_that_expires_makes_room_for_a_blocked_member(
    stream: Stream, pool: ThreadPoolExecutor, dead_letters: bool
) -> None:
    group = stream.group("g", max_pending=1, dead_letters=dead_letters)

    def took_ms() -> float:
        first, second = stream.write_many(entries(2))
        begun = time.perf_counter()
        assert offsets(group.read(1, ack_ms=FAR, expire_ms=120)) == [first]
        got = pool.submit(group.read, 5, block_ms=LONG, ack_ms=FAR).result(60)
        took = (time.perf_counter() - begun) * 1000
        assert offsets(got) == [second]
        assert took > 119
        assert group.ack(second) == 1
        return took

    rounds = check_quick(took_ms, 600, least=3)
    assert group.info().expired == rounds


def test_a_redrive_wakes_a_blocked_member(
    client: Headwater, stream: Stream, pool: ThreadPoolExecutor
) -> None:
    stream.write("a", b"1")
    group = stream.group("g", dead_letters=True)
    group.read(1, ack_ms=FAR, expire_ms=1)
    let_pass(client, 1)
    group.bury()
    wait = pool.submit(group.read, 5, block_ms=LONG, ack_ms=FAR)
    wait_for_members(group, 1)
    assert group.redrive() == (1, 0)
    assert offsets(wait.result(60)) == [1]


@pytest.mark.parametrize("client", ["embedded-sync", "plain-async"], indirect=True)
def test_a_member_survives_the_end_of_its_group_and_stream(
    client: Headwater, stream: Stream, pool: ThreadPoolExecutor
) -> None:
    group = stream.group("g")
    stream.write("a", b"1")
    assert len(group.read(5)) == 1
    wait = pool.submit(group.read, 5, block_ms=LONG)
    wait_for_members(group, 1)
    group.remove()
    assert offsets(wait.result(60)) == [1]

    wait = pool.submit(group.read, 5, block_ms=LONG)
    wait_for_members(group, 1)
    stream.delete()
    client.stream(stream.name).write("b", b"2")
    assert pairs(wait.result(60)) == [("b", b"2")]
