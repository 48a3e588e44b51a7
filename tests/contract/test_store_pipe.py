"""A connection that many calls share: replies in order, and nobody waits for what cannot come."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import ssl
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest
import redis
import trustme
import uvloop
from hiredis import pack_command

from headwater.store.aio_pipe import AsyncPipe, PackedCommands
from headwater.store.aio_store import AsyncStore
from tests.support.forwarder import Forwarder
from tests.support.servers import Server

Scene = Callable[[AsyncPipe], Awaitable[None]]


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with Server() as server:
        yield server


def play(
    server: Server, scene: Scene, timeout_s: float = 20.0, url: str = "", new_loop: Any = None
) -> None:
    async def run() -> None:
        store = await AsyncStore.open(url or server.url)
        pipe = await store.pipe(timeout_s)
        try:
            await scene(pipe)
        finally:
            pipe.abort(redis.ConnectionError("over"))
            await store.close()

    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(run())


def packed(*commands: tuple[Any, ...]) -> PackedCommands:
    return PackedCommands(b"".join(map(pack_command, commands)), len(commands), "test")


def echo(*texts: bytes) -> PackedCommands:
    return packed(*(("ECHO", text) for text in texts))


def test_each_call_gets_its_own_replies(server: Server) -> None:
    async def scene(pipe: AsyncPipe) -> None:
        large = b"x" * 3_000_000
        calls = [pipe.send(echo(b"%d" % n, b"more", large[: n * 1000])) for n in range(200)]
        calls.append(pipe.send(echo(large)))
        found = await asyncio.gather(*calls)
        assert found[:-1] == [[b"%d" % n, b"more", large[: n * 1000]] for n in range(200)]
        assert found[-1] == [large]

    play(server, scene)


@pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_it_is_logged_in_and_encrypted_as_any_connection(new_loop: Any) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    trustme.CA().issue_cert("localhost").configure_cert(context)
    with Server(tcp=True) as locked, Forwarder(locked.port, context) as door:
        locked.client().config_set("requirepass", "secret")

        async def scene(pipe: AsyncPipe) -> None:
            large = b"x" * 1_000_000
            calls = [pipe.send(echo(b"%d" % n, large)) for n in range(5)]
            assert await asyncio.gather(*calls) == [[b"%d" % n, large] for n in range(5)]
            (told,) = await pipe.send(packed(("CLIENT", "INFO")))
            assert b" db=3 " in told

        url = f"rediss://:secret@localhost:{door.port}/3?ssl_cert_reqs=none"
        play(locked, scene, url=url, new_loop=new_loop)


def test_an_error_is_that_of_its_call_alone(server: Server) -> None:
    async def scene(pipe: AsyncPipe) -> None:
        bad = pipe.send(packed(("ECHO", b"a"), ("NONSENSE",), ("ECHO", b"b")))
        good = pipe.send(echo(b"c"))
        with pytest.raises(redis.ResponseError, match="NONSENSE"):
            await bad
        assert await good == [b"c"]
        assert pipe.is_open

    play(server, scene)


def test_who_no_longer_waits_does_not_shift_the_replies_of_others(server: Server) -> None:
    async def scene(pipe: AsyncPipe) -> None:
        left, kept = pipe.send(echo(b"left", b"left")), pipe.send(echo(b"kept"))
        left.cancel()
        assert await kept == [b"kept"]

    play(server, scene)


def test_a_server_that_does_not_answer_is_given_up_for_all_who_wait(server: Server) -> None:
    async def scene(pipe: AsyncPipe) -> None:
        assert await pipe.send(echo(b"a")) == [b"a"]
        pid = server.pid
        os.kill(pid, signal.SIGSTOP)
        try:
            found = await asyncio.gather(
                *(pipe.send(echo(b"b")) for _ in range(3)), return_exceptions=True
            )
        finally:
            os.kill(pid, signal.SIGCONT)
        assert [type(error) for error in found] == [TimeoutError] * 3
        assert not pipe.is_open
        with pytest.raises(TimeoutError):
            await pipe.send(echo(b"c"))

    play(server, scene, timeout_s=0.1)


def test_a_connection_that_breaks_is_told_to_all_who_wait(server: Server) -> None:
    async def scene(pipe: AsyncPipe) -> None:
        with contextlib.closing(server.client()) as client:
            (mine,) = await pipe.send(packed(("CLIENT", "ID")))
            waiting = [pipe.send(packed(("BLPOP", "nothing", 0))) for _ in range(2)]
            await asyncio.sleep(0)
            client.client_kill_filter(_id=mine)
        found = await asyncio.gather(*waiting, return_exceptions=True)
        assert all(isinstance(error, redis.ConnectionError | OSError) for error in found)
        assert not pipe.is_open

    play(server, scene)


def test_what_several_servers_answer_alike_is_read_once_and_right_for_each(server: Server) -> None:
    async def scene(pipe: AsyncPipe) -> None:
        # Answers of any size, in one piece or in many, the same as before or not.
        for size in (1, 100, 100_000, 1_000_000):
            get = packed(("GET", f"key-{size}"), ("GET", f"key-{size}"))
            for value in (b"a" * size, b"a" * size, b"b" * size, b"b" * size):
                await pipe.send(packed(("SET", f"key-{size}", value)))
                for _ in range(2):
                    calls = [pipe.send(get), pipe.send(get), pipe.send(echo(value)), pipe.send(get)]
                    found = await asyncio.gather(*calls)
                    assert found == [[value, value], [value, value], [value], [value, value]]
                assert await pipe.send(get) == [value, value]

    play(server, scene)
