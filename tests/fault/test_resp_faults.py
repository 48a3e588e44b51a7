"""The store is killed under load: clients of the RESP door see errors, then go on; nothing is lost.

What was acknowledged with an offset is at that offset. A write whose outcome is unknown is there
once or not at all, and a blocked reader goes on.
"""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

import headwater
from tests.support.commands import PROGRAM
from tests.support.processes import children
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


# Processes of the RESP door are killed under load: clients see errors, connect again, and go on.
# Nothing that was acknowledged is lost, no sequence of a producer is written twice, and a group has
# every message redelivered that a dead connection held.


KILLS = 2 * int(os.environ.get("HEADWATER_LONG", "1"))
WRITERS = 4


@contextmanager
def served(store: str) -> Iterator[tuple[int, int]]:
    """Run a server of two processes, whose parent starts them again; yields port and parent."""
    words = [str(PROGRAM), "serve", "--store", store, "--workers", "2"]
    words += ["--http", "127.0.0.1:0", "--resp", "127.0.0.1:0"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield int(process.stdout.readline().rpartition(":")[2]), process.pid
        finally:
            process.send_signal(signal.SIGTERM)


class Client(threading.Thread):
    """A client that notes what it was answered, and goes on after each error."""

    def __init__(self, port: int) -> None:
        super().__init__(daemon=True)
        self._client = redis.Redis(port=port, retry=Retry(NoBackoff(), 0), socket_timeout=30)
        self.errors = 0
        self.over = threading.Event()

    def run(self) -> None:
        with self._client as client:
            while not self.over.is_set():
                try:
                    self.step(client.execute_command)
                except redis.ConnectionError:
                    self.errors += 1

    def step(self, ask: Any) -> None:
        raise NotImplementedError


class EntryWriter(Client):
    """Writes numbers by producer and sequence, and repeats what was not answered."""

    def __init__(self, port: int, name: str) -> None:
        super().__init__(port)
        self.written: dict[int, bytes] = {}
        self._words = ("TWRITE", "s", "PRODUCER", name)
        self._name = name

    def step(self, ask: Any) -> None:
        number = len(self.written) + 1
        value = f"{self._name}.{number}".encode()
        self.written[ask(*self._words, number, "ENTRIES", "t", value)] = value


class Member(Client):
    """Takes messages of a group and acknowledges them."""

    def __init__(self, port: int) -> None:
        super().__init__(port)
        self.seen: dict[int, bytes] = {}

    def step(self, ask: Any) -> None:
        found = ask("TREAD", "s", 0, 10, "GROUP", "g", "RETRY", 500, 0, "BLOCK", 100)
        for offset, _, value in found:
            assert self.seen.setdefault(offset, value) == value
            ask("TACK", "s", "g", offset)


def test_nothing_acknowledged_is_lost_when_the_door_is_killed() -> None:
    with Server(tcp=True, fsync="always") as store, served(store.url) as (port, parent):
        writers = [EntryWriter(port, f"w{place}") for place in range(WRITERS)]
        member = Member(port)
        for client in (*writers, member):
            client.start()
        for _ in range(KILLS):
            goal = min(len(writer.written) for writer in writers) + 10
            until(lambda: all(len(writer.written) >= goal for writer in writers), 60)  # noqa: B023
            errors = sum(writer.errors for writer in writers)
            for child in children(parent):
                os.kill(child, signal.SIGKILL)
            until(lambda: sum(writer.errors for writer in writers) > errors, 60)  # noqa: B023
        goal = min(len(writer.written) for writer in writers) + 10
        until(lambda: all(len(writer.written) >= goal for writer in writers), 60)
        for writer in writers:
            writer.over.set()
            writer.join(60)
        with headwater.connect(store.url) as hw:
            read = hw.stream("s").read(1, 1_000_000)
            found = {message.offset: message.value for message in read if message is not None}
            until(lambda: member.seen.keys() >= found.keys(), 60)
            until(lambda: hw.stream("s").group("g").info().pending == 0, 60)
        member.over.set()
        member.join(60)
    assert len(set(found.values())) == len(found) == max(found)
    for writer in writers:
        assert writer.written.items() <= found.items()
    assert member.seen == found
