"""What a server that is full refuses, and what it must go on doing to be emptied."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

import headwater
from headwater.errors import StoreError
from tests.support.servers import Server, redis_binary

Dial = Callable[[str | None], headwater.Headwater]
LETTER = bytes(1000)


@pytest.fixture(params=["valkey", "redis"])
def server(request: pytest.FixtureRequest) -> Iterator[Server]:
    with Server(redis_binary() if request.param == "redis" else None) as server:
        yield server


@pytest.fixture
def stream(server: Server, dial: Dial, name: str) -> headwater.Stream:
    """A stream with 50 messages and a group that has one of them, on a server that is full."""
    stream = dial(server.url).stream(name)
    stream.write_many(("t", LETTER) for _ in range(50))
    stream.group("g").read(1, ack_ms=60_000)
    with server.client() as admin:
        admin.config_set("maxmemory", int(admin.info("memory")["used_memory"]) // 2)
    return stream


def test_a_full_server_refuses_writes_and_keeps_what_it_has(stream: headwater.Stream) -> None:
    for write in (
        lambda: stream.write("t", LETTER),
        lambda: stream.write_many([("t", LETTER)], producer="p", sequence=1),
    ):
        with pytest.raises(StoreError, match=r"out of memory.*evict old messages"):
            write()
    assert [message and message.offset for message in stream.read(1, 100)] == list(range(1, 51))


def test_a_full_server_can_be_emptied_by_those_who_read(
    server: Server, stream: headwater.Stream
) -> None:
    group = stream.group("g")
    assert group.ack(1) == 1
    assert [message.offset for message in group.read(9, ack_ms=60_000)] == list(range(2, 11))
    assert group.ack((2, 10)) == 9
    assert len(group.read(100)) == 40
    assert stream.retain(max_count=5) == (45, 0, None)
    assert stream.compact() == 4
    with server.client() as admin:
        admin.config_set("maxmemory", 0)
    assert stream.write("t", b"room again") == 51
