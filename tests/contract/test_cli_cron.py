"""Timed jobs by command, and by the names that the commands stand on."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest

import headwater
from headwater import DueRun, TimedJobs, UnknownTimedJob
from tests.support.blocking import Blocking, Loop
from tests.support.commands import run
from tests.support.stores import Stores
from tests.support.timed import HOUR_MS, START_MS, Clockwork


@pytest.fixture
def url(stores: Stores) -> str:
    return stores.url("plain")


@pytest.fixture
def clockwork(url: str, loop: Loop) -> Iterator[Clockwork]:
    with contextlib.closing(Clockwork("sync", url, loop)) as made:
        yield made


def test_a_job_is_listed_with_its_times_and_its_last_outcome(
    url: str, clockwork: Clockwork, name: str
) -> None:
    options = {"cron": "0 * * * *", "tz": "Europe/Berlin", "missed": "once"}
    run_due = clockwork.runner(name, lambda _: None, **options)
    run_due()
    clockwork.now_ms += HOUR_MS
    run_due()
    (row,) = [row for row in run(url, "cron", "list", "--json").rows if row["name"] == name]
    assert row["last"].pop("by")
    assert row["last"].pop("took_ms") < 60_000
    assert row["last"] == {
        "due_ms": START_MS + HOUR_MS, "ended_ms": START_MS + HOUR_MS, "outcome": "done",
        "attempt": 1, "error": "", "by_hand": False,
    }  # fmt: skip
    assert (row["when"], row["tz"], row["paused"]) == ("0 * * * *", "Europe/Berlin", False)
    assert (row["running"], row["waiting"], row["missed_runs"]) == ([], [], 0)
    # No runner of another clock has told a time that is later.
    assert (row["next_ms"] - START_MS) % HOUR_MS == 0
    assert run(url, "cron", "info", name, "--json").row["last"]["outcome"] == "done"
    assert "done, due" in run(url, "cron", "info", name).out
    line = next(line for line in run(url, "cron", "list").out.splitlines() if name in line)
    assert line.split()[-4:] == ["done", "0", "0", "waiting"]


def test_a_paused_job_begins_nothing_and_makes_up_for_nothing(
    url: str, clockwork: Clockwork, name: str
) -> None:
    runs: list[DueRun] = []
    run_due = clockwork.runner(name, runs.append, cron="0 * * * *", missed="all")
    run_due()
    assert run(url, "cron", "pause", name).out == "paused\n"
    assert run(url, "cron", "pause", name).out == "paused already\n"
    clockwork.now_ms += 3 * HOUR_MS
    run_due()
    assert runs == []
    told = run(url, "cron", "resume", name, "--json").row
    assert told == {"job": name, "changed": True}
    # It was resumed by the time of the store, which is later than that of the test.
    run_due()
    assert runs == []
    assert run(url, "cron", "resume", name).out == "runs already\n"


def test_a_run_by_hand_happens_also_while_the_job_is_paused(
    url: str, clockwork: Clockwork, name: str
) -> None:
    runs: list[DueRun] = []
    clockwork.now_ms = 2 * START_MS  # later than the clock of the store
    run_due = clockwork.runner(name, runs.append, cron="0 * * * *")
    run_due()
    run(url, "cron", "pause", name)
    assert run(url, "cron", "run", name, "--json").row == {"job": name}
    run_due()
    run_due()
    assert [(each.by_hand, each.attempt) for each in runs] == [(True, 1)]
    events = run(url, "cron", "history", name, "--json", "--count", "3").rows
    assert [(row["what"], row["by_hand"]) for row in events] == [
        ("asked", True), ("started", True), ("ended", True),
    ]  # fmt: skip
    assert events[0]["by"] != events[1]["by"]
    assert "done, by hand" in run(url, "cron", "history", name).out


def test_a_job_is_removed_with_its_history(url: str, clockwork: Clockwork, name: str) -> None:
    run_due = clockwork.runner(name, lambda _: None, every="1h")
    run_due()
    assert "--yes" in run(url, "cron", "delete", name).err
    assert run(url, "cron", "delete", name, "--yes").out == "deleted\n"
    assert f"there is no timed job '{name}'" in run(url, "cron", "history", name).err
    clockwork.now_ms += HOUR_MS
    # A runner that has it declares it again: nothing before that is due.
    assert run_due() == []
    assert name in run(url, "cron", "list").out


@pytest.mark.parametrize("command", ["info", "history", "pause", "resume", "run", "delete"])
def test_an_unknown_job_is_refused_with_the_name_that_was_meant(
    url: str, clockwork: Clockwork, name: str, command: str
) -> None:
    clockwork.runner(name, lambda _: None, every="1h")()
    refused = run(url, "cron", command, name + "x")
    assert refused.code == 1
    assert f"did you mean '{name}'?" in refused.err


@pytest.mark.parametrize("manner", ["sync", "async"])
def test_an_operator_has_the_same_in_python(
    url: str, loop: Loop, clockwork: Clockwork, name: str, manner: str
) -> None:
    clockwork.runner(name, lambda _: None, every="90s")()
    with contextlib.ExitStack() as opened:
        if manner == "sync":
            jobs = TimedJobs(opened.enter_context(headwater.connect(url)))
        else:
            hw = loop.wait(headwater.aio.connect(url))
            opened.callback(lambda: loop.wait(hw.close()))
            jobs = Blocking(loop, headwater.aio.AsyncTimedJobs(hw))  # type: ignore[assignment]
        assert jobs.pause(name)
        assert jobs.info(name).next_ms is None
        assert jobs.resume(name)
        assert jobs.info(name).when == "every 90s"
        jobs.run(name)
        assert [run.by_hand for run in jobs.info(name).waiting] == [True]
        assert name in [job.name for job in jobs.list()]
        what = [event.what for event in jobs.history(name)]
        assert what == ["defined", "paused", "resumed", "asked"]
        assert jobs.delete(name)
        with pytest.raises(UnknownTimedJob):
            jobs.history(name)
