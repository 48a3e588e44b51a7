"""What may be the handler of a worker: sync and async handlers are told apart, nothing is lost."""

from __future__ import annotations

import asyncio
import functools
import logging
import signal
import threading
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

import headwater
from headwater import Delivery, HandlerTimeout, Message, Queue, QueueWorker, Stream, Worker, aio
from headwater.aio import AsyncWorker
from headwater.errors import InvalidInput
from headwater.workers.attempts import Retries
from headwater.workers.holding import Prefetch
from headwater.workers.sources import QueueMessages
from tests.support.blocking import Loop
from tests.support.commands import start
from tests.support.entries import entries
from tests.support.servers import Server, until
from tests.support.stores import Stores
from tests.support.workers import Crew, Gate, all_done, at_work


@pytest.fixture
def stream(crew: Crew, name: str) -> Stream:
    return crew.hw.stream(name)


@pytest.fixture
def queue(crew: Crew, name: str) -> Queue:
    return crew.hw.queue(name)


# ── Of a group ───────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "options", [{"concurrency": 0}, {"ack_ms": 1}, {"expire_ms": 0}, {"backoff_ms": -1}]
)
def test_terms_that_cannot_be_meant_are_refused(
    crew: Crew, stream: Stream, options: dict[str, Any]
) -> None:
    with pytest.raises(InvalidInput):
        crew.worker(stream, print, **options)


def test_an_async_handler_is_no_handler_for_a_sync_worker(stores: Stores, name: str) -> None:
    async def handler(_: Message) -> None:
        pass

    class Handler:
        async def __call__(self, _: Message) -> None:
            pass

    with headwater.connect(stores.url("plain")) as hw:
        for each in (handler, Handler()):
            with pytest.raises(InvalidInput, match="must not be async"):
                Worker(hw.stream(name).group("g"), each)


def test_a_promise_that_nobody_keeps_is_no_success(stores: Stores, name: str) -> None:
    asked: list[int] = []

    async def work() -> None:
        pytest.fail("nobody awaits this")

    def handler(message: Message) -> Any:
        asked.append(message.attempt)
        return work()

    with headwater.connect(stores.url("plain")) as hw:
        stream = hw.stream(name)
        stream.write("a", b"1")
        with at_work(Worker(stream.group("g"), handler, backoff_ms=0)):
            until(lambda: len(asked) > 1)
        assert stream.group("g").info().ack_offset == 1, "it is not done"


def test_a_plain_function_is_no_handler_for_an_async_worker(
    stores: Stores, name: str, loop: Loop
) -> None:
    async def work() -> None:
        async with aio.connect(stores.url("plain")) as hw:
            handler: Any = Gate().open
            with pytest.raises(InvalidInput, match="async def"):
                AsyncWorker(hw.stream(name).group("g"), handler)

    loop.wait(work())


def test_an_async_worker_ends_when_its_handler_turns_out_to_be_plain(
    stores: Stores, name: str, loop: Loop
) -> None:
    async def work() -> tuple[list[int], list[int]]:
        async with aio.connect(stores.url("plain")) as hw:
            stream, seen = hw.stream(name), list[int]()
            await stream.write_many(entries(5))
            group = stream.group("g")
            handler: Any = lambda message: seen.append(message.offset)  # noqa: E731
            with pytest.raises(InvalidInput, match="async def"):
                await AsyncWorker(group, handler, concurrency=2, ack_ms=60_000).run()
            messages = await group.read(10, block_ms=20_000, ack_ms=60_000)
            return seen, sorted(message.offset for message in messages)

    seen, given_back = loop.wait(asyncio.wait_for(work(), 60))
    assert seen == [1], "no other was begun"
    assert given_back == [1, 2, 3, 4, 5]


# ── Of a queue ───────────────────────────────────────────────────────────────────────────────


def test_a_worker_of_a_queue_refuses_what_it_cannot_do(crew: Crew, queue: Queue) -> None:
    async def handle(delivery: Delivery) -> None: ...

    for handler in (handle, functools.partial(handle), Handlers()):
        with pytest.raises(InvalidInput, match="async"):
            queue.worker()(handler)
    for options in ({"concurrency": 0}, {"ack_ms": 1}):
        with pytest.raises(InvalidInput):
            crew.queue_worker(queue, print, **options)


class Handlers:
    """The ways to write a handler; each notes what it was given."""

    def __init__(self) -> None:
        self.seen: list[bytes] = []

    def plain(self, delivery: Delivery) -> None:
        self.seen.append(delivery.value)

    async def noted(self, delivery: Delivery) -> None:
        self.seen.append(delivery.value)

    async def __call__(self, delivery: Delivery) -> None:
        self.seen.append(delivery.value)

    def wrapped(self) -> Callable[[Delivery], Any]:
        @functools.wraps(self.noted)
        def wrapper(delivery: Delivery) -> Any:
            return self.noted(delivery)

        return wrapper


def test_a_promise_that_nobody_keeps_is_no_success_of_a_queue(stores: Stores, name: str) -> None:
    async def work() -> None:
        pytest.fail("nobody awaits this")

    with headwater.connect(stores.url("plain")) as hw:
        queue = hw.queue(name)
        queue.configure(max_attempts=1)
        queue.push(b"1")
        with at_work(queue.worker()(lambda _: work())):
            until(lambda: queue.stats().dead == 1)
        assert queue.stats().acked == 0


def test_a_plain_function_is_no_handler_for_an_async_queue_worker(
    stores: Stores, name: str, loop: Loop
) -> None:
    async def work() -> None:
        async with aio.connect(stores.url("plain")) as hw:
            handlers: list[Any] = [Handlers().plain, functools.partial(Handlers().plain), "print"]
            for handler in handlers:
                with pytest.raises(InvalidInput, match="async"):
                    hw.queue(name).worker()(handler)

    loop.wait(work())


@pytest.mark.parametrize(
    "choose",
    [
        lambda ways: ways,
        lambda ways: ways.noted,
        lambda ways: functools.partial(ways.noted),
        lambda ways: ways.wrapped(),
        lambda ways: lambda delivery: asyncio.ensure_future(ways.noted(delivery)),
    ],
    ids=["object", "method", "partial", "wrapped", "lambda"],
)
def test_whatever_gives_an_awaitable_is_a_handler_for_an_async_queue_worker(
    stores: Stores, name: str, loop: Loop, choose: Callable[[Handlers], Any]
) -> None:
    async def work() -> list[bytes]:
        async with aio.connect(stores.url("plain")) as hw:
            ways, queue = Handlers(), hw.queue(name)
            await queue.push(b"v")
            worker = queue.worker()(choose(ways))
            running = asyncio.create_task(worker.run())
            while not (await queue.stats()).acked:
                assert not running.done()
            worker.stop()
            await running
            return ways.seen

    assert loop.wait(asyncio.wait_for(work(), 60)) == [b"v"]


def test_an_async_queue_worker_ends_when_its_handler_turns_out_to_be_plain(
    stores: Stores, name: str, loop: Loop
) -> None:
    async def work() -> tuple[list[bytes], list[int]]:
        async with aio.connect(stores.url("plain")) as hw:
            queue, seen = hw.queue(name), list[bytes]()
            await queue.push_many([b"0", b"1", b"2", b"3", b"4"])
            handler: Any = lambda delivery: seen.append(delivery.value)  # noqa: E731
            with pytest.raises(InvalidInput, match="async def"):
                await queue.worker(concurrency=2, ack_ms=60_000)(handler).run()
            return seen, [delivery.attempt for delivery in await queue.pop(9)]

    seen, attempts = loop.wait(asyncio.wait_for(work(), 60))
    assert seen == [b"0"], "no other was begun"
    assert attempts == [1] * 5, "all were given back"


def test_an_async_handler_that_raises_cancelled_error_has_failed(
    loop: Loop, stores: Stores, name: str
) -> None:
    attempts: list[tuple[int, int]] = []

    async def work() -> None:
        async with aio.connect(stores.url("plain")) as hw:
            stream = hw.stream(name)
            await stream.write_many(entries(2))

            async def handle(message: Message) -> None:
                attempts.append((message.offset, message.attempt))
                if message.attempt == 1:
                    raise asyncio.CancelledError
                if len(attempts) == 4:
                    worker.stop()

            group = stream.group("g")
            worker = AsyncWorker(group, handle, concurrency=1, backoff_ms=0)
            await asyncio.wait_for(worker.run(), 60)
            assert (await group.info()).pending == 0

    loop.wait(work())
    assert sorted(attempts) == [(1, 1), (1, 2), (2, 1), (2, 2)]


# ── Checked when it is made ──────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("handler", "words"),
    [
        (lambda: None, "must take one argument, the message"),
        (lambda message, more: None, "must take one argument, the message"),  # noqa: ARG005
        (functools.partial(print, end=""), None),
        ([].append, None),
        ("print", "must be a"),
    ],
    ids=["no argument", "two arguments", "any number", "built in", "no function"],
)
def test_a_handler_must_take_one_message(
    stores: Stores, name: str, handler: Any, words: str | None
) -> None:
    with headwater.connect(stores.url("plain")) as hw:
        makers: list[Callable[[Any], object]] = [
            hw.stream(name).group("g").worker(),
            hw.topic(name).group("g").worker(),
            hw.queue(name).worker(),
        ]
        for make in makers:
            if words is None:
                assert make(handler)
                continue
            with pytest.raises(InvalidInput, match=words):
                make(handler)


def test_a_worker_is_made_of_what_it_can_take_messages_from(
    stores: Stores, name: str, loop: Loop
) -> None:
    async def nothing(_: object) -> None:
        pass

    async def work() -> None:
        async with aio.connect(stores.url("plain")) as ahw:
            with headwater.connect(stores.url("plain")) as hw:
                wrong: list[tuple[Any, Any, str]] = [
                    (Worker, hw.stream(name), "stream.group"),
                    (Worker, hw.topic(name), "topic.group"),
                    (Worker, hw.queue(name), "QueueWorker"),
                    (Worker, ahw.stream(name).group("g"), "AsyncWorker"),
                    (Worker, ahw.topic(name).group("g"), "AsyncWorker"),
                    (Worker, "g", "not from a str"),
                    (headwater.QueueWorker, hw.stream(name).group("g"), "use Worker"),
                    (AsyncWorker, hw.stream(name).group("g"), "use Worker"),
                    (AsyncWorker, ahw.queue(name), "AsyncQueueWorker"),
                ]
                for kind, found, words in wrong:
                    with pytest.raises(InvalidInput, match=words):
                        kind(found, nothing if kind is AsyncWorker else print)

    loop.wait(work())


# Time limits of handlers: past it a handler is stopped or left behind, and its message fails.


class StuckOnce:
    """A handler that hangs the first time, until it is let go; ``tried`` has all attempts."""

    def __init__(self) -> None:
        self.tried: list[tuple[Any, int]] = []
        self.free = threading.Event()

    def __call__(self, item: Any) -> None:
        self.tried.append((item.value, item.attempt))
        if item.value == b"stuck" and item.attempt == 1:
            assert self.free.wait(60)


@pytest.mark.parametrize("timeout_ms", [0, -1, "30s", 1.5])
def test_a_time_limit_that_cannot_be_meant_is_refused(
    crew: Crew, name: str, timeout_ms: Any
) -> None:
    with pytest.raises((InvalidInput, TypeError)):
        crew.worker(crew.hw.stream(name), print, timeout_ms=timeout_ms)
    with pytest.raises((InvalidInput, TypeError)):
        crew.queue_worker(crew.hw.queue(name), print, timeout_ms=timeout_ms)


def test_a_message_of_a_stuck_handler_is_retried_while_others_continue(
    crew: Crew, name: str
) -> None:
    stream = crew.hw.stream(name)
    stream.write("a", b"stuck")
    stream.write_many(entries(6))
    handler = StuckOnce()
    worker = crew.worker(stream, handler, concurrency=1, timeout_ms=1500, backoff_ms=1)
    try:
        with at_work(worker):
            until(all_done(stream.group("g"), 7))
        assert [attempt for value, attempt in handler.tried if value == b"stuck"] == [1, 2]
        assert len(handler.tried) == 8, "the others were handled once"
    finally:
        handler.free.set()


def test_a_message_whose_handlers_are_stuck_is_buried_with_that_cause(
    stores: Stores, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    free = threading.Event()
    with headwater.connect(stores.url("plain")) as hw:
        queue = hw.queue(name)
        queue.push(b"stuck")

        def handler(_: Any) -> None:
            assert free.wait(60)

        worker = QueueWorker(
            queue, handler, concurrency=1, timeout_ms=50, max_attempts=2, backoff_ms=1
        )
        with caplog.at_level(logging.WARNING, "headwater.workers"), at_work(worker):
            until(lambda: queue.stats().dead == 1)
            # A worker that ends does not wait for threads that it has given up.
        left_behind = [thread for thread in threading.enumerate() if "handler" in thread.name]
        letter = queue.dead()[0]
        assert (letter.attempt, letter.cause and letter.cause.type) == (2, "HandlerTimeout")
        assert len(left_behind) >= 2
        assert caplog.text.count("a thread cannot be stopped") == 2
        free.set()
        for thread in left_behind:
            thread.join(60)
        assert queue.stats().dead == 1, "what they returned later counts for nothing"


def test_an_async_handler_past_its_time_is_cancelled(stores: Stores, name: str, loop: Loop) -> None:
    cancelled: list[int] = []
    done = asyncio.Event()

    async def handler(message: Any) -> None:
        try:
            if message.attempt == 1:
                await asyncio.Event().wait()
            done.set()
        except asyncio.CancelledError:
            cancelled.append(message.attempt)
            raise

    async def work() -> headwater.GroupInfo:
        async with await aio.connect(stores.url("plain")) as hw:
            stream = hw.stream(name)
            await stream.write("a", b"1")
            worker = AsyncWorker(stream.group("g"), handler, timeout_ms=50, backoff_ms=1)
            running = asyncio.create_task(worker.run())
            await asyncio.wait_for(done.wait(), 60)
            worker.stop()
            await running
            return await stream.group("g").info()

    assert loop.wait(work()).ack_offset == 2
    assert cancelled == [1]


def test_an_error_of_a_handler_is_its_own_though_it_says_timeout(crew: Crew, name: str) -> None:
    queue: Queue = crew.hw.queue(name)
    queue.push(b"1")

    def handler(_: Any) -> None:
        raise TimeoutError("the mail server is away")

    with at_work(crew.queue_worker(queue, handler, timeout_ms=60_000, max_attempts=1)):
        until(lambda: queue.stats().dead == 1)
    cause = queue.dead()[0].cause
    assert cause is not None
    assert str(cause) == "TimeoutError: the mail server is away"


def test_a_handler_may_take_many_deadlines_as_long_as_it_has_no_limit(
    crew: Crew, name: str
) -> None:
    stream = crew.hw.stream(name)
    stream.write_many(entries(3))
    free, begun = threading.Event(), []

    def handler(message: Any) -> None:
        begun.append(message.offset)
        assert free.wait(60)

    with at_work(crew.worker(stream, handler, ack_ms=2000, concurrency=4)):
        until(lambda: len(begun) == 3)
        # Somebody else would get them as soon as a deadline is over.
        assert stream.group("g").read(3, ack_ms=1000, block_ms=5000) == []
        free.set()
        until(all_done(stream.group("g"), 3))
    assert sorted(begun) == [1, 2, 3]


def test_the_error_names_its_limit() -> None:
    error = HandlerTimeout(50)
    assert error.timeout_ms == 50
    assert "raise timeout_ms" in str(error)


# ── Workers of a queue: every message until its handler succeeded, several at a time ─────────────


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
