"""Timed jobs: each due run happens once among all runners, by the policies of its job."""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import threading
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
from msgspec.structs import replace

import headwater
from headwater import StoreUnreachable, TimedJobs, aio, testing
from headwater.app.parts import Part
from headwater.errors import InvalidInput
from headwater.kernel.inputs import OwnName
from headwater.store.call import Operation
from headwater.timed import states
from headwater.timed.engine import TimedEngine
from headwater.timed.jobs import DueRun, JobTable, cron_plan, every_plan
from headwater.timed.runner import TimedRunner
from headwater.timed.states import ActiveRun, JobSpec, JobState
from tests.support.blocking import Loop
from tests.support.servers import until
from tests.support.stores import Stores
from tests.support.timed import HOUR_MS, MINUTE_MS, START_MS, Clockwork, last_state


@pytest.fixture(params=["sync", "async"])
def clockwork(request: pytest.FixtureRequest, stores: Stores, loop: Loop) -> Iterator[Clockwork]:
    with contextlib.closing(Clockwork(request.param, stores.url("plain"), loop)) as made:
        yield made


def test_a_run_happens_once_among_all_runners(clockwork: Clockwork, name: str) -> None:
    runs: list[DueRun] = []
    runners = [clockwork.runner(name, runs.append, every="5m") for _ in range(3)]
    for run_due in runners:
        assert run_due() == []
    for _ in range(3):
        clockwork.now_ms += 5 * MINUTE_MS
        for run_due in runners:
            run_due()
    assert [run.due_ms - START_MS for run in runs] == [n * 5 * MINUTE_MS for n in (1, 2, 3)]
    assert {run.attempt for run in runs} == {1}


def test_nothing_before_the_first_declaration_is_due(clockwork: Clockwork, name: str) -> None:
    runs: list[DueRun] = []
    run_due = clockwork.runner(name, runs.append, every="5m", missed="all")
    clockwork.now_ms += MINUTE_MS
    assert run_due() == []
    assert run_due() == []


@pytest.mark.parametrize(
    ("missed", "hours", "counted"), [("skip", [], 3), ("once", [3], 2), ("all", [1, 2, 3], 0)]
)
def test_what_no_runner_saw_is_run_by_its_policy(
    clockwork: Clockwork, name: str, missed: str, hours: list[int], counted: int
) -> None:
    runs: list[DueRun] = []
    run_due = clockwork.runner(name, runs.append, cron="0 * * * *", missed=missed)
    run_due()
    clockwork.now_ms += 3 * HOUR_MS + 2 * MINUTE_MS
    run_due()
    run_due()
    assert [(run.due_ms - START_MS) // HOUR_MS for run in runs] == hours
    assert clockwork.state(name).missed == counted


def test_a_run_that_is_late_by_less_than_a_minute_is_not_missed(
    clockwork: Clockwork, name: str
) -> None:
    runs: list[DueRun] = []
    run_due = clockwork.runner(name, runs.append, cron="0 * * * *")
    run_due()
    clockwork.now_ms += HOUR_MS + MINUTE_MS
    run_due()
    assert [run.due_ms for run in runs] == [START_MS + HOUR_MS]


@pytest.mark.parametrize(
    ("overlap", "during", "after"), [("skip", [], []), ("queue", [], [2]), ("allow", [2], [])]
)
def test_a_run_that_is_due_during_another_follows_its_policy(
    clockwork: Clockwork, name: str, overlap: str, during: list[int], after: list[int]
) -> None:
    runs: list[int] = []
    options: dict[str, Any] = {"every": "5m", "overlap": overlap}
    run_due = clockwork.runner(name, lambda run: runs.append(run.due_ms - START_MS), **options)
    run_due()
    clockwork.now_ms += 5 * MINUTE_MS
    engine, (first,) = clockwork.take(name, **options)
    clockwork.now_ms += 5 * MINUTE_MS
    # Its runner still lives.
    clockwork.hw.store.run(engine.keep_in_touch())
    run_due()
    assert runs == [n * 5 * MINUTE_MS for n in during]
    assert clockwork.finish(engine, first) == []
    run_due()
    assert runs == [n * 5 * MINUTE_MS for n in during + after]
    assert clockwork.state(name).skipped == (overlap == "skip")


def test_a_failed_run_is_retried_and_then_given_up(clockwork: Clockwork, name: str) -> None:
    tried: list[int] = []

    def handle(run: DueRun) -> None:
        tried.append(run.attempt)
        raise ValueError("no luck")

    run_due = clockwork.runner(name, handle, cron="0 * * * *", max_attempts=2)
    run_due()
    clockwork.now_ms += HOUR_MS
    run_due()
    run_due()
    assert tried == [1]
    clockwork.now_ms += 1000
    run_due()
    clockwork.now_ms += HOUR_MS // 2
    run_due()
    assert tried == [1, 2]
    last = clockwork.state(name).last
    assert last is not None
    assert (last.outcome, last.error, last.attempt) == ("failed", "ValueError: no luck", 2)
    assert [event.what for event in clockwork.events(name)] == [
        "defined", "due", "started", "failed", "started", "ended",
    ]  # fmt: skip


def test_a_run_whose_runner_died_is_retried_when_it_was_silent_for_a_while(
    clockwork: Clockwork, name: str
) -> None:
    run_due = clockwork.runner(name, lambda _: None, cron="0 * * * *")
    run_due()
    clockwork.now_ms += HOUR_MS
    engine, (taken,) = clockwork.take(name, cron="0 * * * *")
    clockwork.now_ms += 29_000
    assert run_due() == []
    clockwork.now_ms += 2_000
    (done,) = run_due()
    assert (done.taken.run.due_ms, done.taken.run.attempt) == (START_MS + HOUR_MS, 2)
    # Whoever was thought dead has no say any more.
    assert [late.taken for late in clockwork.finish(engine, taken)] == [taken]
    assert [event.what for event in clockwork.events(name)][-3:] == ["lost", "started", "ended"]


def test_another_timetable_takes_effect_without_running_the_past(
    clockwork: Clockwork, name: str
) -> None:
    runs: list[DueRun] = []
    clockwork.runner(name, runs.append, cron="0 * * * *", missed="all")()
    clockwork.now_ms += 5 * HOUR_MS
    run_due = clockwork.runner(name, runs.append, cron="*/10 * * * *", missed="all")
    assert run_due() == []
    clockwork.now_ms += 10 * MINUTE_MS
    run_due()
    assert [run.due_ms for run in runs] == [START_MS + 5 * HOUR_MS + 10 * MINUTE_MS]


def test_another_policy_leaves_the_past_due(clockwork: Clockwork, name: str) -> None:
    runs: list[DueRun] = []
    clockwork.runner(name, runs.append, cron="0 * * * *")()
    clockwork.now_ms += 2 * HOUR_MS + 2 * MINUTE_MS
    clockwork.runner(name, runs.append, cron="0 * * * *", missed="all")()
    assert len(runs) == 2


def test_jitter_delays_each_run_by_a_part_of_it_that_all_runners_know(
    clockwork: Clockwork, name: str
) -> None:
    runs: list[DueRun] = []
    run_due = clockwork.runner(name, runs.append, cron="0 * * * *", jitter="30m")
    run_due()
    clockwork.now_ms += HOUR_MS
    run_due()
    (waiting,) = clockwork.state(name).runs
    assert not runs
    assert 0 < waiting.at_ms - waiting.due_ms <= HOUR_MS // 2
    clockwork.now_ms = waiting.at_ms
    run_due()
    assert [run.due_ms for run in runs] == [START_MS + HOUR_MS]


def test_the_stream_of_a_job_keeps_a_bounded_history(clockwork: Clockwork, name: str) -> None:
    run_due = clockwork.runner(name, lambda _: None, every="1s")
    run_due()
    for _ in range(110):
        clockwork.now_ms += 1000
        run_due()
    stream = clockwork.hw.stream(f"hw.timed.{name}").info()
    assert 200 <= stream.length <= 210


def test_a_run_that_waited_behind_a_pause_does_not_begin_beside_one_by_hand() -> None:
    waiting = ActiveRun(START_MS, at_ms=START_MS)
    by_hand = ActiveRun(START_MS + 1, attempt=1, by="runner", by_hand=True)
    state = JobState(JobSpec(every_ms=MINUTE_MS), START_MS, (waiting, by_hand))
    assert not states.is_ready(state, START_MS + 2)
    asked = replace(by_hand, by="", attempt=0)
    paused = replace(state, runs=(waiting, asked), paused=True)
    step = states.look(paused, "j", START_MS + 2, "runner", True, lambda _: False)
    assert step is not None
    assert step.taken is not None
    assert step.taken.by_hand


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"missed": "never"}, "missed must be one of 'skip', 'once', 'all'"),
        ({"overlap": "both"}, "overlap must be one of"),
        ({"max_attempts": 0}, "max_attempts"),
        ({"timeout": "soon"}, "timeout"),
        ({"jitter": -1}, "jitter"),
        ({"name": "two words"}, "timed job"),
        ({"name": "n" * 192}, "at most 191 bytes"),
    ],
)
def test_an_option_that_cannot_be_meant_is_refused_where_it_is_written(
    options: dict[str, Any], why: str
) -> None:
    with pytest.raises(InvalidInput, match=why):
        JobTable().every("5m", **options)


def test_a_job_that_cannot_be_meant_is_refused_where_it_is_written(clockwork: Clockwork) -> None:
    runner = TimedRunner(clockwork.hw)
    with pytest.raises(InvalidInput, match="must not be async"):
        runner.every("5m")(_async_job)
    with pytest.raises(InvalidInput, match="must take one argument"):
        runner.every("5m")(divmod)
    with pytest.raises(InvalidInput, match="interval"):
        runner.every("10ms")
    with pytest.raises(InvalidInput, match="is no hour"):
        runner.cron("0 24 * * *")


def test_decorators_may_be_stacked() -> None:
    table = JobTable()

    @table.every("5m")
    @table.cron("0 3 * * *", tz="Europe/Berlin", missed="once")
    def tidy() -> int:
        return 7

    assert tidy() == 7
    assert list(table.jobs) == ["tidy", "tidy.every"]
    with pytest.raises(InvalidInput, match="two timed jobs named 'tidy"):
        table.every("6m")(tidy)


async def _async_job() -> None: ...


# ── Timed jobs as parts of an application, and runners that run by the clock of the store ────────


def test_an_application_runs_sync_and_async_jobs(stores: Stores, name: str) -> None:
    app = headwater.App(store=stores.url("plain"))
    ran = {"sync": threading.Event(), "async": threading.Event()}

    @app.every("1s", name=f"{name}-1")
    def tick(run: DueRun) -> None:
        assert run.due_ms % 1000 == 0
        ran["sync"].set()

    @app.every("1s", name=f"{name}-2")
    async def tock() -> None:
        ran["async"].set()

    assert list(app.parts) == ["timed", "timed-async"]
    app.start()
    try:
        assert all(event.wait(60) for event in ran.values())
    finally:
        app.stop()


def test_one_name_is_one_job_of_an_application() -> None:
    app = headwater.App()

    @app.every("5m")
    @app.cron("0 3 * * *", tz="Europe/Berlin", missed="once")
    def tidy() -> None: ...

    with pytest.raises(InvalidInput, match="two timed jobs named 'tidy'"):

        @app.cron("@daily", name="tidy")
        async def other() -> None: ...

    part: Part = app.parts["timed"]
    assert [job.name for job in part.jobs] == ["tidy", "tidy.every"]  # type: ignore[attr-defined]
    assert list(app.parts) == ["timed"]


def test_a_runner_that_ends_in_order_is_not_waited_for(stores: Stores, name: str) -> None:
    """Another runner goes on at once with what the first one was about to retry, or gave back."""
    with headwater.connect(stores.url("plain")) as hw:
        begun, done = threading.Event(), threading.Event()
        first, second = TimedRunner(hw), TimedRunner(hw)
        endless = threading.Event()

        @first.every("1s", name=name)
        def hang() -> None:
            begun.set()
            endless.wait(60)

        @second.every("1s", name=name)
        def work(run: DueRun) -> None:
            if run.due_ms == taken[0]:
                done.set()

        taken = [0]
        threads = [threading.Thread(target=runner.run) for runner in (first, second)]
        threads[0].start()
        assert begun.wait(60)
        taken[0] = last_state(hw, name).runs[0].due_ms
        threads[1].start()
        try:
            assert first.give_back() == 1
            # Far sooner than the lease of the first one ends.
            assert done.wait(20)
        finally:
            endless.set()
            first.stop()
            second.stop()
            for thread in threads:
                thread.join()


# ── Runners of timed jobs as they run: places, timeouts, runs by hand, an end in order ───────────


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
