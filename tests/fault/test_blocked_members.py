"""Members that die while they are blocked, and members that only come late.

A member notes that it waits, then blocks. Between the two, and between being handed a message and
taking it, it can die; here it is stopped exactly there.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

import headwater
from headwater.log import grouping
from headwater.log.handles import GroupHandle, StreamHandle
from tests.support.servers import Server, until
from tests.support.stepping import Stepper
from tests.support.watch import blocked, let_pass

pytestmark = pytest.mark.fault

# How long a message may lie in the box of a member that does not come; stated in the Lua.
BOX_GRACE_MS = 2000
LONG_MS = 600_000


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with Server() as server:
        yield server


@pytest.fixture
def hw(server: Server) -> Iterator[headwater.Headwater]:
    with headwater.connect(server.url) as hw:
        yield hw


def about_to_block(
    hw: headwater.Headwater, name: str, ack_ms: int | None, member: str = "late"
) -> Stepper:
    """A member that the store takes for blocked, and that does nothing any more."""
    group = GroupHandle(StreamHandle(name, {name}), "g", member)
    stepper = Stepper(hw.store, grouping.read(group, 10, 500, ack_ms, None))
    stepper.step()
    assert hw.stream(name).group("g").info().waiting >= 1
    return stepper


def take(group: headwater.Group, ack_ms: int | None, block_ms: int = 0) -> list[tuple[int, int]]:
    messages = group.read(10, ack_ms=ack_ms, block_ms=block_ms)
    return [(message.offset, message.attempt) for message in messages]


@pytest.mark.parametrize("ack_ms", [None, LONG_MS])
@pytest.mark.parametrize("count", [1, 20])
def test_what_a_dead_member_never_took_reaches_another(
    ack_ms: int | None, count: int, hw: headwater.Headwater, name: str
) -> None:
    stream = hw.stream(name)
    group = stream.group("g", member="other")
    about_to_block(hw, name, ack_ms)
    stream.write_many([("t", b"%d" % i) for i in range(count)])
    handed = min(count, 10)
    rest = [(offset, 1) for offset in range(11, count + 1)]
    assert take(group, ack_ms) == rest, "the first ten are with the one who waited"
    begun = time.monotonic()
    found = take(group, ack_ms, block_ms=20_000)
    assert found == [(offset, 1) for offset in range(1, handed + 1)], "as if never delivered"
    assert (time.monotonic() - begun) * 1000 > BOX_GRACE_MS - 1500, "not while it may still come"
    assert take(group, ack_ms) == []
    assert group.info().pending == (count if ack_ms else 0)


@pytest.mark.parametrize("ack_ms", [None, LONG_MS])
def test_a_member_that_comes_late_but_in_time_has_what_it_was_handed(
    ack_ms: int | None, hw: headwater.Headwater, name: str
) -> None:
    late = about_to_block(hw, name, ack_ms)
    hw.stream(name).write("t", b"v")
    assert [(m.offset, m.attempt) for m in late.run().messages] == [(1, 1)]
    let_pass(hw, BOX_GRACE_MS)
    assert take(hw.stream(name).group("g"), ack_ms) == []


@pytest.mark.parametrize("ack_ms", [None, LONG_MS])
def test_a_member_that_comes_too_late_finds_nothing(
    ack_ms: int | None, hw: headwater.Headwater, name: str
) -> None:
    late = about_to_block(hw, name, ack_ms)
    hw.stream(name).write("t", b"v")
    group = hw.stream(name).group("g", member="other")
    assert take(group, ack_ms, block_ms=20_000) == [(1, 1)]
    assert late.run().messages == []
    assert take(group, ack_ms) == []


def test_what_came_due_before_it_was_taken_back_stays_with_its_new_owner(
    hw: headwater.Headwater, name: str
) -> None:
    group = hw.stream(name).group("g", member="other")
    about_to_block(hw, name, ack_ms=100)
    hw.stream(name).write("t", b"v")
    assert take(group, LONG_MS, block_ms=20_000) == [(1, 2)], "after its retry time"
    let_pass(hw, BOX_GRACE_MS)
    assert take(group, LONG_MS) == [], "it is pending, not lost"
    assert group.ack(1) == 1


def test_a_member_that_stopped_waiting_is_handed_nothing(
    hw: headwater.Headwater, name: str
) -> None:
    about_to_block(hw, name, None)
    let_pass(hw, 2000)  # it said it would wait half a second
    hw.stream(name).write("t", b"v")
    assert take(hw.stream(name).group("g"), None) == [(1, 1)]


def test_ranges_that_come_due_in_one_node_are_each_delivered_once(
    hw: headwater.Headwater, name: str
) -> None:
    stream = hw.stream(name)
    stream.write_many([("t", b"%d" % i) for i in range(1, 1001)])
    group = stream.group("g")
    for _ in range(20):
        group.read(5, ack_ms=LONG_MS)
    late = about_to_block_when_all_is_read(hw, name, group)
    group.nack(*((first, first + 2) for first in range(1, 100, 10)))
    found = [message.offset for message in late.run().messages]
    assert found == sorted(set(found))
    assert found == [1, 2, 3, 11, 12, 13, 21, 22, 23, 31]


def about_to_block_when_all_is_read(
    hw: headwater.Headwater, name: str, group: headwater.Group
) -> Stepper:
    group.read(1000, ack_ms=LONG_MS)
    return about_to_block(hw, name, LONG_MS)


MEMBER = """
import sys, headwater
with headwater.connect(sys.argv[1]) as hw:
    group = hw.stream(sys.argv[2]).group("g", member="killed")
    ack_ms = int(sys.argv[3]) or None
    if sys.argv[4] == "hold":
        messages = group.read(10, ack_ms=ack_ms)
        print(len(messages), flush=True)
        sys.stdin.read()
    group.read(10, ack_ms=ack_ms, block_ms=60_000)
"""


def member(server: Server, name: str, ack_ms: int, what: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", MEMBER, server.url, name, str(ack_ms), what],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def kill(process: subprocess.Popen[str]) -> None:
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()


@pytest.mark.parametrize("ack_ms", [0, LONG_MS])
def test_a_blocked_member_that_is_killed_takes_nothing_with_it(
    ack_ms: int, server: Server, hw: headwater.Headwater, name: str
) -> None:
    group = hw.stream(name).group("g", member="other")
    group.read(0)
    process = member(server, name, ack_ms, "block")
    try:
        until(lambda: blocked(hw) == 1)
    finally:
        kill(process)
    until(lambda: blocked(hw) == 0)
    hw.stream(name).write_many([("t", b"1"), ("t", b"2")])
    assert take(group, ack_ms or None, block_ms=20_000) == [(1, 1), (2, 1)]


def test_what_a_killed_member_held_comes_again_after_its_retry_time(
    server: Server, hw: headwater.Headwater, name: str
) -> None:
    hw.stream(name).write_many([("t", b"1"), ("t", b"2")])
    group = hw.stream(name).group("g", member="other")
    begun = time.monotonic()
    process = member(server, name, 2000, "hold")
    assert process.stdout is not None
    assert process.stdout.readline() == "2\n"
    kill(process)
    assert take(group, 2000) == [], "not before"
    assert take(group, 2000, block_ms=20_000) == [(1, 2), (2, 2)]
    assert time.monotonic() - begun > 2


WRITERS = MEMBERS = 8


def test_offsets_are_dense_and_everything_is_delivered_once(
    client: headwater.Headwater, name: str
) -> None:
    stream = client.stream(name)
    written: dict[int, bytes] = {}
    done = threading.Event()

    def write(writer: int) -> None:
        chance = random.Random(writer)
        for batch in range(25):
            size = chance.choice([1, 3, 40, 600])
            values = [b"%d.%d.%d" % (writer, batch, i) for i in range(size)]
            offsets = stream.write_many([("t", value) for value in values])
            written.update(zip(offsets, values, strict=True))

    def take(_: int) -> list[headwater.Message]:
        group, taken = stream.group("g"), []
        while True:
            finished = done.is_set()
            messages = group.read(200, block_ms=50, ack_ms=LONG_MS)
            if messages:
                taken += messages
                assert group.ack(*(m.offset for m in messages)) == len(messages)
            elif finished:
                return taken

    with ThreadPoolExecutor(WRITERS + MEMBERS) as pool:
        members = [pool.submit(take, member) for member in range(MEMBERS)]
        try:
            for task in [pool.submit(write, writer) for writer in range(WRITERS)]:
                task.result()
        finally:
            done.set()
        taken = [message for member in members for message in member.result()]
    assert sorted(written) == list(range(1, len(written) + 1))
    found = {message.offset: message.value for message in taken}
    assert len(taken) == len(found), "each once"
    assert found == written
    assert {message.attempt for message in taken} == {1}
    facts = stream.group("g").info()
    assert (facts.pending, facts.lag, facts.ack_offset) == (0, 0, len(written) + 1)


def test_blocked_members_have_fair_shares(client: headwater.Headwater, name: str) -> None:
    stream = client.stream(name)
    rounds = 30
    served: list[int] = []
    done = threading.Event()

    def take(member: int) -> None:
        group = stream.group("g", member=f"m{member}")
        while not done.is_set():
            for message in group.read(1, block_ms=2000, ack_ms=LONG_MS):
                group.ack(message.offset)
                served.append(member)

    with ThreadPoolExecutor(MEMBERS) as pool:
        members = [pool.submit(take, member) for member in range(MEMBERS)]
        try:
            group = stream.group("g")
            group.read(0)
            for count in range(1, rounds * MEMBERS + 1):
                until(lambda: group.info().waiting >= MEMBERS - 1)
                stream.write("t", b"v")
                until(lambda count=count: len(served) >= count)  # type: ignore[misc]
        finally:
            done.set()
        for member in members:
            member.result()
    shares = Counter(served)
    assert sum(shares.values()) == rounds * MEMBERS
    assert min(shares[member] for member in range(MEMBERS)) > rounds // 2, shares
    assert max(shares.values()) < rounds * 2, shares


def test_upkeep_by_many_at_once_changes_nothing_that_matters(
    client: headwater.Headwater, name: str
) -> None:
    stream = client.stream(name)
    written: dict[int, tuple[str, bytes]] = {}
    lock = threading.Lock()
    done = threading.Event()
    group = stream.group("g")
    group.read(0)
    stream.retain(max_count=100_000)

    def write(writer: int) -> None:
        chance = random.Random(writer)
        for batch in range(20):
            size = chance.choice([1, 30, 300, 900])
            entries = [
                (f"t{chance.randrange(2000)}", b"%d.%d.%d" % (writer, batch, i))
                for i in range(size)
            ]
            offsets = stream.write_many(entries)
            with lock:
                written.update(zip(offsets, entries, strict=True))

    def keep(keeper: int) -> None:
        work = (
            stream.seal,
            stream.compact,
            lambda: client.keep(name),
            lambda: stream.evict(keeper * 10),
        )
        while not done.is_set():
            work[keeper % 4]()

    def read(_: int) -> None:
        while not done.is_set():
            last = len(written)
            if last:
                for message in stream.read(random.randrange(last) + 1, 500):
                    if message is not None and message.offset in written:
                        assert written[message.offset] == (message.tag, message.value)

    with ThreadPoolExecutor(16) as pool:
        others = [pool.submit(keep, keeper) for keeper in range(8)]
        others += [pool.submit(read, reader) for reader in range(2)]
        try:
            for task in [pool.submit(write, writer) for writer in range(3)]:
                task.result()
        finally:
            done.set()
        for task in others:
            task.result()
    last = len(written)
    assert sorted(written) == list(range(1, last + 1))
    stream.evict(70)
    stream.compact()
    newest = {tag: offset for offset, (tag, _) in sorted(written.items()) if offset > 70}
    found = {m.offset: (m.tag, m.value) for m in stream.read(1, last) if m is not None}
    assert found == {offset: written[offset] for offset in newest.values()}
    assert stream.info().length == len(found)
    taken = [message.offset for message in iter_group(group)]
    assert taken == sorted(found), "the group finds all that is left"


def iter_group(group: headwater.Group) -> list[headwater.Message]:
    taken: list[headwater.Message] = []
    while messages := group.read(1000):
        taken += messages
    return taken
