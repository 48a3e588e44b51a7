"""Workers of a group: each message until its handler succeeded, several at once, whoever dies."""

from __future__ import annotations

import asyncio
import logging
import os
import random
import signal
import threading
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import headwater
from headwater import Delivery, Group, InvalidInput, Message, Queue, Stream, Topic, Worker, aio
from headwater.aio import AsyncWorker
from headwater.kernel.failures import MAX_TEXT, MAX_TYPE, Cause, read_failure, spelled
from headwater.kernel.instrument import installed
from headwater.workers.attempts import Retries
from tests.support.blocking import Loop
from tests.support.entries import entries
from tests.support.instruments import Recorder
from tests.support.limit_rules import overtaken
from tests.support.servers import Server, until
from tests.support.stores import Stores
from tests.support.workers import Crew, Gate, Refusing, all_done, at_work, done_in
from tests.support.zygote import Zygote


@pytest.fixture
def stream(crew: Crew, name: str) -> Stream:
    return crew.hw.stream(name)


@pytest.fixture
def group(stream: Stream) -> Group:
    """Look at the group that the workers are members of."""
    return stream.group("g")


# ── Handling ─────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("concurrency", [1, 7])
def test_every_message_is_handled_once_and_acknowledged(
    crew: Crew, stream: Stream, group: Group, concurrency: int
) -> None:
    stream.write_many(entries(300))
    seen: list[int] = []
    worker = crew.worker(stream, lambda m: seen.append(m.offset), concurrency=concurrency)
    with at_work(worker):
        until(all_done(group, 300))
    assert sorted(seen) == list(range(1, 301))
    assert group.info().pending == 0


def test_several_workers_share_the_work(crew: Crew, stream: Stream, group: Group) -> None:
    seen: list[tuple[int, int]] = []
    workers = [
        crew.worker(stream, lambda m, who=who: seen.append((who, m.offset)))  # type: ignore[misc]
        for who in range(3)
    ]
    with at_work(*workers):
        for first in range(1, 300, 10):
            stream.write_many(entries(10, first))
        until(all_done(group, 300))
    assert sorted(offset for _, offset in seen) == list(range(1, 301))


def test_as_many_handlers_run_at_once_as_asked_for(
    crew: Crew, stream: Stream, group: Group
) -> None:
    stream.write_many(entries(12))
    together = threading.Barrier(3, timeout=60)
    running: set[int] = set()
    most: list[int] = []

    def handler(message: Message) -> None:
        running.add(message.offset)
        most.append(len(running))
        together.wait()
        running.discard(message.offset)

    with at_work(crew.worker(stream, handler, concurrency=3)):
        until(all_done(group, 12))
    assert max(most) <= 3


def test_a_worker_takes_no_more_than_it_can_soon_handle(
    crew: Crew, stream: Stream, group: Group
) -> None:
    stream.write_many(entries(50))
    gate = Gate()
    with at_work(crew.worker(stream, gate, concurrency=3)):
        until(lambda: len(gate.begun) == 3)
        until(lambda: group.info().pending == 6)
        assert group.read(1, block_ms=50, ack_ms=60_000)[0].offset == 7, "others have the rest"
        gate.open()
        group.ack(7)
        until(all_done(group, 50))


def test_what_is_done_is_acknowledged_in_few_calls(stores: Stores, name: str) -> None:
    with headwater.connect(stores.url("plain")) as hw:
        hw.stream(name).write_many(entries(400))
        group = hw.stream(name).group("g")
        worker = Worker(group, lambda _: None, concurrency=50)
        with installed(recorder := Recorder()), at_work(worker):
            until(all_done(group, 400))
        assert len(recorder.named("group.ack")) < 200


# ── Failing ──────────────────────────────────────────────────────────────────────────────────


def test_a_failed_message_comes_again_after_a_pause(
    crew: Crew, stream: Stream, group: Group
) -> None:
    stream.write("t", b"v")
    attempts: list[int] = []

    def fails_twice(message: Message) -> None:
        attempts.append(message.attempt)
        if message.attempt < 3:
            raise RuntimeError("not yet")

    with at_work(crew.worker(stream, fails_twice, backoff_ms=5)):
        until(all_done(group, 1))
    assert attempts == [1, 2, 3]


def test_a_message_that_rests_holds_nobody_up(crew: Crew, stream: Stream, group: Group) -> None:
    stream.write_many(entries(20))
    seen: list[int] = []

    def handler(message: Message) -> None:
        if message.offset == 1:
            raise RuntimeError("later")
        seen.append(message.offset)

    later: Any = {"backoff_ms": 600_000, "longest_backoff_ms": 600_000}
    with at_work(crew.worker(stream, handler, concurrency=1, **later)):
        until(lambda: len(seen) == 19)
    assert group.info().pending == 1


def test_what_never_succeeds_becomes_a_dead_letter(
    crew: Crew, stream: Stream, group: Group
) -> None:
    stream.write_many([("good", b"1"), ("bad", b"2"), ("good", b"3")])

    def refuses(message: Message) -> None:
        if message.tag == "bad":
            raise RuntimeError("never")

    worker = crew.worker(stream, refuses, backoff_ms=5, expire_ms=1500, dead_letters=True)
    with at_work(worker):
        until(all_done(group, 3))
        until(group.dead)
    assert [(letter.origin, letter.value) for letter in group.dead()] == [(2, b"2")]


def test_a_handler_that_wants_to_end_the_program_only_failed(stores: Stores, name: str) -> None:
    with headwater.connect(stores.url("plain")) as hw:
        hw.stream(name).write("t", b"v")
        group = hw.stream(name).group("g")

        def exits(message: Message) -> None:
            if message.attempt == 1:
                raise SystemExit(3)

        with at_work(Worker(group, exits, backoff_ms=1)):
            until(all_done(group, 1))


# ── Keeping what is in hand ──────────────────────────────────────────────────────────────────


def test_a_message_is_kept_while_its_handler_takes_longer_than_its_retry_time(
    crew: Crew, stream: Stream, group: Group
) -> None:
    stream.write("t", b"v")
    gate = Gate()
    with at_work(crew.worker(stream, gate, ack_ms=1500)):
        until(lambda: gate.begun)
        # Another member waits for longer than the retry time, and is given nothing.
        assert group.read(1, block_ms=2000, ack_ms=1500) == []
        gate.open()
        until(all_done(group, 1))
    assert [message.attempt for message in gate.begun] == [1]


def test_what_comes_again_while_it_is_in_hand_is_not_handled_twice_at_once(
    crew: Crew, stream: Stream, group: Group
) -> None:
    stream.write("t", b"v")
    gate = Gate()
    with at_work(crew.worker(stream, gate, ack_ms=60_000)):
        until(lambda: gate.begun)
        group.nack(1)  # as if the worker had been unable to say that it still has it
        stream.write("t", b"w")
        until(lambda: len(gate.begun) == 2)
        gate.open()
        until(all_done(group, 2))
    assert [message.offset for message in gate.begun] == [1, 2]


# ── Stopping ─────────────────────────────────────────────────────────────────────────────────


def test_a_worker_that_stops_ends_what_it_began_and_returns_the_rest(
    crew: Crew, stream: Stream, group: Group
) -> None:
    stream.write_many(entries(2))
    gate = Gate()
    worker = crew.worker(stream, gate, concurrency=1, ack_ms=1500)
    with at_work(worker):
        until(lambda: gate.begun and group.info().next == 3)
        worker.stop()
        # Back with the group at once, and not kept from others, while the first is in hand.
        (again,) = group.read(1, block_ms=20_000, ack_ms=60_000)
        assert (again.offset, again.attempt) == (2, 1), "it was not tried"
        assert group.read(1, block_ms=2000, ack_ms=60_000) == []
        gate.open()
    assert [message.offset for message in gate.begun] == [1]
    assert group.ack(1) == 0
    assert group.ack(2) == 1


def test_a_waiting_worker_stops_soon(crew: Crew, stream: Stream, group: Group) -> None:
    worker = crew.worker(stream, lambda _: None)
    with at_work(worker) as (run,):
        until(lambda: "g" in stream.info().groups and group.info().waiting)
        worker.stop()
        run.result()


def test_a_cancelled_worker_gives_everything_back(stores: Stores, name: str, loop: Loop) -> None:
    async def work() -> list[tuple[int, int]]:
        async with aio.connect(stores.url("plain")) as hw:
            stream = hw.stream(name)
            await stream.write_many(entries(5))
            group = stream.group("g")
            begun = asyncio.Event()

            async def hangs(_: Message) -> None:
                begun.set()
                await asyncio.Event().wait()

            running = asyncio.create_task(AsyncWorker(group, hangs, concurrency=2).run())
            await begun.wait()
            running.cancel()
            with pytest.raises(asyncio.CancelledError):
                await running
            messages = await group.read(10, block_ms=20_000, ack_ms=60_000)
            return sorted((message.offset, message.attempt) for message in messages)

    found = loop.wait(work())
    assert [offset for offset, _ in found] == [1, 2, 3, 4, 5]
    assert {attempt for _, attempt in found} == {1}, "none was tried to its end"


# ── Trouble ──────────────────────────────────────────────────────────────────────────────────


def test_a_group_that_somebody_removes_is_started_again(
    crew: Crew, stream: Stream, group: Group
) -> None:
    stream.write_many(entries(3))
    gate = Gate()
    with at_work(crew.worker(stream, gate, concurrency=5)):
        until(lambda: len(gate.begun) == 3)
        group.remove()
        gate.open()
        until(all_done(group, 3))


@pytest.mark.parametrize("manner", ["sync", "async"])
def test_the_store_may_be_killed_and_come_back(
    manner: str, name: str, loop: Loop, caplog: pytest.LogCaptureFixture
) -> None:
    with Server(fsync="always") as server:
        crew = Crew(manner, server.url, loop)
        stream = crew.hw.stream(name)
        group = stream.group("g")
        seen: set[int] = set()
        worker = crew.worker(stream, lambda m: seen.add(m.offset), ack_ms=500, backoff_ms=1)
        with at_work(worker), caplog.at_level(logging.WARNING):
            for turn in range(2):
                stream.write_many(entries(50, turn * 50 + 1))
                server.kill()
                server.restart()
                until(all_done(group, turn * 50 + 50))
        assert seen == set(range(1, 101))
        crew.close()


@pytest.mark.fault
def test_workers_may_be_killed_at_any_moment(stores: Stores, name: str, tmp_path: Any) -> None:
    dice = random.Random(5)
    with headwater.connect(stores.url("plain")) as hw, Zygote("tests.support.members") as zygote:
        stream, group = hw.stream(name), hw.stream(name).group("g")
        page = tmp_path / "handled"
        manners = ["sync", "async"]

        def start(manner: str) -> int:
            order = {"role": "worker", "manner": manner, "stream": name, "page": str(page)}
            return zygote.start("", stores.url("plain"), **order)

        pids = [start(manner) for manner in manners]
        last = 0
        for _ in range(10):
            size = dice.choice([1, 20, 200])
            stream.write_many(entries(size, last + 1))
            last += size
            until(lambda: "g" in stream.info().groups and group.info().next > last - 100)  # noqa: B023
            dying = dice.randrange(2)
            os.kill(pids[dying], signal.SIGKILL)
            assert zygote.wait(pids[dying]) == -signal.SIGKILL
            pids[dying] = start(manners[dying])
        until(all_done(group, last))
        assert [zygote.end(pid) for pid in pids] == [0, 0]
        handled = [int(line) for line in page.read_text().split()]
    assert set(handled) == set(range(1, last + 1)), "nothing is lost"


# Attempts of workers: retried with growing delays, then buried with the reason, whoever dies.


SECRET = "hunter2"


@pytest.fixture
def queue(crew: Crew, name: str) -> Queue:
    return crew.hw.queue(name)


# ── Back-off ─────────────────────────────────────────────────────────────────────────────────


@given(
    first=st.integers(0, 10**6),
    more=st.integers(0, 10**7),
    attempt=st.integers(1, 10**6),
    chance=st.floats(0, 1, exclude_max=True),
)
def test_a_delay_doubles_up_to_its_cap_and_is_spread_over_its_upper_half(
    first: int, more: int, attempt: int, chance: float
) -> None:
    retries = Retries(None, first, first + more, dice=lambda: chance)
    whole = min(first * 2 ** min(attempt - 1, 60), first + more)
    delay = retries.delay_ms(attempt)
    assert whole / 2 <= delay <= whole
    assert delay >= Retries(None, first, first + more, dice=lambda: 0.0).delay_ms(attempt)
    assert retries.delay_ms(attempt + 1) >= delay, "with the same luck no later one is shorter"


@given(st.text(max_size=9), st.integers(0, 2 * MAX_TEXT), st.booleans())
def test_an_error_is_read_as_it_was_stored_up_to_its_length(
    text: str, more: int, known: bool
) -> None:
    text += "x" * more
    stored = ("7:" if known else ":") + spelled(ValueError(text))
    found = read_failure(stored.encode())
    assert found.delivered_ms == (7 if known else None)
    assert found.cause is not None
    assert (found.cause.type, len(found.cause.text) <= MAX_TEXT) == ("ValueError", True)
    if len(text) <= MAX_TEXT:
        assert found.cause.text == text
    long_name = type("E" * 300, (Exception,), {})
    assert len(spelled(long_name("x")).partition("\n")[0]) == MAX_TYPE


@pytest.mark.parametrize(
    "options",
    [{"max_attempts": 0}, {"max_attempts": "3"}, {"longest_backoff_ms": 5}, {"backoff_ms": -1}],
    ids=str,
)
def test_retries_that_cannot_be_are_refused_when_a_worker_is_made(
    crew: Crew, stream: Stream, queue: Queue, options: dict[str, Any]
) -> None:
    with pytest.raises(InvalidInput, match=next(iter(options))):
        crew.worker(stream, print, **options)
    with pytest.raises(InvalidInput, match=next(iter(options))):
        crew.queue_worker(queue, print, **options)


# ── The last attempt ─────────────────────────────────────────────────────────────────────────


def test_after_its_last_attempt_a_message_is_a_dead_letter_with_the_reason(
    crew: Crew, stream: Stream, group: Group, caplog: pytest.LogCaptureFixture
) -> None:
    stream.write_many([("good", b"1"), ("bad", SECRET.encode()), ("good", b"3")])
    handler = Refusing({"bad"})
    worker = crew.worker(stream, handler, max_attempts=3, backoff_ms=5, dead_letters=True)
    with at_work(worker), caplog.at_level(logging.ERROR, "headwater.workers"):
        until(lambda: all_done(group, 3)() and group.dead())
    assert handler.tries_of("bad") == [1, 2, 3]
    (letter,) = group.dead()
    assert (letter.origin, letter.value, letter.attempts) == (2, SECRET.encode(), 3)
    assert letter.cause == Cause("LookupError", "no 'bad' here")
    assert stream.read(2, 1)[0].time_ms <= (letter.delivered_ms or 0) <= letter.buried_ms  # type: ignore[union-attr]
    lines = [record.getMessage() for record in caplog.records]
    assert [f"offset 2 of {stream.name}/g failed, attempt {n}" in lines[n - 1] for n in (1, 2, 3)]
    assert [("redelivered in" in line, "buried" in line) for line in lines] == [
        (True, False),
        (True, False),
        (False, True),
    ]
    assert SECRET not in caplog.text

    group.redrive()
    assert [m.attempt for m in group.read(9, ack_ms=60_000)] == [1]
    group.bury(2)
    assert group.dead()[0].cause is None, "redriving has cleared it"


def test_after_its_last_attempt_a_message_of_a_queue_is_a_dead_letter_with_the_reason(
    crew: Crew, queue: Queue
) -> None:
    queue.push_many([b"good", b"bad"])
    handler = Refusing({b"bad"})
    with at_work(crew.queue_worker(queue, handler, max_attempts=3, backoff_ms=5)):
        until(lambda: queue.stats().dead == 1 and queue.stats().acked == 1)
    assert handler.tries_of(b"bad") == [1, 2, 3]
    (letter,) = queue.dead()
    assert (letter.value, letter.attempt) == (b"bad", 3)
    assert letter.cause == Cause("LookupError", "no b'bad' here")
    assert letter.pushed_ms <= (letter.delivered_ms or 0) <= (letter.buried_ms or 0)

    assert queue.redrive() == 1
    queue.bury(*queue.pop(ack_ms=60_000))
    assert queue.dead()[0].cause is None, "redriving has cleared it"


def test_attempts_need_a_place_for_what_is_given_up(
    crew: Crew, stream: Stream, group: Group
) -> None:
    stream.write("t", b"v")
    handler = Refusing({"t"})
    with pytest.raises(InvalidInput, match=r"keeps no dead letters.*dead_letters=True"):
        crew.worker(stream, handler, max_attempts=3).run()
    assert handler.tried == []
    assert group.info().next == 1


def test_messages_that_were_not_begun_lose_no_attempt(
    crew: Crew, stream: Stream, group: Group
) -> None:
    stream.write_many(entries(4))
    for _ in range(3):
        handler = Refusing(set())
        worker = crew.worker(stream, handler, max_attempts=1, dead_letters=True)
        messages = group.read(4, ack_ms=60_000)
        assert [message.attempt for message in messages] == [1] * 4
        assert group.release(messages) == 4
    with at_work(worker):
        until(all_done(group, 4))
    assert group.dead() == []


# ── Values that do not fit ───────────────────────────────────────────────────────────────────


def test_a_value_that_does_not_fit_is_buried_at_once(
    crew: Crew, stream: Stream, group: Group, caplog: pytest.LogCaptureFixture
) -> None:
    stream.write_many([("a", b"[1]"), ("b", SECRET.encode()), ("c", b"[3]")])
    seen: list[Any] = []
    worker = crew.worker(
        stream, lambda m: seen.append(m.data), codec=list[int], dead_letters=True, max_attempts=5
    )
    with at_work(worker), caplog.at_level(logging.ERROR, "headwater.workers"):
        until(lambda: all_done(group, 3)() and group.dead())
    assert sorted(seen) == [[1], [3]]
    (letter,) = group.dead()
    assert (letter.origin, letter.attempts, letter.value) == (2, 1, SECRET.encode())
    assert letter.cause is not None
    assert letter.cause.type == "Undecodable"
    assert f"message 2 of stream {stream.name}" in letter.cause.text
    (line,) = [record.getMessage() for record in caplog.records]
    assert f"offset 2 of {stream.name}/g, attempt 1, does not fit its codec" in line
    assert SECRET not in caplog.text


def test_a_value_of_a_queue_that_does_not_fit_is_buried_at_once(crew: Crew, queue: Queue) -> None:
    queue.push_many([b"[1]", b"{"])
    seen: list[Any] = []

    def handler(delivery: Delivery) -> None:
        seen.append(delivery.data)

    with at_work(crew.queue_worker(queue, handler, codec="json")):
        until(lambda: queue.stats().dead == 1 and queue.stats().acked == 1)
    (letter,) = queue.dead()
    assert (seen, letter.value, letter.attempt) == ([[1]], b"{", 1)
    assert letter.cause is not None
    assert letter.cause.type == "Undecodable"


def test_without_dead_letters_what_does_not_fit_waits_and_the_log_names_the_cure(
    crew: Crew, stream: Stream, group: Group, caplog: pytest.LogCaptureFixture
) -> None:
    stream.write_many([("a", b"{"), ("b", b"[2]")])
    seen: list[Any] = []
    worker = crew.worker(stream, lambda m: seen.append(m.data), codec="json")
    with at_work(worker), caplog.at_level(logging.ERROR, "headwater.workers"):
        until(lambda: seen and "offset 1" in caplog.text)
    assert seen == [[2]]
    assert "redelivered in 60000 ms; open the group with dead_letters=True" in caplog.text
    assert group.info().pending == 1, "nothing is lost"


# Workers that keep order: the messages of one tag one after the other, whoever fails or dies.


LONG = int(os.environ.get("HEADWATER_LONG", "0"))


class Noting:
    """A handler that notes what it begins and has done, and fails some at first."""

    def __init__(self, failing: set[int] = frozenset()) -> None:  # type: ignore[assignment]
        self.notes: list[str] = []
        self.running: set[str] = set()
        self._failing = failing
        self._lock = threading.Lock()

    def __call__(self, message: Any) -> None:
        with self._lock:
            assert message.tag not in self.running, "one at a time"
            self.running.add(message.tag)
            self.notes.append(f"begin {message.tag} {message.offset}")
        try:
            if message.offset in self._failing and message.attempt < 3:
                raise ValueError("not yet")
            with self._lock:
                self.notes.append(f"done {message.tag} {message.offset}")
        finally:
            with self._lock:
                self.running.discard(message.tag)


def written(stream: Stream, count: int, tags: int) -> dict[int, str]:
    names = [f"t{n * n % tags}" for n in range(count)]
    offsets = stream.write_many([(name, b"") for name in names])
    return dict(zip(offsets, names, strict=True))


def test_two_crews_keep_the_order_of_each_tag_though_some_fail(crew: Crew, name: str) -> None:
    stream = crew.hw.stream(name)
    tags = written(stream, 600, 40) | written(stream, 1, 3)
    handler = Noting(failing={5, 40, 41, 300})
    options: dict[str, Any] = {"ordered": True, "concurrency": 8, "backoff_ms": 1}
    workers = [crew.worker(stream, handler, **options) for _ in range(2)]
    with at_work(*workers):
        until(all_done(stream.group("g"), 601))
    assert overtaken(handler.notes, tags, frozenset()) == []
    done = [note for note in handler.notes if note.startswith("done")]
    assert len(done) == len(set(done)) == 601, "each was handled once"


def test_a_tag_waits_for_its_retry_and_continues_when_it_is_buried(crew: Crew, name: str) -> None:
    stream = crew.hw.stream(name)
    stream.write_many([("bad", b""), ("bad", b""), ("good", b""), ("good", b"")])
    tried: list[tuple[str, int]] = []

    def handler(message: Message) -> None:
        tried.append((message.tag, message.offset))
        if message.offset == 1:
            raise ValueError("never")

    options: dict[str, Any] = {"ordered": True, "max_attempts": 3, "backoff_ms": 200}
    worker = crew.worker(stream, handler, dead_letters=True, **options)
    with at_work(worker):
        until(all_done(stream.group("g"), 4))
    assert [offset for tag, offset in tried if tag == "bad"] == [1, 1, 1, 2]
    assert tried.index(("good", 4)) < tried.index(("bad", 2)), "others did not wait"
    assert [letter.origin for letter in stream.group("g").dead()] == [1]


def test_a_message_past_its_time_holds_its_tag_until_it_is_done(crew: Crew, name: str) -> None:
    stream, free, tried = crew.hw.stream(name), threading.Event(), []
    stream.write_many([("x", b""), ("x", b""), ("y", b"")])

    def handler(message: Message) -> None:
        tried.append((message.offset, message.attempt))
        if (message.offset, message.attempt) == (1, 1):
            assert free.wait(60)

    worker = crew.worker(stream, handler, ordered=True, timeout_ms=1500, backoff_ms=1)
    try:
        with at_work(worker):
            until(all_done(stream.group("g"), 3))
    finally:
        free.set()
    assert [each for each in tried if each[0] != 3] == [(1, 1), (1, 2), (2, 1)]


def test_workers_of_a_topic_keep_the_order_in_each_partition(crew: Crew, name: str) -> None:
    topic: Topic = crew.hw.topic(name, partitions=3)
    topic.write_many([(f"t{n % 20}", b"%d" % n) for n in range(200)])
    seen: dict[str, list[int]] = {}

    def handler(message: Any) -> None:
        seen.setdefault(message.tag, []).append(int(message.value))

    with at_work(crew.topic_worker(topic, handler, ordered=True, concurrency=8)):
        until(lambda: done_in(topic.group("g")) == 200)
    assert all(values == sorted(values) for values in seen.values())
    assert sum(map(len, seen.values())) == 200


@pytest.mark.fault
def test_each_tag_stays_in_order_while_workers_are_killed(
    stores: Stores, name: str, tmp_path: Any
) -> None:
    dice = random.Random(int(os.environ.get("HEADWATER_SEED", "7")))
    page = tmp_path / "notes"
    with headwater.connect(stores.url("plain")) as hw, Zygote("tests.support.members") as zygote:
        stream, group = hw.stream(name), hw.stream(name).group("g")
        manners = ["sync", "async", "sync"]

        def start(manner: str) -> int:
            order = {"role": "worker in order", "manner": manner, "stream": name}
            return zygote.start("", stores.url("plain"), page=str(page), **order)

        pids = [start(manner) for manner in manners]
        tags: dict[int, str] = {}
        for _ in range(6 * max(LONG, 1)):
            tags |= written(stream, dice.choice([3, 60, 300]), dice.choice([2, 30]))
            half = max(tags) - 40
            until(lambda: "g" in stream.info().groups and group.info().ack_offset > half - 200)  # noqa: B023
            dying = dice.randrange(3)
            os.kill(pids[dying], signal.SIGKILL)
            assert zygote.wait(pids[dying]) == -signal.SIGKILL
            pids[dying] = start(manners[dying])
        until(all_done(group, max(tags)), 60)
        assert [zygote.end(pid) for pid in pids] == [0, 0, 0]
    notes = page.read_text().splitlines()
    assert overtaken(notes, tags, frozenset()) == []
    assert {note for note in notes if note.startswith("done")} == {
        f"done {tag} {offset}" for offset, tag in tags.items()
    }
