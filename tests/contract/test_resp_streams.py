"""Streams through the RESP door are those of the library, with the replies of RCP 11."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import redis

import headwater
from tests.support.resp import RespServer, until_blocked
from tests.support.stores import Stores


@pytest.fixture(params=[2, 3])
def client(request: pytest.FixtureRequest, door: RespServer) -> Iterator[Any]:
    with door.redis(request.param) as client:
        yield client


@pytest.fixture
def library(stores: Stores) -> Iterator[headwater.Headwater]:
    with headwater.connect(stores.url("plain")) as hw:
        yield hw


def test_what_is_written_is_read_back_with_its_offsets(
    client: Any, library: headwater.Headwater, name: str
) -> None:
    ask = client.execute_command
    assert ask("TWRITE", name, "ride-1", b"\x00\r\n") == 1
    assert ask("TWRITE", name, "ENTRIES", "a", "1", "b", "2") == 2
    assert ask("twrite", name, "backlog", "100", "entries", "c", "3") == 4
    messages = [[1, b"ride-1", b"\x00\r\n"], [2, b"a", b"1"], [3, b"b", b"2"], [4, b"c", b"3"]]
    assert ask("TREAD", name, 1, 10) == messages
    assert ask("TREAD", name, 2, 2) == messages[1:3]
    assert ask("TREAD", name, 5, 10) == []
    assert ask("TREAD", name, 3, 10, "WITHINFO") == [[1, 4], *messages[2:]]
    assert ask("TREAD", name, 1, 0, "WITHINFO") == [[1, 4]]
    assert [m.value for m in library.stream(name).read(1, 9) if m] == [
        b"\x00\r\n",
        b"1",
        b"2",
        b"3",
    ]


def test_a_read_of_large_messages_ends_when_its_reply_has_4_mebibytes(
    client: Any, library: headwater.Headwater, name: str
) -> None:
    library.stream(name).write_many([("t", b"x" * (3 << 19))] * 8)
    library.stream(name).evict(1)
    seen = [found[0] if found else None for found in client.execute_command("TREAD", name, 1, 99)]
    assert seen[:2] == [None, 2]
    assert len(seen) < 8, "a reader would take any amount of memory of the server"
    while found := client.execute_command("TREAD", name, len(seen) + 1, 99):
        seen += [one[0] for one in found]
    assert seen == [None, *range(2, 9)]


def test_headers_are_written_beside_entries_and_read_where_they_are_asked_for(
    client: Any, library: headwater.Headwater, name: str
) -> None:
    ask = client.execute_command
    given = ["HEADERS", 2, "content-type", "text", "b", b"\x00"]
    assert ask("TWRITE", name, *given, "ENTRIES", "a", "1", "b", "2") == 1
    assert ask("TWRITE", name, "c", "3") == 3
    found = ask("TREAD", name, 1, 3, "WITHHEADERS")
    assert [m[:3] for m in found] == ask("TREAD", name, 1, 3)
    given_back = [m[3] for m in found]
    headers = [
        one if isinstance(one, dict) else dict(zip(one[::2], one[1::2], strict=True))
        for one in given_back
    ]
    assert headers == [{b"content-type": b"text", b"b": b"\x00"}] * 2 + [{}]
    assert [dict(m.headers) for m in library.stream(name).read(1, 1) if m] == [
        {"content-type": b"text", "b": b"\x00"}
    ]
    (first,) = ask("TREAD", name, 0, 1, "GROUP", "g", "WITHATTEMPT", "WITHHEADERS")
    assert len(first) == 5
    for wrong in (["HEADERS", -1], ["HEADERS", 2, "a", "b"], ["HEADERS", 1, "hw.x", "y"]):
        with pytest.raises(redis.ResponseError):
            ask("TWRITE", name, *wrong, "ENTRIES", "a", "1")


def test_pipelined_commands_are_answered_in_order_and_writes_keep_their_order(
    client: Any, name: str
) -> None:
    pipeline = client.pipeline(transaction=False)
    other = f"{name}-other"
    for number in range(300):
        pipeline.execute_command("TWRITE", name, "t", number)
    pipeline.execute_command("ECHO", "between")
    pipeline.execute_command("TWRITE", other, "t", "x")
    pipeline.execute_command("TWRITE", name, b"\xff", "no text")
    pipeline.execute_command("TWRITE", name, "t", "last")
    pipeline.execute_command("TREAD", name, 1, 1000)
    *written, between, first, refused, last, read = pipeline.execute(raise_on_error=False)
    assert written == list(range(1, 301))
    assert (between, first, last) == (b"between", 1, 301)
    assert isinstance(refused, redis.ResponseError)
    assert [entry for _, _, entry in read] == [b"%d" % n for n in range(300)] + [b"last"]


def test_single_writes_of_many_connections_share_calls_and_each_gets_its_own_offset(
    door: RespServer, library: headwater.Headwater, name: str
) -> None:
    clients = [door.raw() for _ in range(20)]
    for client in clients:
        assert client.ask("PING") == b"PONG"
    calls = _calls(library)
    with door.stands_still():
        for number, client in enumerate(clients):
            client.send(b"TWRITE %b t %d\r\n" % (name.encode(), number))
    offsets = [client.read() for client in clients]
    calls = _calls(library) - calls
    assert sorted(offsets) == list(range(1, 21))
    for number, offset in enumerate(offsets):
        (message,) = library.stream(name).read(offset, 1)
        assert message is not None
        assert message.value == b"%d" % number
    assert calls <= 5
    for client in clients:
        client.close()


def _calls(library: headwater.Headwater) -> int:
    (stats,) = library.store.command("INFO", "commandstats")
    return int(stats.split(b"cmdstat_fcall:calls=")[1].split(b",")[0])


def test_a_refused_write_does_not_spoil_those_beside_it(door: RespServer, name: str) -> None:
    with door.raw() as one, door.raw() as other:
        one.send(b"TWRITE %b t good\r\n" % name.encode())
        other.send(b"*4\r\n$6\r\nTWRITE\r\n$1\r\n{\r\n$1\r\nt\r\n$3\r\nbad\r\n")
        assert one.read() == 1
        assert "must not contain" in str(other.read())


def test_a_blocked_read_returns_what_is_written_or_nothing_in_time(
    client: Any, door: RespServer, name: str
) -> None:
    ask = client.execute_command
    assert ask("TREAD", name, 1, 10, "BLOCK", 30) == []
    ask("TWRITE", name, "t", "old")
    assert ask("TREAD", name, 2, 10, "BLOCK", 30, "WITHINFO") == [[1, 1]]
    assert ask("TREAD", name, 1, 10, "BLOCK", 0) == [[1, b"t", b"old"]]
    with door.raw() as near, door.raw() as far, door.raw() as later:
        near.send(b"TREAD %b 2 10 BLOCK 0\r\n" % name.encode())
        far.send(b"TREAD %b 4 10 BLOCK 0\r\nPING\r\n" % name.encode())
        until_blocked(door, 2)
        later.send(b"TREAD %b 3 10 BLOCK 0 WITHINFO\r\n" % name.encode())
        until_blocked(door, 3)
        ask("TWRITE", name, "t", "two")
        assert near.read() == [[2, b"t", b"two"]]
        ask("TWRITE", name, "ENTRIES", "t", "three", "t", "four")
        assert later.read() == [[1, 4], [3, b"t", b"three"], [4, b"t", b"four"]]
        assert far.read() == [[4, b"t", b"four"]]
        assert far.read() == b"PONG"
    until_blocked(door, 0)


def test_blocked_readers_need_no_connection_to_the_store_each(
    door: RespServer, library: headwater.Headwater, name: str
) -> None:
    clients = [door.raw() for _ in range(100)]
    with door.stands_still():
        for client in clients:
            client.send(b"TREAD %b 1 10 BLOCK 0\r\n" % name.encode())
    until_blocked(door, 100)
    (info,) = library.store.command("INFO", "clients")
    assert int(info.split(b"blocked_clients:")[1].split()[0]) <= 5
    # Not even when all of them come at once.
    assert int(info.split(b"connected_clients:")[1].split()[0]) < 90
    for client in clients[:50]:
        client.close()
    until_blocked(door, 50)
    library.stream(name).write("t", b"wake")
    assert [client.read() for client in clients[50:]] == [[[1, b"t", b"wake"]]] * 50
    for client in clients:
        client.close()
    until_blocked(door, 0)


def test_a_long_read_stops_early_rather_than_fill_the_memory(
    client: Any, library: headwater.Headwater, name: str
) -> None:
    stream = library.stream(name)
    for _ in range(10):
        stream.write_many([("t", b"x" * 8000)] * 500)
    found = client.execute_command("TREAD", name, 1, 100_000)
    assert 500 <= len(found) < 5000
    rest = client.execute_command("TREAD", name, found[-1][0] + 1, 100_000)
    assert rest[0][0] == found[-1][0] + 1


def test_writers_in_many_threads_lose_nothing(
    door: RespServer, library: headwater.Headwater, name: str
) -> None:
    def write() -> None:
        with door.redis() as client:
            for _ in range(20):
                client.execute_command("TWRITE", name, "t", "v")

    threads = [threading.Thread(target=write) for _ in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert library.stream(name).info().length == 100


def test_who_closes_its_side_is_answered_before_the_connection_ends(
    door: RespServer, name: str
) -> None:
    key = name.encode()
    lines = [b"TWRITE %b t v" % key, b"QPUSH %b v" % key, b"TREAD %b 1 9" % key, b"PING"]
    with door.raw() as client:
        client.send(b"".join(line + b"\r\n" for line in lines))
        client.sock.shutdown(socket.SHUT_WR)
        assert client.read() == 1
        assert len(client.read()) == 16
        assert client.read() == [[1, b"t", b"v"]]
        assert client.read() == b"PONG"
        with pytest.raises(EOFError):
            client.read()


def test_writes_that_are_piped_in_are_all_made(door: RespServer, name: str) -> None:
    count = 1000
    with door.raw() as client:
        client.send(b"TWRITE %b t v\r\n" % name.encode() * count)
        client.sock.shutdown(socket.SHUT_WR)
        assert [client.read() for _ in range(count)] == list(range(1, count + 1))
        with pytest.raises(EOFError):
            client.read()


@pytest.mark.parametrize("line", [b"TREAD %b 9 1 BLOCK 0", b"PING\r\nQPOP %b BLOCK 0"])
def test_who_closes_its_side_does_not_wait_for_messages(
    door: RespServer, name: str, line: bytes
) -> None:
    with door.raw() as client:
        client.send(line % name.encode() + b"\r\nTWRITE half-")
        client.sock.shutdown(socket.SHUT_WR)
        while client.sock.recv(1 << 16):
            pass
    until_blocked(door, 0)


def test_what_follows_a_wait_that_is_given_up_is_not_answered_in_its_place(
    door: RespServer, name: str
) -> None:
    key = name.encode()
    lines = [b"TREAD %b 1 1" % key, b"TREAD %b 9 1 BLOCK 0" % key, b"TWRITE %b t v" % key]
    with door.raw() as client:
        client.send(b"".join(line + b"\r\n" for line in lines))
        client.sock.shutdown(socket.SHUT_WR)
        assert client.read() == []
        with pytest.raises(EOFError):
            client.read()
