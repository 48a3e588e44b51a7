"""What is handed to a blocked member is pending at once, and is lost with nobody."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from headwater import Headwater, Stream
from headwater.log.keys import stream_key
from headwater.store.call import Call, Operation
from tests.support.entries import entries, offsets
from tests.support.groups import FAR
from tests.support.waking import wait_for_members

LONG = 60_000


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


def test_many_writers_and_members_share_the_work_without_loss_or_repeat(
    client: Headwater, stream: Stream, pool: ThreadPoolExecutor
) -> None:
    done = threading.Event()

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
        while True:
            finished = done.is_set()
            if messages := group.read(20, block_ms=500, ack_ms=LONG):
                taken += offsets(messages)
                assert group.ack(*offsets(messages)) == len(messages)
            elif finished:
                return taken

    workers = [pool.submit(work, i) for i in range(4)]
    writers = [pool.submit(write, i) for i in range(3)]
    try:
        written = sorted(place for writer in writers for place in writer.result(60))
    finally:
        done.set()
    assert written == list(range(1, 1171))
    shares = [worker.result(60) for worker in workers]
    assert sorted(offset for share in shares for offset in share) == written
    assert stream.group("g").info().ack_offset == 1171
