"""Workers of a queue: every message until its handler succeeded, several at a time."""

from __future__ import annotations

import asyncio
import functools
import signal
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from typing import Any, cast

import pytest

import headwater
from headwater import Delivery, InvalidInput, Queue, QueueWorker, aio
from headwater.workers.deliveries import Deliveries
from headwater.workers.pace import Pace
from tests.support.blocking import Blocking, Loop
from tests.support.commands import start
from tests.support.servers import Server, until
from tests.support.stores import Stores


class Crew:
    """Makes workers of one manner; the handlers of async ones run in threads all the same."""

    def __init__(self, manner: str, url: str, loop: Loop) -> None:
        self._end = ExitStack()
        self._manner = manner
        self.hw = self._end.enter_context(headwater.connect(url))
        self._loop = loop
        self._async_hw: aio.AsyncHeadwater = loop.wait(aio.connect(url))
        self._end.callback(lambda: loop.wait(self._async_hw.close()))
        self._threads = self._end.enter_context(ThreadPoolExecutor(16))

    def worker(
        self, queue: Queue, handler: Callable[[Delivery], Any], **options: Any
    ) -> QueueWorker:
        if self._manner == "sync":
            return queue.worker(**options)(handler)

        async def awaited(delivery: Delivery) -> None:
            await asyncio.get_running_loop().run_in_executor(self._threads, handler, delivery)

        made = self._async_hw.queue(queue.name).worker(**options)(awaited)
        return cast("QueueWorker", Blocking(self._loop, made))

    def close(self) -> None:
        self._end.close()


@contextmanager
def running(worker: QueueWorker) -> Iterator[None]:
    thread = threading.Thread(target=worker.run)
    thread.start()
    try:
        yield
    finally:
        worker.stop()
        thread.join(20)
        assert not thread.is_alive()


@pytest.fixture(params=["sync", "async"])
def crew(request: pytest.FixtureRequest, stores: Stores, loop: Loop) -> Iterator[Crew]:
    crew = Crew(request.param, stores.url("plain"), loop)
    yield crew
    crew.close()


@pytest.fixture
def queue(crew: Crew, name: str) -> Queue:
    return crew.hw.queue(name)


def test_every_message_is_handled_once_and_acknowledged(crew: Crew, queue: Queue) -> None:
    some = [b"%d" % i for i in range(500)]
    queue.push_many(some)
    seen: list[bytes] = []
    with running(crew.worker(queue, lambda d: seen.append(d.value), concurrency=3)):
        until(lambda: queue.stats().acked == 500)
        queue.push(b"later")
        until(lambda: queue.stats().acked == 501)
    assert sorted(seen) == sorted([*some, b"later"])
    assert queue.stats().unacked == 0


def test_as_many_run_at_once_as_asked_for(crew: Crew, queue: Queue) -> None:
    queue.push_many([b"v"] * 12)
    meeting = threading.Barrier(4)
    with running(crew.worker(queue, lambda _: meeting.wait(20), concurrency=4)):
        until(lambda: queue.stats().acked == 12)


def test_what_fails_is_tried_again_as_the_queue_says_and_then_given_up(
    crew: Crew, queue: Queue
) -> None:
    queue.configure(max_attempts=3, backoff="fixed", backoff_ms=10)
    queue.push_many([b"good", b"bad"])
    seen: Counter[bytes] = Counter()

    def handle(delivery: Delivery) -> None:
        seen[delivery.value] += 1
        if delivery.value == b"bad":
            raise ValueError("bad")

    with running(crew.worker(queue, handle)):
        until(lambda: queue.stats().dead == 1 and queue.stats().acked == 1)
    assert seen == {b"good": 1, b"bad": 3}


def test_without_a_back_off_of_the_queue_a_worker_lets_failures_rest() -> None:
    source = Deliveries("a queue", 30_000)
    assert [source.rest_ms(attempt) for attempt in (1, 2, 3, 9)] == [1000, 2000, 4000, 60_000]
    source.settings = headwater.QueueSettings(backoff="fixed")
    assert source.rest_ms(5) == 0


def test_quick_work_is_taken_in_large_batches_and_slow_work_in_small_ones() -> None:
    now = [0.0]
    pace = Pace(2, 30_000, "ack_ms", clock=lambda: now[0])
    assert pace.room == 4
    for _ in range(20):
        pace.note(pace.room)
    assert pace.room == 1000
    now[0] += 1000
    pace.note(1)
    assert pace.room == 4


def test_a_handler_may_take_longer_than_the_deadline(crew: Crew, queue: Queue) -> None:
    queue.push(b"v")
    go_on, seen = threading.Event(), []

    def handle(delivery: Delivery) -> None:
        seen.append(delivery.attempt)
        assert go_on.wait(20)

    with running(crew.worker(queue, handle, ack_ms=150)):
        until(lambda: seen)
        assert queue.pop(block_ms=500) == [], "it is still held"
        go_on.set()
        until(lambda: queue.stats().acked == 1)
    assert seen == [1]


def test_who_stops_gives_back_at_once_what_was_not_begun(crew: Crew, queue: Queue) -> None:
    queue.push_many([b"%d" % i for i in range(6)])
    go_on, begun = threading.Event(), threading.Event()

    def handle(_: Delivery) -> None:
        begun.set()
        assert go_on.wait(20)

    worker = crew.worker(queue, handle, concurrency=1, ack_ms=60_000)
    with running(worker):
        assert begun.wait(20)
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
        with running(queue.worker()(lambda d: seen.append(d.value))):
            queue.push(b"before")
            until(lambda: queue.stats().acked == 1)
            server.kill()
            server.restart()
            queue.push(b"after")
            until(lambda: queue.stats().acked == 2)
        assert seen == [b"before", b"after"]


def test_a_worker_refuses_what_it_cannot_do(crew: Crew, queue: Queue) -> None:
    async def handle(delivery: Delivery) -> None: ...

    for handler in (handle, functools.partial(handle), Handlers()):
        with pytest.raises(InvalidInput, match="async"):
            queue.worker()(handler)
    for options in ({"concurrency": 0}, {"ack_ms": 1}):
        with pytest.raises(InvalidInput):
            crew.worker(queue, print, **options)


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


def test_a_promise_that_nobody_keeps_is_no_success(stores: Stores, name: str) -> None:
    async def work() -> None:
        pytest.fail("nobody awaits this")

    with headwater.connect(stores.url("plain")) as hw:
        queue = hw.queue(name)
        queue.configure(max_attempts=1)
        queue.push(b"1")
        with running(queue.worker()(lambda _: work())):
            until(lambda: queue.stats().dead == 1)
        assert queue.stats().acked == 0


def test_a_plain_function_is_no_handler_for_an_async_worker(
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
def test_whatever_gives_an_awaitable_is_a_handler_for_an_async_worker(
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

    assert loop.wait(asyncio.wait_for(work(), 20)) == [b"v"]


def test_an_async_worker_ends_when_its_handler_turns_out_to_be_plain(
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

    seen, attempts = loop.wait(asyncio.wait_for(work(), 20))
    assert seen == [b"0"], "no other was begun"
    assert attempts == [1] * 5, "all were given back"


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
        out, err = program.communicate(timeout=20)
    assert program.returncode == 0
    assert {"one 1", "two 1", "fail 1"} <= set(out.splitlines())
    assert "exit code 1" in err
    assert "Traceback" not in err
