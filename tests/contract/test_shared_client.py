"""Threads, tasks and forked processes may share a client; no call gets the reply of another."""

from __future__ import annotations

import asyncio
import contextlib
import os
import traceback
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

import headwater
from headwater.errors import StoreError
from tests.support.servers import Server, until

Dial = Callable[[str | None], headwater.Headwater]


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
