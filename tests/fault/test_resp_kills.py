"""Processes of the RESP door are killed under load: clients see errors, connect again, and go on.

Nothing that was acknowledged is lost, no sequence of a producer is written twice, and a group has
every message redelivered that a dead connection held.
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
from tests.support.servers import Server, until

pytestmark = pytest.mark.fault

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


class Writer(Client):
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
        writers = [Writer(port, f"w{place}") for place in range(WRITERS)]
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
