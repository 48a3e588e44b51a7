"""Runners of timed jobs as they run: places, timeouts, runs by hand, an end in order."""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import threading
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest

import headwater
from headwater import StoreUnreachable, TimedJobs, TimedRunner, aio, testing
from headwater.kernel.inputs import OwnName
from headwater.store.call import Operation
from headwater.timed.engine import TimedEngine
from headwater.timed.jobs import cron_plan, every_plan
from tests.support.blocking import Loop
from tests.support.servers import until
from tests.support.stores import Stores
from tests.support.timed import last_state


class Live:
    """A runner of one manner in the background; its jobs are due once a year, and by hand."""

    def __init__(self, manner: str, url: str, loop: Loop, concurrency: int) -> None:
        self.manner = manner
        self.freed = threading.Event()
        self._end = contextlib.ExitStack()
        self.hw = self._end.enter_context(headwater.connect(url))
        self.jobs = TimedJobs(self.hw)
        self._loop = loop
        if manner == "sync":
            self.runner: Any = TimedRunner(self.hw, concurrency=concurrency)
        else:
            hw = loop.wait(aio.connect(url))
            self._end.callback(lambda: loop.wait(hw.close()))
            self.runner = aio.AsyncTimedRunner(hw, concurrency=concurrency)
        self.thread = threading.Thread(target=self._run)

    def add(self, name: str, begun: Callable[[], Any], **options: Any) -> None:
        """Add a job that calls ``begun``, and waits until ``freed`` is set."""
        freed = self.freed

        def wait() -> None:
            begun()
            freed.wait(60)

        async def wait_in_loop() -> None:
            begun()
            await asyncio.to_thread(freed.wait, 30)

        handler = wait if self.manner == "sync" else wait_in_loop
        self.runner.cron("@yearly", name=name, **options)(handler)

    def _run(self) -> None:
        result = self.runner.run()
        if self.manner == "async":
            self._loop.wait(result)

    def run_by_hand(self, *names: str) -> None:
        """Ask for a run of each job; the first of all declares them."""
        result = self.runner.run_due()
        if self.manner == "async":
            self._loop.wait(result)
        for name in names:
            self.jobs.run(name)

    def close(self) -> None:
        """End the runner, whatever it does."""
        self.freed.set()
        self.runner.stop()
        if self.thread.is_alive():
            self.thread.join()
        self._end.close()


@pytest.fixture(params=["sync", "async"])
def live(
    request: pytest.FixtureRequest, stores: Stores, loop: Loop
) -> Iterator[Callable[[int], Live]]:
    with contextlib.ExitStack() as opened:

        def live(concurrency: int) -> Live:
            made = Live(request.param, stores.url("plain"), loop, concurrency)
            return opened.enter_context(contextlib.closing(made))

        yield live


def test_what_finds_no_free_place_runs_when_there_is_one(
    live: Callable[[int], Live], name: str
) -> None:
    runner = live(2)
    begun: list[str] = []
    names = [f"{name}-{n}" for n in range(5)]
    for each in names:
        runner.add(each, partial(begun.append, each))
    runner.run_by_hand(*names)
    runner.thread.start()
    until(lambda: len(begun) == 2)
    until(lambda: sum(bool(runner.jobs.info(each).waiting) for each in names) == 3)
    assert len(begun) == 2
    runner.freed.set()
    until(lambda: sorted(begun) == names)
    until(lambda: all(runner.jobs.info(each).last for each in names))


def test_an_attempt_that_takes_too_long_fails(live: Callable[[int], Live], name: str) -> None:
    runner = live(1)
    runner.add(name, bool, timeout="1s", max_attempts=1)
    runner.run_by_hand(name)
    runner.thread.start()
    until(lambda: runner.jobs.info(name).last is not None)
    last = runner.jobs.info(name).last
    assert last is not None
    assert last.outcome == "failed"
    assert last.error.startswith("HandlerTimeout: the handler ran longer than 1000 ms")
    # Its place is free for the next one.
    runner.freed.set()
    runner.jobs.run(name)
    until(lambda: runner.jobs.history(name)[-1].outcome == "done")


def test_a_stop_lets_what_was_begun_come_to_its_end(live: Callable[[int], Live], name: str) -> None:
    runner, begun = live(1), threading.Event()
    runner.add(name, begun.set)
    runner.run_by_hand(name)
    runner.thread.start()
    assert begun.wait(60)
    runner.runner.stop()
    runner.thread.join(0.2)
    assert runner.thread.is_alive()
    runner.freed.set()
    runner.thread.join(60)
    last = last_state(runner.hw, name).last
    assert last is not None
    assert (last.outcome, last.by_hand) == ("done", True)


def test_what_is_returned_is_started_again_and_the_attempt_does_not_count(
    live: Callable[[int], Live], name: str, loop: Loop
) -> None:
    runner, begun = live(1), threading.Event()
    runner.add(name, begun.set)
    runner.run_by_hand(name)
    runner.thread.start()
    assert begun.wait(60)

    async def give_back() -> int:
        return int(runner.runner.give_back())

    given = runner.runner.give_back() if runner.manner == "sync" else loop.wait(give_back())
    assert given == 1
    until(lambda: [run.attempt for run in runner.jobs.info(name).waiting] == [0])
    assert runner.jobs.history(name)[-1].what == "released"


def test_messages_of_others_in_the_stream_of_a_job_change_nothing(
    live: Callable[[int], Live], name: str
) -> None:
    runner = live(1)
    runner.freed.set()
    runner.add(name, bool)
    runner.run_by_hand()
    stream = runner.hw.stream(OwnName(f"hw.timed.{name}"))
    (first,) = stream.read(1, 1)
    assert first is not None
    # What is no state of a job, and a state that came too late.
    stream.write_many([("t", b"junk"), ("t", first.value)])
    runner.run_by_hand(name)
    runner.thread.start()
    until(lambda: runner.jobs.info(name).last is not None)


def test_no_runner_is_taken_for_lost_because_the_clock_of_the_store_was_set() -> None:
    with testing.store() as hw:
        job = cron_plan("@yearly", name="j").job(print)
        hw.store.run(TimedEngine([job], "before").begin())
        TimedJobs(hw).run("j")
        first, second = TimedEngine([job], "first"), TimedEngine([job], "second")
        for engine in (first, second):
            hw.store.run(engine.begin())
        (taken,) = hw.store.run(first.turn(1))
        hw.clock.advance(dt.timedelta(hours=1))
        hw.store.run(second.beat())
        assert hw.store.run(second.turn(1)) == []
        # It is, when it stays silent while time passes as it does.
        for _ in range(4):
            hw.clock.advance(dt.timedelta(seconds=10))
            hw.store.run(second.beat())
        (again,) = hw.store.run(second.turn(1))
        assert (again.run.due_ms, again.run.attempt) == (taken.run.due_ms, 2)


def test_a_run_that_was_taken_is_returned_after_a_fault_in_between() -> None:
    with testing.store() as hw:
        job = every_plan("1h", name="j", missed="all", overlap="allow").job(print)
        engine = TimedEngine([job], "first")
        hw.store.run(engine.begin())
        hw.clock.advance(dt.timedelta(hours=3))
        hw.store.run(engine.beat())
        with pytest.raises(StoreUnreachable):
            _without_second_write(hw, engine.turn(3))
        assert len(hw.store.run(engine.turn(3))) == 3


def _without_second_write(hw: testing.PrivateStore, operation: Operation[Any]) -> None:
    """Run an operation whose second write finds no store."""
    reply, written = None, 0
    while True:
        request = operation.send(reply)
        writes = str(request).count("hw_stream_write")
        if writes and written:
            operation.throw(StoreUnreachable("here", "a fault of the test"))
        reply = hw.store.ask(request)
        written += writes
