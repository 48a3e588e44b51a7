"""What may be the handler of a worker: sync and async handlers are told apart, nothing is lost."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable
from typing import Any

import pytest

import headwater
from headwater import Delivery, Message, Queue, Stream, Worker, aio
from headwater.aio import AsyncWorker
from headwater.errors import InvalidInput
from tests.support.blocking import Loop
from tests.support.entries import entries
from tests.support.servers import until
from tests.support.stores import Stores
from tests.support.workers import Crew, Gate, at_work


@pytest.fixture
def stream(crew: Crew, name: str) -> Stream:
    return crew.hw.stream(name)


@pytest.fixture
def queue(crew: Crew, name: str) -> Queue:
    return crew.hw.queue(name)


# ── Of a group ───────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "options",
    [{"concurrency": 0}, {"ack_ms": 1}, {"expire_ms": 0}, {"backoff_ms": -1}],
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
