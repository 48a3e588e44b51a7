"""Killed servers and stores: clients see errors, then recover, and nothing acknowledged is lost."""

from __future__ import annotations

import http.client
import itertools
import json
import os
import signal
import socket
import threading
import time
from contextlib import ExitStack, closing
from functools import partial
from typing import Any

import pytest

import headwater
from tests.support.api import serving
from tests.support.servers import Server, until

pytestmark = pytest.mark.fault

TURNS = int(os.environ.get("HEADWATER_LONG", "1"))


class Client(threading.Thread):
    """Asks the newest server again and again; ``acknowledged`` counts what it was answered."""

    def __init__(self, name: str, ports: list[int]) -> None:
        super().__init__(daemon=True)
        self.acknowledged = 0
        self.errors = 0
        self.done = False
        self._name = name
        self._ports = ports

    def run(self) -> None:
        while not self.done:
            try:
                self.turn()
            except (OSError, http.client.HTTPException):
                self.errors += 1
                until(self._may_go_on, 60)

    def _may_go_on(self) -> bool:
        """Return whether there is a server again, or nothing more to ask for."""
        with socket.socket() as trial:
            return self.done or trial.connect_ex(("127.0.0.1", self._ports[-1])) == 0

    def turn(self) -> None:
        """Ask for something; raises OSError or HTTPException when it is not answered as hoped."""
        raise NotImplementedError

    def post(self, path: str, body: Any) -> Any:
        """Send a request and return its answer; raises OSError unless it is done."""
        with closing(
            http.client.HTTPConnection("127.0.0.1", self._ports[-1], timeout=60)
        ) as server:
            server.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
            answer = server.getresponse()
            text = answer.read()
            if answer.status not in (200, 201):
                raise OSError(answer.status)
            return json.loads(text)


class Writer(Client):
    """Writes numbered messages by producer and sequence, and repeats what was not answered."""

    def turn(self) -> None:
        number = self.acknowledged + 1
        path = f"/v1/streams/s/messages?producer={self._name}&sequence={number}"
        self.post(path, {"tag": self._name, "value": str(number)})
        self.acknowledged = number


class PlainWriter(Client):
    """Writes without a sequence, batched with others: what is not answered is not repeated."""

    def run(self) -> None:
        self.numbers: list[int] = []
        self._tried = itertools.count(1)
        super().run()

    def turn(self) -> None:
        number = next(self._tried)
        self.post("/v1/streams/s/messages", {"tag": self._name, "value": str(number)})
        self.numbers.append(number)
        self.acknowledged += 1


class Pusher(Client):
    """Pushes numbered messages into a queue by producer and sequence."""

    def turn(self) -> None:
        number = self.acknowledged + 1
        path = f"/v1/queues/q/messages?producer={self._name}&sequence={number}"
        self.post(path, {"value": str(number)})
        self.acknowledged = number


class Member(Client):
    """Reads as a member of a group and acknowledges; what is not acknowledged comes again."""

    def run(self) -> None:
        self.handled: set[int] = set()
        super().run()

    def turn(self) -> None:
        path = "/v1/streams/s/groups/g"
        body = {"count": 50, "ack_ms": 2000, "block_ms": 100}
        offsets = [one["offset"] for one in self.post(f"{path}/read", body)["messages"]]
        self.handled.update(offsets)
        if offsets:
            self.post(f"{path}/ack", {"offsets": offsets})
        self.acknowledged += 1


class Follower(Client):
    """Follows the stream by events, and goes on behind the last one with the next server."""

    def run(self) -> None:
        self.offsets: list[int] = []
        super().run()

    def turn(self) -> None:
        with closing(
            http.client.HTTPConnection("127.0.0.1", self._ports[-1], timeout=60)
        ) as server:
            last = self.offsets[-1] if self.offsets else 0
            server.request("GET", "/v1/streams/s/tail", headers={"Last-Event-ID": str(last)})
            reply = server.getresponse()
            if reply.status != 200:
                raise OSError(reply.status)
            while not self.done and (line := reply.readline()):
                if line.startswith(b"id: "):
                    self.offsets.append(int(line[4:]))
                    self.acknowledged += 1
        if not self.done:
            raise OSError("the tail has ended")


def test_nothing_acknowledged_is_lost_or_doubled_when_servers_and_stores_are_killed() -> None:
    with Server(tcp=True, fsync="always") as store:
        ports: list[int] = []
        writers = [Writer(f"w{place}", ports) for place in range(4)]
        plain, pusher = PlainWriter("plain", ports), Pusher("pusher", ports)
        member, follower = Member("member", ports), Follower("follower", ports)
        clients = [*writers, plain, pusher, member, follower]
        for turn in range(TURNS):
            with serving(store.url) as (port, process):
                ports.append(port)
                if turn == 0:
                    for client in clients:
                        client.start()
                until(partial(all_reached, clients, [one.acknowledged + 5 for one in clients]), 60)
                store.kill()
                store.start()
                until(partial(all_reached, clients, [one.acknowledged + 5 for one in clients]), 60)
                process.send_signal(signal.SIGKILL)
                process.wait()
        with serving(store.url) as (port, _):
            ports.append(port)
            until(partial(all_reached, clients, [one.acknowledged + 1 for one in clients]), 60)
            for client in (*writers, plain, pusher):
                client.done = True
            for client in (*writers, plain, pusher):
                client.join(60)
            with headwater.connect(store.url) as hw:
                messages = hw.stream("s").read(1, 1_000_000)
                group = hw.stream("s").group("g")
                until(lambda: (group.info().lag, group.info().pending) == (0, 0), 60)
                until(lambda: follower.offsets[-1] == len(messages), 60)
                pushed = [int(one.value) for one in hw.queue("q").pop(10_000)]
            for client in (member, follower):
                client.done = True
            member.join(60)
        follower.join(60)
    found: dict[str, list[int]] = {}
    for message in messages:
        assert message is not None
        found.setdefault(message.tag, []).append(int(message.value))
    for place, writer in enumerate(writers):
        numbers = found[f"w{place}"]
        assert numbers == list(range(1, len(numbers) + 1)), "each once, in order"
        assert len(numbers) >= writer.acknowledged
    assert set(plain.numbers) <= set(found["plain"])
    assert len(found["plain"]) == len(set(found["plain"])), "what is not answered is not repeated"
    assert sorted(pushed) == list(range(1, len(pushed) + 1))
    assert len(pushed) >= pusher.acknowledged
    assert member.handled >= set(range(1, len(messages) + 1)), "each was handed to somebody"
    assert follower.offsets == list(range(1, len(messages) + 1)), "each once, in order"
    assert all(client.errors for client in clients), "the kills were noticed"


def all_reached(clients: list[Client], goals: list[int]) -> bool:
    return all(client.acknowledged >= goal for client, goal in zip(clients, goals, strict=True))


def test_a_server_ends_within_its_time_although_its_store_does_not_answer() -> None:
    asked = (
        ("POST", "/v1/streams/s/messages", b'{"value":"x"}'),
        ("POST", "/v1/streams/s/messages?backlog=9", b'{"value":"x"}'),
        ("GET", "/v1/streams/s", None),
        ("GET", "/metrics", None),
    )
    with (
        Server(tcp=True) as store,
        serving(store.url, "--drain-ms", "500") as (port, process),
        ExitStack() as opened,
    ):
        pid = store.pid
        os.kill(pid, signal.SIGSTOP)
        opened.callback(os.kill, pid, signal.SIGCONT)
        for method, path, body in (*asked, ("GET", "/healthz", None)):
            line = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
            opened.enter_context(closing(line))
            line.request(method, path, body, {"Content-Type": "application/json"} if body else {})
        # The server has read what was sent before.
        assert line.getresponse().status == 200
        process.send_signal(signal.SIGTERM)
        began = time.monotonic()
        assert process.wait(60) == 0
        assert time.monotonic() - began < 9
