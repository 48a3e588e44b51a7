"""What a client rides out in the middle of work, and what it must tell its caller."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import redis

import headwater
from headwater.errors import OutcomeUnknown, StoreUnreachable
from headwater.store import faults
from headwater.store.library import NAME
from tests.support.forwarder import Forwarder
from tests.support.servers import Server, until
from tests.support.stores import Stores

Dial = Callable[[str | None], headwater.Headwater]
WRITE = b"_stream_write"
READ = b"_group_read"


@pytest.fixture
def door(server: Server) -> Iterator[Forwarder]:
    with Forwarder(server.port) as door:
        yield door


@pytest.fixture
def stream(door: Forwarder, dial: Dial, name: str) -> headwater.Stream:
    """A stream behind the door, with one message in it."""
    stream = dial(f"redis://127.0.0.1:{door.port}").stream(name)
    stream.write("t", b"first")
    return stream


def values(stream: headwater.Stream) -> list[bytes]:
    return [message.value for message in stream.read(1, 1000) if message is not None]


def in_background(work: Callable[[], Any]) -> Any:
    """Begin work in a thread of its own; returns what gives its result."""
    pool = ThreadPoolExecutor(1)
    future = pool.submit(work)
    pool.shutdown(wait=False)
    return future


# ── A library that is lost ───────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("loss", [("FUNCTION", "FLUSH"), ("FUNCTION", "DELETE", NAME)])
@pytest.mark.parametrize("kind", ["plain", pytest.param("cluster", marks=pytest.mark.cluster)])
def test_a_library_that_is_lost_is_brought_back_unnoticed(
    kind: str, loss: tuple[str, ...], stores: Stores, dial: Dial, name: str
) -> None:
    hw = dial(stores.url(kind))
    stream = hw.stream(name)
    group = stream.group("g")
    work: list[Callable[[], Any]] = [
        lambda: stream.write("t", b"1"),
        lambda: stream.write_many([("t", b"2"), ("t", b"3")]),
        lambda: values(stream),
        lambda: len(group.read(10, ack_ms=60_000)),
        lambda: group.ack((1, 3)),
        lambda: stream.info().last,
    ]
    results = []
    for step in work:
        hw.store.command(*loss)
        results.append(step())
    assert results == [1, range(2, 4), [b"1", b"2", b"3"], 3, 3, 3]


@pytest.mark.cluster
def test_a_library_lost_on_one_node_is_brought_back(stores: Stores, dial: Dial, name: str) -> None:
    url = stores.url("cluster")
    hw = dial(url)
    streams = [hw.stream(f"{name}-{place}") for place in range(12)]  # on every node
    for round_, node in enumerate(url.split(","), 1):
        with redis.Redis(port=int(node.rpartition(":")[2])) as admin:
            admin.function_flush()
        assert [stream.write("t", b"v") for stream in streams] == [round_] * 12


def test_a_blocked_reader_survives_the_loss_of_the_library(
    server: Server, dial: Dial, name: str
) -> None:
    hw = dial(server.url)
    group = hw.stream(name).group("g")
    waiting = in_background(lambda: group.read(1, block_ms=20_000))
    until(lambda: server.blocked("blpop") == 1)
    with server.client() as admin:
        admin.function_flush()
    hw.stream(name).write("t", b"v")
    assert [message.value for message in waiting.result(60)] == [b"v"]


# ── A server that is away for a while ────────────────────────────────────────────────────────


@pytest.mark.parametrize("tcp", [True, False])
def test_a_write_after_an_idle_time_with_a_restart_in_it_just_works(
    tcp: bool, dial: Dial, name: str
) -> None:
    with Server(tcp=tcp, fsync="always") as server:
        hw = dial(server.url)
        stream = hw.stream(name)
        with ThreadPoolExecutor(4) as pool:  # several idle connections
            list(pool.map(lambda i: stream.write("t", b"%d" % i), range(20)))
        for count in (21, 22, 23):
            server.kill()
            server.restart()
            assert stream.write("t", b"v") == count, "no error, and written once"
        assert stream.info().last == 23


def test_a_restart_in_the_middle_of_work_is_waited_for(dial: Dial, name: str) -> None:
    with Server(tcp=True, fsync="always") as server:
        stream = dial(server.url).stream(name)
        group = stream.group("g")
        stream.write_many([("t", b"1")], producer="p", sequence=1)
        server.kill()
        writing = in_background(lambda: stream.write_many([("t", b"2")], producer="p", sequence=2))
        reading = in_background(lambda: values(stream))
        taking = in_background(lambda: len(group.read(1, ack_ms=60_000)))
        until(lambda: not (writing.done() or reading.done() or taking.done()))
        server.restart()
        assert writing.result(60) == range(2, 3)
        assert reading.result(60)[:1] == [b"1"]
        assert taking.result(60) == 1


def test_a_server_that_stays_away_is_said_in_the_end(
    dial: Dial, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(faults, "PATIENCE_S", 0.3)
    with Server(tcp=True) as server:
        stream = dial(server.url).stream(name)
        stream.write("t", b"v")
        server.kill()
        with pytest.raises(StoreUnreachable):
            stream.write("t", b"v")
        with pytest.raises(StoreUnreachable):
            stream.read(1, 1)


# ── A connection that breaks around a call ───────────────────────────────────────────────────


def test_a_write_whose_reply_is_lost_has_an_unknown_outcome(
    door: Forwarder, stream: headwater.Stream
) -> None:
    door.lose("reply", WRITE)
    with pytest.raises(OutcomeUnknown, match=r"producer= and sequence=") as caught:
        stream.write("t", b"second")
    assert caught.value.operation == "hw_stream_write"
    assert values(stream) == [b"first", b"second"], "it was not sent again"
    assert stream.write("t", b"third") == 3


def test_a_write_that_is_lost_on_its_way_has_an_unknown_outcome(
    door: Forwarder, stream: headwater.Stream
) -> None:
    door.lose("request", WRITE)
    with pytest.raises(OutcomeUnknown):
        stream.write_many([("t", b"second")] * 10)
    assert values(stream) == [b"first"]
    assert stream.write("t", b"third") == 2


@pytest.mark.parametrize("what", ["request", "reply"])
def test_a_write_with_a_sequence_is_repeated_and_written_once(
    what: Any, door: Forwarder, stream: headwater.Stream
) -> None:
    for sequence in range(1, 6):
        door.lose(what, WRITE)
        entries = [("t", b"%d" % sequence)] * sequence
        written = stream.write_many(entries, producer="p", sequence=sequence)
        assert door.lost.is_set()
        assert len(written) == sequence
    expected = [b"%d" % sequence for sequence in range(1, 6) for _ in range(sequence)]
    assert values(stream) == [b"first", *expected]


def test_what_a_lost_reply_delivered_comes_again(door: Forwarder, stream: headwater.Stream) -> None:
    group = stream.group("g")
    door.lose("reply", READ)
    (message,) = group.read(1, ack_ms=100, block_ms=20_000)
    assert (message.value, message.attempt) == (b"first", 2)
    door.lose("reply", b"_group_ack")
    group.ack(message.offset)
    assert group.info().pending == 0


def test_a_group_read_without_retry_says_that_its_outcome_is_unknown(
    door: Forwarder, stream: headwater.Stream
) -> None:
    door.lose("reply", READ)
    with pytest.raises(OutcomeUnknown, match="ack_ms"):
        stream.group("g").read(1)


def test_a_blocked_reader_rides_out_a_broken_connection(
    door: Forwarder, server: Server, stream: headwater.Stream
) -> None:
    waiting = in_background(lambda: stream.read(2, 1, block_ms=20_000))
    until(lambda: server.blocked("xread") == 1)
    door.cut()
    until(lambda: server.blocked("xread") == 1)
    stream.write("t", b"second")
    assert [message.value for message in waiting.result(60)] == [b"second"]


def test_a_blocked_member_rides_out_a_broken_connection(
    door: Forwarder, server: Server, stream: headwater.Stream
) -> None:
    group = stream.group("g", "last")
    waiting = in_background(lambda: group.read(1, block_ms=20_000, ack_ms=500))
    until(lambda: server.blocked("blpop") == 1)
    door.cut()
    stream.write("t", b"second")
    assert [message.value for message in waiting.result(60)] == [b"second"]


def test_a_client_outlives_any_number_of_failures(
    door: Forwarder, stream: headwater.Stream
) -> None:
    for _ in range(150):
        door.cut()
        assert stream.info().last == 1
    assert stream.write("t", b"v") == 2


# ── Failover ─────────────────────────────────────────────────────────────────────────────────


@contextlib.contextmanager
def pair() -> Iterator[tuple[Server, Server]]:
    """A primary and its replica, in step."""
    with Server(tcp=True, options={"repl-diskless-sync-delay": "0"}) as primary:
        follow = f"127.0.0.1 {primary.port}"
        options: dict[str, str | None] = {"replicaof": follow, "repl-diskless-sync-delay": "0"}
        with Server(tcp=True, options=options) as replica:
            with replica.client() as admin:
                until(lambda: admin.info("replication")["master_link_status"] == "up")
            yield primary, replica


def promote(replica: Server, primary: Server) -> None:
    """Let the replica take over once it has all; the primary becomes its replica."""
    with primary.client() as old, replica.client() as new:
        old.execute_command("CLIENT", "PAUSE", 10_000, "WRITE")
        position = old.info("replication")["master_repl_offset"]
        until(lambda: new.info("replication")["slave_repl_offset"] >= position)
        new.execute_command("REPLICAOF", "NO", "ONE")
        old.execute_command("REPLICAOF", "127.0.0.1", replica.port)
        old.execute_command("CLIENT", "UNPAUSE")


def grow(written: list[int], count: int) -> None:
    """Return when so many more were written."""
    goal = len(written) + count
    until(lambda: len(written) >= goal)


def test_a_failover_behind_the_same_address_is_not_noticed(dial: Dial, name: str) -> None:
    with pair() as (primary, replica), Forwarder(primary.port) as door:
        stream = dial(f"redis://127.0.0.1:{door.port}").stream(name)
        stop = threading.Event()
        written: list[int] = []

        def write() -> None:
            while not stop.is_set():
                written.append(stream.write("t", b"%d" % len(written)))

        writing = in_background(write)
        group = stream.group("g", "last")
        group.read(0)
        waiting = in_background(lambda: group.read(1, block_ms=30_000, ack_ms=60_000))
        for source, target in ((primary, replica), (replica, primary)):
            grow(written, 20)
            door.switch(target.port)
            promote(target, source)
            grow(written, 20)
        stop.set()
        writing.result(60)
        assert waiting.result(60)
        assert written == list(range(1, len(written) + 1)), "no error, no gap, nothing twice"
        assert values(stream)[:1000] == [b"%d" % i for i in range(len(written))][:1000]


def test_a_primary_that_dies_is_replaced_by_its_replica(dial: Dial, name: str) -> None:
    with pair() as (primary, replica), Forwarder(primary.port) as door:
        stream = dial(f"redis://127.0.0.1:{door.port}").stream(name)
        for sequence in (1, 2):
            stream.write_many([("t", b"%d" % sequence)], producer="p", sequence=sequence)
        with primary.client() as old:
            old.execute_command("WAIT", 1, 20_000)
        primary.kill()
        writing = in_background(lambda: stream.write_many([("t", b"3")], producer="p", sequence=3))
        reading = in_background(lambda: values(stream))
        door.switch(replica.port)
        with replica.client() as new:
            new.execute_command("REPLICAOF", "NO", "ONE")
        assert writing.result(60) == range(3, 4)
        assert reading.result(60)[:2] == [b"1", b"2"]
