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
from redis.crc import key_slot

import headwater
from headwater.log.keys import stream_key
from tests.support.servers import Cluster, Server, node_id, until

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
            messages = group.read(10, block_ms=200, retry_ms=60_000)
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


def owner(cluster: Cluster, slot: int) -> Server:
    """Name the node that has a slot, as the first node knows it."""
    with cluster.nodes[0].client() as admin:
        admin.response_callbacks.clear()
        table: list[Any] = admin.execute_command("CLUSTER", "SLOTS")
    port = next(place[1] for first, last, place, *_ in table if first <= slot <= last)
    return next(node for node in (*cluster.nodes, *cluster.replicas) if node.port == port)


def ends(cluster: Cluster, name: str) -> tuple[int, Server, Server]:
    """Name a stream's slot, the node that has it, and another one."""
    slot = key_slot(stream_key(name).encode())
    source = owner(cluster, slot)
    return slot, source, next(node for node in cluster.nodes if node is not source)


def test_a_slot_that_moves_key_by_key_is_not_noticed(
    cluster: Cluster, dial: Dial, name: str
) -> None:
    stream = dial(cluster.url).stream(name)
    slot, source, target = ends(cluster, name)
    with working(stream) as work, source.client() as old, target.client() as new:
        new.execute_command("CLUSTER", "SETSLOT", slot, "IMPORTING", node_id(source))
        old.execute_command("CLUSTER", "SETSLOT", slot, "MIGRATING", node_id(target))
        before = len(work.plain)
        moved = 0
        while keys := old.execute_command("CLUSTER", "GETKEYSINSLOT", slot, 1):
            # Calls come all the time; none may be stopped half way.
            old.execute_command("MIGRATE", "127.0.0.1", target.port, keys[0], 0, 5000)
            moved += 1
            wait_for_refusals(old, new)
        assert moved >= 3, "the parts of the stream went one by one"
        assert len(work.plain) <= before + 1, "nothing was half written meanwhile"
        for node in (new, old):
            node.execute_command("CLUSTER", "SETSLOT", slot, "NODE", node_id(target))
    assert owner(cluster, slot) is target


def wait_for_refusals(*nodes: redis.Redis) -> None:
    """Return when nodes have refused another call because its slot is on its way."""

    def refusals() -> int:
        counts = [node.info("errorstats").items() for node in nodes]
        names = ("errorstat_TRYAGAIN", "errorstat_ASK")
        return sum(int(fact["count"]) for found in counts for name, fact in found if name in names)

    before = refusals()
    until(lambda: refusals() > before)


def test_a_slot_that_moves_as_a_whole_is_not_noticed(
    cluster: Cluster, dial: Dial, name: str
) -> None:
    stream = dial(cluster.url).stream(name)
    slot, source, target = ends(cluster, name)
    with working(stream) as work, source.client() as old:
        try:
            place = ("SLOTSRANGE", slot, slot, "NODE", node_id(target))
            old.execute_command("CLUSTER", "MIGRATESLOTS", *place)
        except redis.ResponseError:
            pytest.skip("this server cannot move a slot as a whole")
        until(lambda: owner(cluster, slot) is target)
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
    slot, source, _ = ends(cluster, name)
    replica = cluster.add_replica(source)
    with working(stream) as work:
        for node in (replica, source):
            fail_over_to(node)
            work.go_on()
    assert owner(cluster, slot) is source


def test_a_primary_that_dies_is_replaced(dial: Dial, name: str) -> None:
    with Cluster(node_timeout_ms=500) as cluster:
        stream = dial(cluster.url).stream(name)
        _, source, _ = ends(cluster, name)
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
