"""Killed servers and stores: clients see errors, then recover, and nothing acknowledged is lost."""

from __future__ import annotations

import http.client
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest

import headwater
from tests.support.servers import Server, until

pytestmark = pytest.mark.fault

TURNS = int(os.environ.get("HEADWATER_LONG", "1"))


@contextmanager
def serve(store: str) -> Iterator[tuple[int, subprocess.Popen[str]]]:
    """Run a server of a store; yields its port and its process."""
    command = [str(Path(sys.executable).with_name("headwater")), "serve", "--http", "127.0.0.1:0"]
    with subprocess.Popen(
        [*command, "--store", store], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        try:
            yield int(process.stdout.readline().rpartition(":")[2]), process
        finally:
            process.kill()


class Writer(threading.Thread):
    """Writes numbered messages by producer and sequence, and repeats what was not answered."""

    def __init__(self, name: str, ports: list[int]) -> None:
        super().__init__(daemon=True)
        self.acknowledged = 0
        self.errors = 0
        self.done = False
        self._name = name
        self._ports = ports

    def run(self) -> None:
        number = 1
        while not self.done:
            connection = http.client.HTTPConnection("127.0.0.1", self._ports[-1], timeout=60)
            path = f"/v1/streams/s/messages?producer={self._name}&sequence={number}"
            body = json.dumps({"tag": self._name, "value": str(number)})
            try:
                connection.request("POST", path, body, {"Content-Type": "application/json"})
                answered = connection.getresponse().status == 201
            except (OSError, http.client.HTTPException):
                answered = False
            finally:
                connection.close()
            if answered:
                self.acknowledged = number
                number += 1
            else:
                self.errors += 1


def test_nothing_acknowledged_is_lost_or_doubled_when_servers_and_stores_are_killed() -> None:
    with Server(tcp=True, fsync="always") as store:
        ports: list[int] = []
        writers = [Writer(f"w{place}", ports) for place in range(4)]
        for turn in range(TURNS):
            with serve(store.url) as (port, process):
                ports.append(port)
                if turn == 0:
                    for writer in writers:
                        writer.start()
                reached = [writer.acknowledged + 5 for writer in writers]
                until(partial(all_reached, writers, reached), 60)
                store.kill()
                store.start()
                reached = [writer.acknowledged + 5 for writer in writers]
                until(partial(all_reached, writers, reached), 60)
                process.send_signal(signal.SIGKILL)
                process.wait()
        with serve(store.url) as (port, _):
            ports.append(port)
            reached = [writer.acknowledged + 1 for writer in writers]
            until(partial(all_reached, writers, reached), 60)
            for writer in writers:
                writer.done = True
            for writer in writers:
                writer.join(60)
        with headwater.connect(store.url) as hw:
            found: dict[str, list[int]] = {}
            for message in hw.stream("s").read(1, 1_000_000):
                assert message is not None
                found.setdefault(message.tag, []).append(int(message.value))
        for place, writer in enumerate(writers):
            numbers = found[f"w{place}"]
            assert numbers == list(range(1, len(numbers) + 1)), "each once, in order"
            assert len(numbers) >= writer.acknowledged
        assert any(writer.errors for writer in writers), "the kills were noticed"


def all_reached(writers: list[Writer], goals: list[int]) -> bool:
    return all(writer.acknowledged >= goal for writer, goal in zip(writers, goals, strict=True))
