"""Timed jobs as parts of an application, and runners that run by the clock of the store."""

from __future__ import annotations

import threading

import pytest

import headwater
from headwater.app.parts import Part
from headwater.errors import InvalidInput
from headwater.timed.jobs import DueRun
from headwater.timed.runner import TimedRunner
from tests.support.stores import Stores
from tests.support.timed import last_state


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
