"""Killed servers and stores: clients see errors, then recover, and nothing acknowledged is lost."""

from __future__ import annotations

import asyncio
import http.client
import itertools
import json
import os
import signal
import socket
import threading
import time
import urllib.request
from collections.abc import Callable
from contextlib import ExitStack, closing
from functools import partial
from typing import Any

import pyarrow as pa
import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

import headwater
from headwater import Headwater
from headwater.serve.jobs.engine import LEASE_MS, HeldJob, JobTaken, ServerJobs
from headwater.serve.jobs.letters import LetterJobs
from headwater.store.presence import NewJob, begin_job, list_jobs, note_job, stop_job, take_job
from tests.support.api import messages_of, serving
from tests.support.servers import Server, free_ports, until

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


# ── A client that hangs up while the store is down retries by itself: its tries do not add up ────

# Longer than what a server takes for a short fault.
TIMEOUT_S = 1.2


def post(port: int, path: str, body: object, timeout_s: float) -> int:
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=timeout_s)) as sent:
        sent.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
        return sent.getresponse().status


def test_what_was_not_sent_to_the_store_is_dropped_when_its_client_hangs_up() -> None:
    """The writes of all doors to one stream wait in one batch, and only the dead leave it."""
    (resp_port,) = free_ports(1)
    with (
        Server(fsync="always") as store,
        headwater.connect(store.url) as hw,
        serving(store.url, "--resp", f"127.0.0.1:{resp_port}") as (port, _),
    ):
        hw.topic("t", partitions=1).write("tag", b"0")

        def impatient(*words: str) -> None:
            retry = Retry(NoBackoff(), 1)
            client = redis.Redis(port=resp_port, socket_timeout=TIMEOUT_S, retry=retry)
            with client, pytest.raises(redis.TimeoutError):
                client.execute_command(*words)

        def hasty(path: str, body: object) -> None:
            for _ in range(2):
                with pytest.raises(TimeoutError):
                    post(port, path, body, TIMEOUT_S)

        clients: list[Callable[[], None]] = [
            lambda: impatient("TWRITE", "s", "tag", "dead"),
            lambda: impatient("TWRITE", "s", "PRODUCER", "p", "1", "ENTRIES", "tag", "dead"),
            lambda: impatient("QPUSH", "q", "dead"),
            lambda: hasty(messages_of("s"), {"value": "dead"}),
            lambda: hasty("/v1/queues/q/messages", {"value": "dead"}),
            lambda: hasty("/v1/topics/t/messages", {"tag": "tag", "value": "dead"}),
        ]
        store.kill()
        written: list[int] = []
        patient = threading.Thread(
            target=lambda: written.append(post(port, messages_of("s"), {"value": "alive"}, 60))
        )
        threads = [patient, *(threading.Thread(target=client) for client in clients)]
        for thread in threads:
            thread.start()
        for thread in threads[1:]:
            thread.join()
        with redis.Redis(port=resp_port) as admin:
            until(lambda: len(admin.client_list()) == 1)
        store.restart()
        patient.join()
        assert written == [201]
        assert [message and message.value for message in hw.stream("s").read(1, 99)] == [b"alive"]
        assert hw.queue("q").stats().ready == 0
        assert hw.stream("t/0").info().last == 1


# Jobs outlive a server that is killed: another goes on, nothing is done twice, nothing is lost.


LETTERS, MESSAGES = 400, 300


def ask(port: int, path: str, body: Any = None) -> Any:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}{path}", data, {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=60) as reply:
        return json.load(reply)


def bury_all(hw: Headwater) -> None:
    stream = hw.stream("s")
    stream.write_many([(f"t{number}", b"v") for number in range(LETTERS)])
    group = stream.group("g", dead_letters=True)
    group.bury(*group.read(LETTERS, ack_ms=600_000), error="late")
    queue = hw.queue("q")
    queue.push_many([b"%d" % number for number in range(LETTERS)])
    queue.bury(*queue.pop(LETTERS, ack_ms=600_000), error="late")


def states(port: int) -> list[dict[str, Any]]:
    letters = ask(port, "/v1/letters/jobs")["jobs"]
    return [*letters, *ask(port, "/v1/streams/from/replays")["replays"]]


@pytest.mark.timeout(360)
def test_jobs_of_a_killed_server_go_on_where_they_were() -> None:
    with Server(tcp=True, fsync="always") as store, headwater.connect(store.url) as hw:
        bury_all(hw)
        times = [1_000_000 + 200 * number for number in range(MESSAGES)]
        values = [b"%d" % number for number in range(MESSAGES)]
        table = pa.table({"tag": ["t"] * MESSAGES, "value": values, "time": times})
        hw.stream("from").append(table)
        group, queue, copy = hw.stream("s").group("g"), hw.queue("q"), hw.stream("copy")
        with serving(store.url) as (port, process):
            for place in ({"stream": "s", "group": "g"}, {"queue": "q"}):
                body = {"action": "redrive", "places": [place], "rate_per_s": 40}
                ask(port, "/v1/letters/jobs", body)
            ask(port, "/v1/streams/from/replays", {"into": "copy", "speed": 4})
            until(lambda: group.info().dead < LETTERS and queue.stats().dead < LETTERS, 60)
            assert copy.read(1, 1, block_ms=30_000)
            process.send_signal(signal.SIGKILL)
            process.wait()
        # Some fail again while nobody is there: these are new letters, which nobody asked for.
        again = group.read(5, ack_ms=600_000)
        group.bury(*again, error="again")
        held = queue.pop(5, ack_ms=600_000)
        queue.bury(*held, error="again")
        left = (group.info().dead, queue.stats().dead, copy.info().last)
        assert left[0] > 100
        assert left[1] > 100
        assert left[2] < MESSAGES, "the kill came in the middle of all of them"
        hw.stream("from").write("t", b"after it was asked for")
        with serving(store.url) as (port, _):
            assert {one["state"] for one in states(port)} <= {"lost", "running"}
            until(lambda: {one["state"] for one in states(port)} == {"done"}, 240)
            looked = [one["looked"] for one in states(port) if "looked" in one]
        assert (group.info().dead, queue.stats().dead) == (5, 5), "only those that failed again"
        assert group.info().pending == LETTERS - 5
        copied = [message.value for message in copy.read(1, 1000) if message is not None]
        assert copied == values, "each once, in order"
        assert max(looked) <= LETTERS + 5


def test_a_job_that_was_taken_over_refuses_the_notes_of_the_first_process(hw: Headwater) -> None:
    run = hw.store.run
    first = run(begin_job(NewJob("j", "kind", b"head", b"asked", b"0"), "one", 0))
    assert first is not None
    taken = run(take_job(("other", "kind"), "two", 60_000))
    assert taken is not None
    assert (taken.id, taken.asked, taken.note) == ("j", b"asked", b"0")
    assert taken.token > first.token
    assert run(take_job(("kind",), "three", 60_000)) is None
    assert not run(note_job("j", first.token, b"1", 60_000)).taken
    assert run(begin_job(NewJob("j", "kind", b"", b"", b""), "one", 60_000)) is None
    assert run(stop_job("j"))
    assert run(note_job("j", taken.token, b"2", 60_000)).stop
    assert run(note_job("j", taken.token, b"3", None)).taken
    (job,) = run(list_jobs("kind"))
    assert (job.over, job.note, job.head) == (True, b"3", b"head")
    assert not run(stop_job("j"))


def test_a_process_that_wakes_up_does_not_act_on_a_job_that_was_stopped() -> None:
    with Server() as server:
        asyncio.run(wake_up_late(server.url))


async def wake_up_late(store_url: str) -> None:
    async with await headwater.aio.connect(store_url) as hw:
        run, group = hw.store.run, hw.stream("s").group("g", dead_letters=True)
        await hw.stream("s").write_many([("t", b"v")] * 3)
        await group.bury(*await group.read(3, ack_ms=600_000), error="late")
        asked = b'{"body":{"action":"discard","places":[{"stream":"s","group":"g"}]},"begins_ms":0}'
        note = b'{"state":"running","end":"9"}'
        asleep_s = time.monotonic()
        first = await run(begin_job(NewJob("j", "letters", b"", asked, note), "one", 0))
        assert first is not None
        second = await run(take_job(("letters",), "two", 60_000))
        assert second is not None
        assert await run(stop_job("j"))
        assert (await run(note_job("j", second.token, note, None))).taken
        kind = LetterJobs(ServerJobs(hw))
        job = HeldJob(hw, kind, first, kind.read_note(note), asleep_s - LEASE_MS / 1000)
        with pytest.raises(JobTaken):
            await kind.run(job)
        assert (await group.info()).dead == 3
        # What is shown of it is of no form that this release knows: a list is without it.
        assert await kind.known() == []
