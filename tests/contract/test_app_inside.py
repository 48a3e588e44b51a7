"""An application inside another program: alone in the main thread, or in an event loop of yours."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import Iterator

import pytest

import headwater
from headwater import App, Delivery, Queue, testing
from headwater.errors import AppRefused, InvalidInput
from tests.support.servers import until
from tests.support.stores import Stores


class Inside:
    """An application with one handler of each kind; both wait until they are let go."""

    def __init__(self, url: str, name: str) -> None:
        self.app = App(url)
        self.begun: list[object] = []
        self.done: list[bytes] = []
        self._go = threading.Event()

        @self.app.worker(queue=name, ack_ms="10m")
        def in_thread(job: Delivery) -> None:
            self.begun.append(threading.current_thread())
            self._go.wait(60)
            self.done.append(job.value)

        @self.app.worker(queue=f"{name}-a", ack_ms="10m")
        async def in_loop(job: Delivery) -> None:
            self.begun.append(asyncio.get_running_loop())
            while not self._go.is_set():  # noqa: ASYNC110  threads let it go
                await asyncio.sleep(0)
            self.done.append(job.value)

    def go(self) -> None:
        self._go.set()

    def go_when_stopping(self) -> None:
        until(lambda: self.app.is_stopping)
        self.go()

    def loops(self) -> set[object]:
        return {one for one in self.begun if isinstance(one, asyncio.AbstractEventLoop)}


@pytest.fixture
def queues(stores: Stores, name: str) -> Iterator[tuple[Queue, Queue]]:
    with headwater.connect(stores.url("plain")) as hw:
        found = hw.queue(name), hw.queue(f"{name}-a")
        for queue in found:
            queue.push_many([b"1", b"2"])
        yield found


@pytest.fixture
def inside(stores: Stores, name: str) -> Iterator[Inside]:
    found = Inside(stores.url("plain"), name)
    yield found
    found.go()


def left(queues: tuple[Queue, Queue]) -> list[tuple[int, int]]:
    return [(queue.stats().ready, queue.stats().unacked) for queue in queues]


def test_in_a_lifespan_async_handlers_share_the_event_loop_of_the_program(
    inside: Inside, queues: tuple[Queue, Queue]
) -> None:
    async def program() -> None:
        async with inside.app.lifespan(object()):
            await asyncio.to_thread(until, lambda: len(inside.begun) == 4)
            assert inside.loops() == {asyncio.get_running_loop()}
            inside.go()

    asyncio.run(program())
    # What had begun was waited for.
    assert sorted(inside.done) == [b"1", b"1", b"2", b"2"]
    assert left(queues) == [(0, 0), (0, 0)]


def test_an_application_that_is_cancelled_returns_what_is_not_done(
    inside: Inside, queues: tuple[Queue, Queue]
) -> None:
    async def program() -> None:
        running = asyncio.create_task(inside.app.run_async(drain=0))
        await asyncio.to_thread(until, lambda: len(inside.begun) == 4)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running

    asyncio.run(program())
    assert left(queues) == [(2, 0), (2, 0)]


def test_a_lifespan_does_not_begin_with_what_is_wrong(inside: Inside) -> None:
    inside.app.worker(queue="no name", name="wrong")(lambda _: None)

    async def program() -> None:
        async with inside.app.lifespan():
            raise AssertionError("it began")

    with pytest.raises(AppRefused, match="wrong: the name of a queue"):
        asyncio.run(program())
    assert inside.begun == []


def signalling(inside: Inside, *numbers: int) -> threading.Thread:
    """Send signals to this process once all handlers have begun, each after the one before."""

    def send() -> None:
        until(lambda: len(inside.begun) == 4)
        for number in numbers:
            os.kill(os.getpid(), number)
            # Two signals at once would be one.
            until(lambda: inside.app.is_stopping)

    thread = threading.Thread(target=send)
    thread.start()
    return thread


def test_a_signal_lets_handlers_end(inside: Inside, queues: tuple[Queue, Queue]) -> None:
    thread = signalling(inside, signal.SIGTERM)
    letting = threading.Thread(target=inside.go_when_stopping)
    letting.start()
    inside.app.run(drain="10m")
    thread.join()
    letting.join()
    assert sorted(inside.done) == [b"1", b"1", b"2", b"2"]
    assert left(queues) == [(0, 0), (0, 0)]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_second_signal_returns_what_is_not_done(
    inside: Inside, queues: tuple[Queue, Queue], number: int
) -> None:
    thread = signalling(inside, number, number)
    inside.app.run(drain="10m")
    thread.join()
    assert left(queues) == [(2, 0), (2, 0)]
    assert inside.done == []


def test_handlers_share_the_clients_of_their_process(
    stores: Stores, queues: tuple[Queue, Queue], name: str
) -> None:
    app = App(stores.url("plain"))
    used: list[object] = []

    @app.worker(queue=name)
    def in_thread(job: Delivery) -> None:
        app.hw.queue(f"{name}-next").push(job.value)
        used.append(app.hw)

    @app.worker(queue=f"{name}-a")
    async def in_loop(job: Delivery) -> None:
        await app.async_hw.queue(f"{name}-next").push(job.value)
        used.append(app.async_hw)

    for client in ("hw", "async_hw"):
        with pytest.raises(InvalidInput, match="does not run in this process"):
            getattr(app, client)
    app.start()
    until(lambda: len(used) == 4)
    app.stop()
    assert len({id(client) for client in used}) == 2
    assert left(queues) == [(0, 0), (0, 0)]
    with pytest.raises(InvalidInput, match="does not run in this process"):
        _ = app.hw

    with testing.store() as private:
        private.queue(name).push(b"1")
        private.queue(f"{name}-a").push(b"2")
        testing.drain(app, store=private.url).raise_errors()
        assert private.queue(f"{name}-next").stats().ready == 2
    with pytest.raises(InvalidInput, match="does not run in this process"):
        _ = app.hw
