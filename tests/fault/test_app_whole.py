"""Every part of an application at once, while whatever they stand on is killed.

``HEADWATER_LONG`` makes it long, ``HEADWATER_SEED`` repeats a run.
"""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from headwater import testing
from tests.support.postgres import Postgres
from tests.support.servers import until
from tests.support.whole_run import WholeRun

LONG = int(os.environ.get("HEADWATER_LONG", "0"))
pytestmark = [pytest.mark.fault, pytest.mark.slow, pytest.mark.timeout(300 + 120 * LONG)]
STEPS = [
    *(("in_order", step) for step in ("first", "middle", "last")),
    *(("from_queue", step) for step in ("first", "last")),
    *(("apply", step) for step in ("first", "last")),
    *(("tick", step) for step in ("first", "middle", "last")),
]


@pytest.fixture
def seed() -> int:
    seed = int(os.environ.get("HEADWATER_SEED") or random.randrange(10**6))
    print(f"HEADWATER_SEED={seed}")
    return seed


@pytest.fixture
def whole(seed: int, own_postgres: Postgres, tmp_path: Path) -> Iterator[WholeRun]:
    with testing.store() as hw:
        whole = WholeRun(hw, own_postgres, tmp_path, random.Random(seed))
        try:
            yield whole
        finally:
            whole.close()


def test_whatever_is_killed_all_work_is_done_and_in_order(whole: WholeRun, seed: int) -> None:
    dice, jobs = random.Random(seed), whole.hw.queue("whole")
    whole.start()
    for turn in range(max(2 * LONG, 1)):
        kinds = [whole.kill_store, whole.kill_database, whole.kill_process, whole.kill_runner]
        dice.shuffle(kinds)
        for kill in kinds:
            goal = whole.progress() + dice.randrange(1, 40)
            whole.stage(dice.choice([20, 60]))
            whole.until(lambda: whole.progress() >= goal)  # noqa: B023
            kill()
            whole.later()
        whole.kill_handler(*(STEPS[turn % len(STEPS)] if LONG else dice.choice(STEPS)))
    whole.until(whole.is_done)
    # A clean stop in the middle: what is left can be had at once, by whoever comes next.
    whole.shut()
    begun = len(whole.noted("in_order"))
    whole.stage(40)
    jobs.push_many([b"left"] * 6)
    until(lambda: len(whole.noted("in_order")) > begun and whole.is_applied(), 60)
    until(lambda: jobs.stats().ready == 0)
    whole.end(signal.SIGTERM)
    assert jobs.stats().ready == 6
    whole.finish_here()
    whole.finish_ticks()
    whole.check()
