"""Blocked readers wake when there is something for them, at once and in turn."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest

from headwater import Group, Headwater, Stream
from headwater.log.keys import stream_key
from headwater.store.call import Call, Operation
from tests.support.entries import entries, offsets, pairs
from tests.support.servers import until
from tests.support.watch import blocked, let_pass

FAR = 10**9
LONG = 60_000


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(16) as pool:
        yield pool


def wait_for_members(group: Group, count: int) -> None:
    until(lambda: group.info().waiting == count)


def wake_ms(
    pool: ThreadPoolExecutor,
    wait: Callable[[], Any],
    ready: Callable[[], Any],
    act: Callable[[], Any],
) -> float:
    """Measure how long after ``act`` a blocked ``wait`` returns; the quickest of five counts."""
    quickest = math.inf
    for _ in range(5):
        waiting = pool.submit(lambda: (wait(), time.perf_counter()))
        until(ready)
        begun = time.perf_counter()
        act()
        found, woken = waiting.result(20)
        assert found
        quickest = min(quickest, (woken - begun) * 1000)
    return quickest


# ── Plain readers ────────────────────────────────────────────────────────────────────────────


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

    assert (
        wake_ms(pool, wait, lambda: blocked(client), lambda: stream.write_many(entries(size))) < 50
    )


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
    assert pairs(reader.result(20)) == rows[102 : 102 + len(reader.result())]
    assert reader.result()


@pytest.mark.parametrize("size", [40, 700])
def test_a_batch_wakes_a_reader_that_waits_for_its_middle(
    client: Headwater, stream: Stream, pool: ThreadPoolExecutor, size: int
) -> None:
    reader = pool.submit(stream.read, size // 2, 5, block_ms=LONG)
    until(lambda: blocked(client))
    stream.write_many(entries(size))
    assert pairs(reader.result(20)) == entries(size)[size // 2 - 1 : size // 2 + 4]


def test_a_reader_may_wait_before_the_stream_exists(
    client: Headwater, stream: Stream, pool: ThreadPoolExecutor
) -> None:
    reader = pool.submit(stream.read, 1, 5, block_ms=math.inf)
    until(lambda: blocked(client))
    stream.write("a", b"1")
    assert pairs(reader.result(20)) == [("a", b"1")]


def test_a_reader_that_waits_in_vain_gets_nothing_when_its_time_is_up(stream: Stream) -> None:
    stream.write("a", b"1")
    for wait in (
        lambda: stream.read(2, 5, block_ms=60),
        lambda: stream.group("g", "last").read(5, block_ms=60),
        lambda: stream.group("g", "last").read(5, block_ms=60, retry_ms=10),
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
    assert pairs(follower.result(30)) == entries(len(follower.result()))


# ── Members of groups ────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("retry_ms", [None, FAR])
@pytest.mark.parametrize("size", [1, 5, 40, 600])
def test_a_write_wakes_a_blocked_member_within_milliseconds(
    stream: Stream, pool: ThreadPoolExecutor, size: int, retry_ms: int | None
) -> None:
    group = stream.group("g")
    group.read(0)

    def wait() -> list[int]:
        found = group.read(size, block_ms=LONG, retry_ms=retry_ms)
        assert pairs(found) == entries(size)
        assert {m.attempt for m in found} == {1}
        return offsets(found)

    def ready() -> bool:
        return group.info().waiting == 1

    assert wake_ms(pool, wait, ready, lambda: stream.write_many(entries(size))) < 50
    assert group.info().pending == (0 if retry_ms is None else 5 * size)


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
        worker.result(20)
    assert set(served[:members]) == {f"m{i}" for i in range(members)}
    assert served == served[:members] * (writes // members)


def test_a_batch_is_shared_among_blocked_members(stream: Stream, pool: ThreadPoolExecutor) -> None:
    group = stream.group("g")
    group.read(0)
    waits = [
        pool.submit(stream.group("g", member=f"m{i}").read, 10, block_ms=LONG, retry_ms=FAR)
        for i in range(3)
    ]
    wait_for_members(group, 3)
    stream.write_many(entries(30))
    shares = [offsets(wait.result(20)) for wait in waits]
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
    assert sorted(m.offset for wait in waits for m in wait.result(20)) == [1, 2, 3, 4]


def test_one_write_wakes_every_group(stream: Stream, pool: ThreadPoolExecutor) -> None:
    groups = [stream.group(f"g{i}") for i in range(5)]
    for group in groups:
        group.read(0)
    waits = [pool.submit(group.read, 9, block_ms=LONG) for group in groups]
    for group in groups:
        wait_for_members(group, 1)
    stream.write_many(entries(3))
    assert [offsets(wait.result(20)) for wait in waits] == [[1, 2, 3]] * 5


def test_an_ack_wakes_a_member_that_max_pending_held_back(
    stream: Stream, pool: ThreadPoolExecutor
) -> None:
    stream.write_many(entries(100))
    group = stream.group("g", max_pending=2)
    group.read(2, retry_ms=FAR)

    def act() -> None:
        group.ack(group.info().ack_offset)

    def wait() -> list[int]:
        return offsets(group.read(5, block_ms=LONG, retry_ms=FAR))

    assert wake_ms(pool, wait, lambda: group.info().waiting == 1, act) < 50
    assert group.info().pending == 2


def test_a_nack_wakes_a_blocked_member(stream: Stream, pool: ThreadPoolExecutor) -> None:
    stream.write("a", b"1")
    group = stream.group("g")
    group.read(1, retry_ms=FAR)

    def wait() -> list[int]:
        return offsets(group.read(5, block_ms=LONG, retry_ms=FAR))

    assert wake_ms(pool, wait, lambda: group.info().waiting == 1, lambda: group.nack(1)) < 50


def test_a_nack_with_delay_wakes_a_blocked_member_when_it_is_due(
    stream: Stream, pool: ThreadPoolExecutor
) -> None:
    stream.write("a", b"1")
    group = stream.group("g")
    group.read(1, retry_ms=FAR)

    def wait() -> list[int]:
        return offsets(group.read(5, block_ms=LONG, retry_ms=FAR))

    def act() -> None:
        group.nack(1, delay_ms=120)

    assert 118 < wake_ms(pool, wait, lambda: group.info().waiting == 1, act) < 250


def test_an_unacked_message_wakes_a_blocked_member_when_it_is_due(
    stream: Stream, pool: ThreadPoolExecutor
) -> None:
    group = stream.group("g")
    other = stream.group("g", member="other")
    quickest = math.inf
    for _ in range(3):
        offset = stream.write("a", b"1")
        begun = time.perf_counter()
        assert offsets(group.read(1, retry_ms=150)) == [offset]
        again = pool.submit(other.read, 5, block_ms=LONG, retry_ms=FAR).result(20)
        assert [(m.offset, m.attempt) for m in again] == [(offset, 2)]
        quickest = min(quickest, time.perf_counter() - begun)
    assert 0.149 < quickest < 0.5


def test_a_seek_wakes_a_blocked_member(stream: Stream, pool: ThreadPoolExecutor) -> None:
    stream.write_many(entries(3))
    group = stream.group("g", "last")
    group.read(0)

    def wait() -> list[int]:
        return offsets(group.read(5, block_ms=LONG))

    assert wake_ms(pool, wait, lambda: group.info().waiting == 1, lambda: group.seek(2)) < 50


def test_a_member_that_is_sent_among_holes_gets_the_next_message(
    stream: Stream, pool: ThreadPoolExecutor
) -> None:
    stream.write_many(entries(2500, tags=3))
    stream.compact()
    group = stream.group("g", "last")
    group.read(0)
    for retry_ms in (None, FAR):
        wait = pool.submit(group.read, 1, block_ms=LONG, retry_ms=retry_ms)
        wait_for_members(group, 1)
        group.seek("first")
        assert offsets(wait.result(20)) == [2498]
        assert group.info().pending == (0 if retry_ms is None else 1)
        group.seek("last")


@pytest.mark.parametrize("dead_letters", [False, True])
def test_a_message_that_expires_makes_room_for_a_blocked_member(
    stream: Stream, pool: ThreadPoolExecutor, dead_letters: bool
) -> None:
    group = stream.group("g", max_pending=1, dead_letters=dead_letters)
    quickest = math.inf
    for _ in range(3):
        first, second = stream.write_many(entries(2))
        begun = time.perf_counter()
        assert offsets(group.read(1, retry_ms=FAR, expire_ms=120)) == [first]
        got = pool.submit(group.read, 5, block_ms=LONG, retry_ms=FAR).result(20)
        assert offsets(got) == [second]
        quickest = min(quickest, time.perf_counter() - begun)
        assert group.ack(second) == 1
    assert 0.119 < quickest < 0.6
    assert group.info().expired == 3


def test_a_redrive_wakes_a_blocked_member(
    client: Headwater, stream: Stream, pool: ThreadPoolExecutor
) -> None:
    stream.write("a", b"1")
    group = stream.group("g", dead_letters=True)
    group.read(1, retry_ms=FAR, expire_ms=1)
    let_pass(client, 1)
    group.bury()
    wait = pool.submit(group.read, 5, block_ms=LONG, retry_ms=FAR)
    wait_for_members(group, 1)
    assert group.redrive() == (1, 0)
    assert offsets(wait.result(20)) == [1]


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
    assert offsets(wait.result(20)) == [1]

    wait = pool.submit(group.read, 5, block_ms=LONG)
    wait_for_members(group, 1)
    stream.delete()
    client.stream(stream.name).write("b", b"2")
    assert pairs(wait.result(20)) == [("b", b"2")]


def test_a_member_that_stopped_waiting_takes_nothing(stream: Stream) -> None:
    gone = stream.group("g", member="gone")
    assert gone.read(5, block_ms=30, retry_ms=FAR) == []
    stream.write_many(entries(3))
    assert offsets(stream.group("g", member="here").read(5, retry_ms=FAR)) == [1, 2, 3]


@pytest.mark.slow
@pytest.mark.parametrize("client", ["embedded-sync", "plain-async"], indirect=True)
@pytest.mark.parametrize("retry_ms", [None, FAR])
def test_what_was_handed_to_a_member_that_died_is_handed_to_another(
    client: Headwater, stream: Stream, retry_ms: int | None
) -> None:
    def wait_and_die() -> Operation[None]:
        terms = ("" if retry_ms is None else retry_ms, "")
        args = ("g", "dying", 5, *terms, "first", "", "", "dying.1", 60_000, 0, "", 10**6)
        yield Call("hw_group_read", stream_key(stream.name), args)

    client.store.run(wait_and_die())
    stream.write_many(entries(3))
    found = stream.group("g", member="living").read(5, block_ms=10_000, retry_ms=retry_ms)
    assert [(m.offset, m.attempt) for m in found] == [(1, 1), (2, 1), (3, 1)]


def test_what_a_blocked_member_has_is_pending_at_once(
    stream: Stream, pool: ThreadPoolExecutor
) -> None:
    group = stream.group("g")
    members = [pool.submit(group.read, 1, retry_ms=LONG, block_ms=LONG) for _ in range(3)]
    wait_for_members(group, 3)
    for n in range(1, 4):
        # What a member has is still needed: a backlog of one leaves it where it is.
        assert stream.write("a", b"%d" % n, backlog=1) == n
        info = group.info()
        assert (info.ack_offset, info.pending, info.next) == (1, n, n + 1)
    assert sorted(offsets([each for member in members for each in member.result(20)])) == [1, 2, 3]
    assert group.ack(2) == 1
    assert group.nack(1) == 1
    assert offsets(group.read(2, retry_ms=LONG)) == [1]
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


def test_many_writers_and_members_share_the_work_without_loss_or_repeat(
    client: Headwater, stream: Stream, pool: ThreadPoolExecutor
) -> None:
    def write(writer: int) -> list[int]:
        places: list[int] = []
        for turn in range(40):
            size = (1, 1, 7, 30)[turn % 4]
            rows = [(f"w{writer}", b"%d.%d.%d" % (writer, turn, i)) for i in range(size)]
            places += client.stream(stream.name).write_many(rows)
        return places

    def work(member: int) -> list[int]:
        group = client.stream(stream.name).group("g", member=f"m{member}")
        taken: list[int] = []
        while messages := group.read(20, block_ms=1000, retry_ms=LONG):
            taken += offsets(messages)
            assert group.ack(*offsets(messages)) == len(messages)
        return taken

    workers = [pool.submit(work, i) for i in range(4)]
    writers = [pool.submit(write, i) for i in range(3)]
    written = sorted(place for writer in writers for place in writer.result(60))
    assert written == list(range(1, 1171))
    shares = [worker.result(60) for worker in workers]
    assert sorted(offset for share in shares for offset in share) == written
    assert stream.group("g").info().ack_offset == 1171
