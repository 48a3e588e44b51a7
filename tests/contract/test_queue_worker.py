"""Workers of a queue: every message until its handler succeeded, several at a time."""

from __future__ import annotations

import logging
import signal
import threading
from collections import Counter

import pytest

import headwater
from headwater import Delivery, Queue
from headwater.workers.attempts import Retries
from headwater.workers.holding import Prefetch
from headwater.workers.sources import QueueMessages
from tests.support.commands import start
from tests.support.servers import Server, until
from tests.support.stores import Stores
from tests.support.workers import Crew, at_work


@pytest.fixture
def queue(crew: Crew, name: str) -> Queue:
    return crew.hw.queue(name)


def test_every_message_is_handled_once_and_acknowledged(crew: Crew, queue: Queue) -> None:
    some = [b"%d" % i for i in range(500)]
    queue.push_many(some)
    seen: list[bytes] = []
    with at_work(crew.queue_worker(queue, lambda d: seen.append(d.value), concurrency=3)):
        until(lambda: queue.stats().acked == 500)
        queue.push(b"later")
        until(lambda: queue.stats().acked == 501)
    assert sorted(seen) == sorted([*some, b"later"])
    assert queue.stats().unacked == 0


def test_as_many_run_at_once_as_asked_for(crew: Crew, queue: Queue) -> None:
    queue.push_many([b"v"] * 12)
    meeting = threading.Barrier(4)
    with at_work(crew.queue_worker(queue, lambda _: meeting.wait(60), concurrency=4)):
        until(lambda: queue.stats().acked == 12)


def test_what_fails_is_tried_again_as_the_queue_says_and_then_given_up(
    crew: Crew, queue: Queue, caplog: pytest.LogCaptureFixture
) -> None:
    queue.configure(max_attempts=3, backoff="exponential", backoff_ms=10)
    queue.push_many([b"good", b"bad"])
    seen: Counter[bytes] = Counter()

    def handle(delivery: Delivery) -> None:
        seen[delivery.value] += 1
        if delivery.value == b"bad":
            raise ValueError("bad")

    with (
        caplog.at_level(logging.ERROR, "headwater.workers"),
        at_work(crew.queue_worker(queue, handle)),
    ):
        until(lambda: queue.stats().dead == 1 and queue.stats().acked == 1)
    assert seen == {b"good": 1, b"bad": 3}
    assert [record.getMessage().partition("; ")[2] for record in caplog.records] == [
        "it is redelivered in 5 to 10 ms",
        "it is redelivered in 10 to 20 ms",
        "it is buried",
    ]


def test_a_queue_with_a_back_off_of_its_own_delays_by_itself() -> None:
    delivery, error = Delivery("1", b"", 1, "1:0:1:1.1"), ValueError()
    source = QueueMessages("a queue", "q", 30_000, Retries(None, 1000, 60_000))
    assert 500 <= (source.failed(delivery, error, 0).delay_ms or 0) <= 1000
    source.settings = headwater.QueueSettings(backoff="fixed")
    assert source.failed(delivery, error, 0).delay_ms == 0


def test_quick_work_is_taken_in_large_batches_and_slow_work_in_small_ones() -> None:
    now = [0.0]
    prefetch = Prefetch(2, 30_000, "ack_ms", clock=lambda: now[0])
    assert prefetch.room == 4
    for _ in range(20):
        prefetch.adapt(prefetch.room)
    assert prefetch.room == 1000
    now[0] += 1000
    prefetch.adapt(1)
    assert prefetch.room == 4


def test_a_handler_may_take_longer_than_the_deadline(crew: Crew, queue: Queue) -> None:
    queue.push(b"v")
    go_on, seen = threading.Event(), []

    def handle(delivery: Delivery) -> None:
        seen.append(delivery.attempt)
        assert go_on.wait(60)

    with at_work(crew.queue_worker(queue, handle, ack_ms=1500)):
        until(lambda: seen)
        assert queue.pop(block_ms=2000) == [], "it is still held"
        go_on.set()
        until(lambda: queue.stats().acked == 1)
    assert seen == [1]


def test_who_stops_returns_at_once_what_was_not_begun(crew: Crew, queue: Queue) -> None:
    queue.push_many([b"%d" % i for i in range(6)])
    go_on, begun = threading.Event(), threading.Event()

    def handle(_: Delivery) -> None:
        begun.set()
        assert go_on.wait(60)

    worker = crew.queue_worker(queue, handle, concurrency=1, ack_ms=60_000)
    with at_work(worker):
        assert begun.wait(60)
        until(lambda: queue.stats().unacked >= 2)
        worker.stop()
        until(lambda: queue.stats().unacked == 1)
        assert [d.attempt for d in queue.pop(9)] == [1] * 5, "as if never taken"
        go_on.set()
    assert queue.stats().acked == 1


def test_an_outage_of_the_store_is_waited_out(name: str) -> None:
    with Server(fsync="always") as server, headwater.connect(server.url) as hw:
        queue = hw.queue(name)
        seen: list[bytes] = []
        with at_work(queue.worker()(lambda d: seen.append(d.value))):
            queue.push(b"before")
            until(lambda: queue.stats().acked == 1)
            server.kill()
            server.restart()
            queue.push(b"after")
            until(lambda: queue.stats().acked == 2)
        assert seen == [b"before", b"after"]


# ── By command ───────────────────────────────────────────────────────────────────────────────


def test_a_command_is_run_for_each_message_until_sigterm(stores: Stores, name: str) -> None:
    url = stores.url("plain")
    with headwater.connect(url) as hw:
        queue = hw.queue(name)
        queue.configure(max_attempts=1)
        queue.push_many(["one", "two", "fail"])
        script = 'read -r v; echo "$v $HEADWATER_ATTEMPT"; test "$v" != fail'
        program = start(url, "queue", "work", name, "--exec", script, "--concurrency", "2")
        until(lambda: queue.stats().acked == 2 and queue.stats().dead == 1)
        queue.push("sleeps")
        program.send_signal(signal.SIGTERM)
        out, err = program.communicate(timeout=60)
    assert program.returncode == 0
    assert {"one 1", "two 1", "fail 1"} <= set(out.splitlines())
    assert "exit code 1" in err
    assert "Traceback" not in err
