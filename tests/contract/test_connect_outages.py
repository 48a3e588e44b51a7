"""Connecting while a server is away, not ready or full: it waits as calls do, and says why."""

from __future__ import annotations

import contextlib
import select
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import redis

import headwater
from headwater.errors import InvalidInput, StoreUnreachable, TooManyClients
from headwater.store import aio_connections, connections
from tests.support.servers import Cluster, Server, until
from tests.support.stores import works

Dial = Callable[[str | None], headwater.Headwater]


def waits(caplog: pytest.LogCaptureFixture) -> bool:
    """Return whether somebody logged that it waits for a store."""
    return any("waiting for the store" in record.getMessage() for record in caplog.records)


@pytest.mark.parametrize("tcp", [True, False])
def test_a_server_that_is_not_there_is_waited_for_if_asked_to(
    tcp: bool, dial_patiently: Dial, pool: ThreadPoolExecutor, caplog: pytest.LogCaptureFixture
) -> None:
    with Server(tcp=tcp) as server:
        server.kill()
        # A server that ends by itself takes its socket along.
        server.socket.unlink()
        connecting = pool.submit(dial_patiently, server.url)
        until(lambda: waits(caplog))
        server.restart()
        assert works(connecting.result(60))
    begin, end = (record.getMessage() for record in caplog.records)
    assert begin.startswith(f"waiting for the store at {server.url}, for up to 30 s: ")
    assert end.startswith(f"the store at {server.url} is there, after ")


@pytest.mark.parametrize("tcp", [True, False])
def test_a_server_that_has_answered_and_restarts_is_waited_for(
    tcp: bool, dial: Dial, pool: ThreadPoolExecutor, name: str
) -> None:
    tried = threading.Event()
    with Server(tcp=tcp) as server:
        queue = dial(server.url).queue(name)
        queue.push(b"1", dedupe="1")
        server.kill()
        server.socket.unlink()

        def push() -> object:
            tried.set()
            return queue.push(b"2", dedupe="2")

        pushing = pool.submit(push)
        assert tried.wait(60)
        server.restart()
        pushing.result(60)
        assert queue.stats().ready


@pytest.mark.cluster
def test_a_failover_in_a_cluster_is_waited_for(
    dial: Dial, pool: ThreadPoolExecutor, caplog: pytest.LogCaptureFixture
) -> None:
    with Cluster(node_timeout_ms=1000) as cluster:
        for node in cluster.nodes:
            cluster.add_replica(node)
        cluster.nodes[1].kill()
        connecting = pool.submit(dial, cluster.url)
        until(lambda: waits(caplog) or connecting.done())
        hw = connecting.result(60)
        assert waits(caplog), "it began before the failover was over"
        assert all(works(hw) for _ in range(20)), "keys of every node"


@pytest.mark.cluster
def test_a_failover_in_a_cluster_is_waited_for_by_who_does_not_wait_for_an_absent_store(
    dial_at_once: Dial,
) -> None:
    with Cluster(node_timeout_ms=1000) as cluster:
        cluster.add_replica(cluster.nodes[1])
        cluster.nodes[1].kill()
        assert works(dial_at_once(cluster.url))


def test_a_server_that_stays_away_is_said_when_the_wait_is_over(
    dial: Callable[..., headwater.Headwater],
) -> None:
    with Server(tcp=True) as server:
        server.kill()
        begun = time.monotonic()
        with pytest.raises(StoreUnreachable):
            dial(server.url, wait_ms=500)
        assert time.monotonic() - begun >= 0.5


@pytest.mark.parametrize("wait_ms", [-1, 1.5, "1", True])
def test_a_time_to_wait_that_is_none_is_refused(wait_ms: object, dial: Callable[..., None]) -> None:
    with pytest.raises(InvalidInput, match="wait_ms"):
        dial("redis://127.0.0.1:1", wait_ms=wait_ms)


# ── A server that takes no more connections ──────────────────────────────────────────────────


@contextlib.contextmanager
def full(server: Server) -> Iterator[redis.Redis]:
    """Let a server take no more connections than it has."""
    with server.client() as admin:
        before = admin.config_get("maxclients")["maxclients"]
        admin.config_set("maxclients", len(admin.client_list()))
        try:
            yield admin
        finally:
            admin.config_set("maxclients", before)


@pytest.mark.parametrize("door", ["port", "socket"])
def test_a_server_that_takes_no_more_connections_is_said_at_once(
    door: str, server: Server, dial: Dial
) -> None:
    url = server.url if door == "port" else f"unix://{server.socket}"
    with full(server):
        for _ in range(20):
            begun = time.monotonic()
            with pytest.raises(TooManyClients, match="maxclients") as caught:
                dial(url)
            assert time.monotonic() - begun < 5
            assert caught.value.where == url


def test_what_a_server_said_before_it_closed_is_not_lost_with_a_broken_pipe(
    dial: Dial, tmp_path: Path, pool: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may close between the look at what it said and the first command."""
    looked = threading.Event()

    def sees_nothing_yet(sock: Any) -> bool:
        looked.set()
        poll = select.poll()
        poll.register(sock, 0)
        assert poll.poll(20_000), "the other side has closed"
        return False

    for twin in (connections, aio_connections):
        monkeypatch.setattr(twin, "has_news", sees_nothing_yet)
    path = str(tmp_path / "full.sock")
    with socket.socket(socket.AF_UNIX) as door:
        door.bind(path)
        door.listen()

        def refuse() -> None:
            guest, _ = door.accept()
            with guest:
                assert looked.wait(60)
                guest.sendall(b"-ERR max number of clients reached\r\n")

        refused = pool.submit(refuse)
        with pytest.raises(TooManyClients):
            dial(f"unix://{path}")
        refused.result(60)


def test_a_call_that_needs_one_connection_too_many_says_so_and_changes_nothing(
    server: Server, dial: Dial, pool: ThreadPoolExecutor, name: str
) -> None:
    stream = dial(server.url).stream(name)
    with full(server) as admin:
        reading = pool.submit(lambda: stream.read(1, 1, block_ms=20_000))
        until(lambda: any("b" in client["flags"] for client in admin.client_list()))
        for _ in range(20):
            with pytest.raises(TooManyClients):
                stream.write("t", b"v")
    assert stream.write("t", b"v") == 1
    assert len(reading.result(60)) == 1


# ── What a client that could not connect shows of itself ─────────────────────────────────────


def test_a_client_that_could_not_connect_can_be_shown() -> None:
    for kind in (headwater.Headwater, headwater.aio.AsyncHeadwater):
        assert repr(kind.__new__(kind)) == f"{kind.__name__}(not connected)"
