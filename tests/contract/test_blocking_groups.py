"""Blocked members of a group wake when there is something for them, at once and in turn."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from headwater import Headwater, Stream
from tests.support.entries import entries, offsets, pairs
from tests.support.groups import FAR
from tests.support.servers import until
from tests.support.waking import check_quick, check_wakes, wait_for_members
from tests.support.watch import let_pass

LONG = 60_000


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
