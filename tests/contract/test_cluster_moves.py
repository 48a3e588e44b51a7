"""A cluster that changes under work: slots that move, and primaries that change."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from operator import ge
from typing import Any

import pytest
import redis

import headwater
from tests.support.servers import Cluster, Server, move_of, node_id, owner, slot_of, until

pytestmark = pytest.mark.cluster
Dial = Callable[[str | None], headwater.Headwater]


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(node_timeout_ms=1000) as cluster:
        yield cluster


class Work:
    """Writers, a member and a blocked reader that go on until told to stop."""

    def __init__(self, stream: headwater.Stream) -> None:
        self._stream = stream
        self._stop = threading.Event()
        self._pool = ThreadPoolExecutor(4)
        self.plain: list[int] = []
        self.numbered: list[int] = []
        self.acked: list[int] = []
        self.followed: list[bytes] = []
        self._tasks = [
            self._pool.submit(task)
            for task in (self._write_plain, self._write_numbered, self._take, self._follow)
        ]

    def go_on(self, count: int = 20) -> None:
        """Return when everybody has got on by so many messages."""
        lists: list[list[Any]] = [self.plain, self.numbered, self.acked, self.followed]
        goals = [len(done) + count for done in lists]
        until(lambda: self._failed() or all(map(ge, map(len, lists), goals)))

    def stop(self) -> None:
        """Let everybody end, and raise what went wrong for one of them."""
        self._stop.set()
        self._pool.shutdown()
        for task in self._tasks:
            task.result()

    def check(self) -> None:
        """Hold what everybody saw against the stream."""
        last = self._stream.info().last
        messages = [m for m in self._stream.read(1, last) if m is not None]
        assert [m.offset for m in messages] == list(range(1, last + 1))
        assert sorted(self.plain + self.numbered) == list(range(1, last + 1)), "each once"
        assert self.followed == [m.value for m in messages[: len(self.followed)]]
        assert sorted(self.acked) == list(range(1, len(self.acked) + 1))

    def _failed(self) -> bool:
        return any(task.done() and task.exception() for task in self._tasks)

    def _write_plain(self) -> None:
        while not self._stop.is_set():
            self.plain.append(self._stream.write("t", b"plain %d" % len(self.plain)))

    def _write_numbered(self) -> None:
        sequence = 0
        while not self._stop.is_set():
            sequence += 1
            entries = [("t", b"numbered %d" % sequence)] * 3
            written = self._stream.write_many(entries, producer="p", sequence=sequence)
            self.numbered += written

    def _take(self) -> None:
        group = self._stream.group("g")
        while not self._stop.is_set():
            messages = group.read(10, block_ms=200, ack_ms=60_000)
            if messages:
                assert {message.attempt for message in messages} == {1}
                group.ack(*(message.offset for message in messages))
                self.acked += [message.offset for message in messages]

    def _follow(self) -> None:
        while not self._stop.is_set():
            found = self._stream.read(len(self.followed) + 1, 10, block_ms=200)
            self.followed += [message.value for message in found if message is not None]


@contextlib.contextmanager
def working(stream: headwater.Stream) -> Iterator[Work]:
    work = Work(stream)
    try:
        work.go_on()
        yield work
        work.go_on()
    finally:
        work.stop()
    work.check()


def test_a_slot_that_moves_key_by_key_is_not_noticed(
    cluster: Cluster, dial: Dial, name: str
) -> None:
    stream = dial(cluster.url).stream(name)
    with move_of(cluster, name) as move:
        with working(stream) as work:
            move.begin()
            before = len(work.plain)
            moved = 0
            while move.one_key():
                # Calls come all the time; none may be stopped half way.
                moved += 1
                refused = move.refusals("TRYAGAIN", "ASK")
                until(lambda: move.refusals("TRYAGAIN", "ASK") > refused)  # noqa: B023  at once
            assert moved >= 3, "the parts of the stream went one by one"
            assert len(work.plain) <= before + 1, "nothing was half written meanwhile"
            move.finish()
        assert owner(cluster, move.slot) is move.target


def test_a_slot_that_moves_as_a_whole_is_not_noticed(
    cluster: Cluster, dial: Dial, name: str
) -> None:
    stream = dial(cluster.url).stream(name)
    with working(stream) as work, move_of(cluster, name) as move:
        try:
            place = ("SLOTSRANGE", move.slot, move.slot, "NODE", node_id(move.target))
            move.old.execute_command("CLUSTER", "MIGRATESLOTS", *place)
        except redis.ResponseError:
            pytest.skip("this server cannot move a slot as a whole")
        until(lambda: owner(cluster, move.slot) is move.target)
        work.go_on()


def fail_over_to(node: Server) -> None:
    """Make a replica the primary; a failover that its primary did not grant in time is repeated."""
    with node.client() as admin:

        def is_primary() -> bool:
            return bool(admin.info("replication")["role"] == "master")

        for _ in range(4):
            until(lambda: admin.info("replication").get("master_link_status") == "up")
            admin.execute_command("CLUSTER", "FAILOVER")
            with contextlib.suppress(AssertionError):
                until(is_primary, seconds=6)
                return
    raise AssertionError("the replica did not take over")


def test_a_planned_failover_is_not_noticed(cluster: Cluster, dial: Dial, name: str) -> None:
    stream = dial(cluster.url).stream(name)
    slot = slot_of(name)
    source = owner(cluster, slot)
    replica = cluster.add_replica(source)
    with working(stream) as work:
        for node in (replica, source):
            fail_over_to(node)
            work.go_on()
    assert owner(cluster, slot) is source


def test_a_primary_that_dies_is_replaced(dial: Dial, name: str) -> None:
    with Cluster(node_timeout_ms=500) as cluster:
        stream = dial(cluster.url).stream(name)
        source = owner(cluster, slot_of(name))
        cluster.add_replica(source)
        with source.client() as admin:
            for sequence in range(1, 6):
                stream.write_many([("t", b"%d" % sequence)], producer="p", sequence=sequence)
            admin.execute_command("WAIT", 1, 20_000)
        source.kill()
        assert stream.write_many([("t", b"6")], producer="p", sequence=6) == range(6, 7)
        found = [message and message.value for message in stream.read(1, 10)]
        assert found == [b"%d" % sequence for sequence in range(1, 7)]
        assert stream.write("t", b"7") == 7
