"""The store is killed under load: clients of the RESP door see errors, then go on; nothing is lost.

What was acknowledged with an offset is at that offset. A write whose outcome is unknown is there
once or not at all, and a blocked reader goes on.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
import redis

import headwater
from tests.support.resp import RespServer, until_blocked
from tests.support.servers import Server, until

pytestmark = pytest.mark.fault


@pytest.fixture
def server() -> Iterator[Server]:
    with Server(tcp=True, fsync="always") as server:
        yield server


class Writer(threading.Thread):
    """Writes one entry after another, and notes what it was answered."""

    def __init__(self, door: RespServer, stream: str, number: int) -> None:
        super().__init__()
        self._door, self._stream, self._number = door, stream, number
        self.acknowledged: dict[int, bytes] = {}
        # By the code of the error.
        self.failed: dict[str, set[bytes]] = {}
        self.enough = threading.Event()

    def run(self) -> None:
        turn = 0
        with self._door.redis(retry=None) as client:
            while not self.enough.is_set():
                turn += 1
                value = b"%d.%d" % (self._number, turn)
                try:
                    offset = client.execute_command("TWRITE", self._stream, "t", value)
                except redis.ResponseError as error:
                    self.failed.setdefault(str(error).split()[0], set()).add(value)
                else:
                    self.acknowledged[offset] = value


def test_nothing_acknowledged_is_lost_when_the_store_is_killed(server: Server) -> None:
    with RespServer(server.url) as door:
        writers = [Writer(door, "s", number) for number in range(8)]
        for writer in writers:
            writer.start()
        for kill in range(1, 4):
            until(lambda: all(len(w.acknowledged) > 20 * kill for w in writers))  # noqa: B023
            server.kill()
            server.restart()
        until(lambda: all(len(w.acknowledged) > 100 for w in writers))
        for writer in writers:
            writer.enough.set()
        for writer in writers:
            writer.join()
    with headwater.connect(server.url) as hw:
        found = {m.offset: m.value for m in hw.stream("s").read(1, 100_000) if m is not None}
    assert list(found) == list(range(1, len(found) + 1))
    values = list(found.values())
    assert len(set(values)) == len(values)
    for writer in writers:
        assert writer.acknowledged.items() <= found.items()
        assert writer.failed.keys() <= {"TRYAGAIN", "OUTCOME-UNKNOWN"}
        assert not writer.failed.get("TRYAGAIN", set()) & set(values)
    acknowledged = {value for writer in writers for value in writer.acknowledged.values()}
    unknown = {value for w in writers for value in w.failed.get("OUTCOME-UNKNOWN", ())}
    assert set(values) - acknowledged <= unknown


def test_blocked_readers_outlive_the_store(server: Server) -> None:
    with RespServer(server.url) as door, door.raw() as reader, door.raw() as member:
        reader.send(b"TREAD s 1 10 BLOCK 0\r\n")
        member.send(b"TREAD s 0 10 BLOCK 0 GROUP g RETRY 60000 0\r\n")
        until_blocked(door, 2)
        server.kill()
        server.restart()
        with door.redis() as client:
            assert client.execute_command("TWRITE", "s", "t", "v") == 1
        for client in (reader, member):
            assert client.read() == [[1, b"t", b"v"]]
        until_blocked(door, 0)


@pytest.mark.parametrize("words", ["TREAD s 1 10 BLOCK 0", "TREAD s 0 1 BLOCK 0 GROUP g", "PING"])
def test_a_client_that_dies_leaves_nothing_behind(server: Server, words: str) -> None:
    with RespServer(server.url) as door:
        clients = [door.raw() for _ in range(20)]
        for client in clients:
            client.send(words.encode() + b"\r\n")
        if "BLOCK" in words:
            until_blocked(door, 20)
        for client in clients:
            client.close()
        until_blocked(door, 0)
        with door.raw() as client:
            until(lambda: b"connected_clients:1\r" in client.ask("INFO", "clients"))
            if "GROUP" in words:
                until(lambda: b"waiting" in client.ask("TINFO", "s", "GROUP", "g"))
                with headwater.connect(server.url) as hw:
                    until(lambda: hw.stream("s").group("g").info().waiting == 0)
