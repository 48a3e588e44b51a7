"""Timed jobs while runners are killed at every step, and the store is killed and comes back."""

from __future__ import annotations

import datetime as dt
import os
import random
import signal
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from headwater import TimedRunner, testing
from headwater.testing import PrivateStore
from headwater.timed.states import JobRecord, JobSpec
from tests.support.processes import is_alive
from tests.support.servers import until
from tests.support.timed import HistoryChecker
from tests.support.timed_processes import JobHistory, every_moment, noting, read_notes
from tests.support.zygote import Zygote

pytestmark = pytest.mark.fault
LONG = int(os.environ.get("HEADWATER_LONG") or 1)
LEASE = dt.timedelta(seconds=31)
HOUR_MS = 3_600_000


@pytest.fixture(scope="module")
def zygote() -> Iterator[Zygote]:
    with Zygote("tests.support.timed_processes") as zygote:
        yield zygote


@pytest.fixture
def hw() -> Iterator[PrivateStore]:
    with testing.store() as hw:
        yield hw


class Job:
    """A job on a page: who runs it, and what became of it."""

    def __init__(self, hw: PrivateStore, page: Path, every_ms: int, **options: Any) -> None:
        self.hw, self.page = hw, page
        self.order = {"job": "j", "every": every_ms, "options": options, "page": str(page)}
        spec = JobSpec(every_ms=every_ms, **options)
        self.checker = HistoryChecker(spec, every_moment(every_ms))
        self._history = JobHistory(hw, "j", self.checker)
        self.run_here()
        self.follow()

    def run_here(self) -> None:
        """Run what is due in this process, by which also the time of lost runners passes."""
        noting(self.page, TimedRunner(self.hw), self.order).run_due()

    def follow(self) -> list[JobRecord]:
        """Check what happened since the last time."""
        return self._history.follow()

    def finish(self) -> None:
        """Let all that was begun come to its end, and check the whole."""
        while True:
            self.hw.clock.advance(LEASE)
            self.run_here()
            last = self.follow()
            if not self.checker.active:
                break
        assert last, "somebody looked"
        self.checker.check_notes(read_notes(self.page))


@pytest.mark.parametrize("manner", ["sync", "async"])
@pytest.mark.parametrize(
    ("step", "begun", "ended"),
    [
        ("before started", 1, 1),
        ("after started", 1, 1),
        ("in the handler", 2, 1),
        ("before ended", 2, 2),
        ("after ended", 1, 1),
    ],
)
def test_a_run_happens_whichever_step_kills_its_runner(
    hw: PrivateStore, zygote: Zygote, tmp_path: Path, manner: str, step: str, begun: int, ended: int
) -> None:
    job = Job(hw, tmp_path / "page", HOUR_MS, missed="once")
    hw.clock.advance(dt.timedelta(hours=1))
    killed = zygote.start("", hw.url, manner=manner, step=step, **job.order)
    assert zygote.wait(killed) == -signal.SIGKILL
    # Whoever takes over waits until the dead runner was silent for long enough.
    before = len(read_notes(job.page))
    job.run_here()
    if step != "before started":
        assert len(read_notes(job.page)) == before
    job.finish()
    notes = read_notes(job.page)
    assert len({note.due_ms for note in notes}) == 1
    assert [sum(note.ended is end for note in notes) for end in (False, True)] == [begun, ended]
    assert job.checker.verdicts == {"due": 1}


@pytest.mark.parametrize("overlap", ["skip", "allow"])
def test_a_crowd_of_runners_that_are_killed_runs_every_moment_by_its_policy(
    hw: PrivateStore, zygote: Zygote, tmp_path: Path, overlap: str
) -> None:
    seed = int(os.environ.get("HEADWATER_SEED") or random.randrange(10**6))
    print(f"HEADWATER_SEED={seed}")
    dice = random.Random(seed)
    options = {"missed": "all", "overlap": overlap, "max_attempts": 1000}
    job = Job(hw, tmp_path / "page", 1000, **options)
    steps = ["before started", "after started", "in the handler", "before ended", "after ended"]

    def start() -> int:
        words: dict[str, Any] = {}
        if dice.random() < 0.7:
            words = {"step": dice.choice(steps), "times": dice.randint(1, 4)}
        manner = dice.choice(["sync", "async"])
        return zygote.start("", hw.url, manner=manner, **words, **job.order)

    crowd = [start() for _ in range(3)]
    for turn in range(5 * LONG):
        noted = len(read_notes(job.page))
        if turn == 2:
            hw.kill()
            hw.start()
        until(partial(_has_noted, job.page, noted, crowd))
        job.follow()
        victim = next((pid for pid in crowd if not is_alive(pid)), crowd[0])
        crowd.remove(victim)
        if dice.random() < 0.5:
            os.kill(victim, signal.SIGKILL)
        else:
            os.kill(victim, signal.SIGTERM)
        assert zygote.wait(victim) in (0, -signal.SIGKILL)
        # What a dead runner had is taken by the one that starts now.
        hw.clock.advance(LEASE)
        crowd.append(start())
    for pid in crowd:
        zygote.end(pid, signal.SIGKILL)
    job.finish()
    assert set(job.checker.verdicts) <= ({"due", "skipped"} if overlap == "skip" else {"due"})
    assert job.checker.verdicts["due"] > 5


def _has_noted(page: Path, before: int, crowd: list[int]) -> bool:
    """Return whether a handler has noted more, or a runner died, for which others may wait."""
    return len(read_notes(page)) > before or not all(map(is_alive, crowd))
