"""Many writers and many members at once: dense offsets, everything once, fair shares."""

from __future__ import annotations

import random
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pytest

import headwater
from tests.support.servers import until

pytestmark = pytest.mark.fault
WRITERS = MEMBERS = 8
LONG_MS = 600_000


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
