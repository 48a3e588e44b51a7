"""Timed jobs: each due run happens once among all runners, by the policies of its job."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest
from msgspec.structs import replace

from headwater.errors import InvalidInput
from headwater.timed import states
from headwater.timed.jobs import DueRun, JobTable
from headwater.timed.runner import TimedRunner
from headwater.timed.states import ActiveRun, JobSpec, JobState
from tests.support.blocking import Loop
from tests.support.stores import Stores
from tests.support.timed import HOUR_MS, MINUTE_MS, START_MS, Clockwork


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
    ("overlap", "during", "after"),
    [("skip", [], []), ("queue", [], [2]), ("allow", [2], [])],
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
