"""What a client rides out in the middle of work, and what it must tell its caller."""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import redis

import headwater
from headwater import aio
from headwater.errors import OutcomeUnknown, StoreError, StoreUnreachable
from headwater.store import connecting, faults
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


# ── Connections end when nobody needs them: after a burst, and with a reader that is cancelled ───


MANY = 30


@pytest.fixture
def quiet_server() -> Iterator[Server]:
    """A server that nobody else uses."""
    with Server(tcp=True) as server:
        yield server


@pytest.fixture
def brief(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connecting, "IDLE_S", 0.5)


def connections(server: Server) -> int:
    with server.client() as admin:
        return sum(client["name"] == "headwater" for client in admin.client_list())


def burst(hw: headwater.Headwater, server: Server, name: str) -> None:
    """Let many calls run at the same moment."""
    with ThreadPoolExecutor(MANY) as pool:
        stream = hw.stream(name)
        last = stream.info().last
        waiting = [
            pool.submit(lambda: stream.read(last + 1, 1, block_ms=20_000)) for _ in range(MANY)
        ]
        until(lambda: server.blocked("xread") == MANY)
        stream.write("t", b"v")
        assert all(len(one.result(60)) == 1 for one in waiting)


@pytest.mark.usefixtures("brief")
def test_connections_of_a_burst_are_closed_when_nobody_needs_them(
    quiet_server: Server, dial: Dial, name: str
) -> None:
    before = set(threading.enumerate())
    hw = dial(quiet_server.url)
    for _ in range(2):
        burst(hw, quiet_server, name)
        until(lambda: connections(quiet_server) <= connecting.KEPT)
    assert hw.stream(name).info().last == 2
    threads = {thread.name for thread in {*threading.enumerate()} - before}
    until(lambda: "headwater-idle" not in {thread.name for thread in threading.enumerate()})
    assert not {name for name in threads if name.startswith("headwater-")} - {"headwater-idle"}


@pytest.mark.usefixtures("brief")
def test_connections_that_are_needed_stay(quiet_server: Server, dial: Dial, name: str) -> None:
    hw = dial(quiet_server.url)
    stream = hw.stream(name)
    with ThreadPoolExecutor(MANY) as pool:
        waiting = [pool.submit(lambda: stream.read(1, 1, block_ms=3000)) for _ in range(MANY)]
        assert all(one.result(60) == [] for one in waiting), "none of them was closed meanwhile"


@pytest.mark.usefixtures("brief")
def test_a_forked_child_closes_its_own(quiet_server: Server, name: str) -> None:
    with headwater.connect(quiet_server.url) as hw:
        burst(hw, quiet_server, name)
        child = os.fork()
        if child == 0:
            code = 1
            try:
                burst(hw, quiet_server, name)
                until(lambda: connections(quiet_server) <= 2 * connecting.KEPT)
                code = 0
            finally:
                os._exit(code)
        until(lambda: connections(quiet_server) <= 2 * connecting.KEPT)
        _, status = os.waitpid(child, 0)
        assert status == 0


def test_who_cancels_a_blocked_read_leaves_the_server_at_once(
    quiet_server: Server, name: str
) -> None:
    async def cancel_all() -> None:
        async with aio.connect(quiet_server.url) as hw:
            stream, queue = hw.stream(name), hw.queue(name)
            reads = [
                asyncio.create_task(work)
                for _ in range(5)
                for work in (
                    stream.read(1, 1, block_ms=600_000),
                    stream.group("g").read(1, block_ms=600_000),
                    queue.pop(1, block_ms=600_000),
                )
            ]
            await asyncio.to_thread(until, lambda: blocked() == len(reads))
            for read in reads:
                read.cancel()
            await asyncio.gather(*reads, return_exceptions=True)
            await asyncio.to_thread(until, lambda: blocked() == 0, 0.5)

    def blocked() -> int:
        return quiet_server.blocked("xread") + quiet_server.blocked("blpop")

    asyncio.run(cancel_all())


# ── Threads, tasks and forked processes may share a client; no call gets the reply of another ────


def test_sixteen_threads_share_a_client(client: headwater.Headwater, name: str) -> None:
    stream = client.stream(name)

    def work(place: int) -> list[int]:
        offsets = []
        for i in range(25):
            value = b"%d:%d" % (place, i)
            offset = stream.write("t", value)
            (message,) = stream.read(offset, 1)
            assert message is not None
            assert message.value == value, "everyone gets the reply to their own call"
            offsets.append(offset)
        return offsets

    with ThreadPoolExecutor(16) as pool:
        offsets = [offset for found in pool.map(work, range(16)) for offset in found]
    assert sorted(offsets) == list(range(1, 401))


def test_threads_share_a_stream_and_a_group(client: headwater.Headwater, name: str) -> None:
    stream = client.stream(name)
    for node in range(8):
        stream.write_many([("t", b"%d" % (node * 1000 + i)) for i in range(1, 1001)])
    group = stream.group("g")

    def scan(place: int) -> list[int]:
        wrong = 0
        for start in range(1 + place * 130, 8000, 1100):
            for batch in stream.scan(start, start + 900):
                pairs = zip(batch["offset"].to_pylist(), batch["value"].to_pylist(), strict=True)
                wrong += sum(value != b"%d" % offset for offset, value in pairs)
        assert wrong == 0
        return []

    def take(_: int) -> list[int]:
        taken: list[int] = []
        while messages := group.read(37, ack_ms=60_000):
            assert all(message.value == b"%d" % message.offset for message in messages)
            taken += [message.offset for message in messages]
        return taken

    with ThreadPoolExecutor(16) as pool:
        tasks = [pool.submit(work, place) for place in range(8) for work in (scan, take)]
        taken = [offset for task in tasks for offset in task.result()]
    assert sorted(taken) == list(range(1, 8001))


def test_more_threads_than_any_pool_has_connections(server: Server, name: str) -> None:
    with headwater.connect(server.url) as hw:
        stream = hw.stream(name)
        with ThreadPoolExecutor(130) as pool:
            reads = [pool.submit(stream.read, 1, 1, block_ms=20_000) for _ in range(130)]
            until(lambda: server.blocked("xread") == 130)
            stream.write("t", b"v")
            assert all(m and m.value == b"v" for read in reads for m in read.result(60))


def test_a_forked_child_and_its_parent_never_share_a_connection(server: Server, name: str) -> None:
    with headwater.connect(server.url) as hw:
        stream = hw.stream(name)
        stream.write("t", b"before")
        children = []
        for child in range(4):
            pid = os.fork()
            if not pid:
                code = 1
                with contextlib.suppress(BaseException):
                    for i in range(50):
                        offset = stream.write("t", b"%d:%d" % (child, i))
                        (message,) = stream.read(offset, 1)
                        assert message is not None
                        assert message.value == b"%d:%d" % (child, i)
                    code = 0
                os._exit(code)
            children.append(pid)
        for i in range(50):
            offset = stream.write("t", b"parent:%d" % i)
            assert [m and m.value for m in stream.read(offset, 1)] == [b"parent:%d" % i]
        assert [os.waitpid(pid, 0)[1] for pid in children] == [0] * 4
        assert stream.info().last == 251


def test_a_cancelled_wait_never_leaves_its_reply_to_another(server: Server, name: str) -> None:
    async def scenario() -> None:
        async with headwater.aio.connect(server.url) as hw:
            stream, other = hw.stream(name), hw.stream(f"{name}-other")
            for round_ in range(20):
                waits = [
                    asyncio.create_task(stream.read(round_ + 1, 1, block_ms=20_000))
                    for _ in range(4)
                ]
                calls = [asyncio.create_task(other.write("t", b"x")) for _ in range(4)]
                await asyncio.sleep(0)
                if round_ % 2:
                    await asyncio.gather(*calls[2:])
                for task in (*waits[:3], *calls[:2]):
                    task.cancel()
                await asyncio.gather(*waits[:3], *calls, return_exceptions=True)
                # If a reply were left over, one of these would get it.
                found = await asyncio.gather(
                    *(stream.info() for _ in range(6)), stream.write("t", b"%d" % round_)
                )
                assert {type(reply).__name__ for reply in found[:6]} == {"StreamInfo"}
                assert found[6] == round_ + 1
                (message,) = await waits[3]
                assert message is not None
                assert message.value == b"%d" % round_

    asyncio.run(scenario())


def test_a_closed_client_says_so(server: Server, dial: Dial, name: str) -> None:
    hw = dial(server.url)
    hw.stream(name).write("t", b"v")
    hw.close()
    with pytest.raises(StoreError, match="was closed; connect again") as raised:
        hw.stream(name).write("t", b"v")
    # How connections are pooled is not the caller's concern.
    assert "IndexError" not in "".join(traceback.format_exception(raised.value))
    hw.close()
