"""Connections end when nobody needs them: after a burst, and with a reader that is cancelled."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

import headwater
from headwater import aio
from headwater.store import connecting
from tests.support.servers import Server, until

Dial = Callable[[str | None], headwater.Headwater]
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
