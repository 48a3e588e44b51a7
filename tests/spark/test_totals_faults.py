"""The totals job counts every record once while its driver and its store are killed."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from pyspark.sql import SparkSession

import headwater
from examples.rocket_rides.sums import SHAPE
from headwater.spark.jobs.totals import totals
from headwater.store import embedded
from tests.spark.test_totals import by_pilot, told, write
from tests.support.pages import ROOT

pytestmark = [pytest.mark.fault, pytest.mark.timeout(600)]


@pytest.fixture
def url(tmp_path: Path) -> Iterator[str]:
    """A store that may be killed."""
    directory = tmp_path / "store"
    yield f"embedded://{directory}"
    embedded.stop(directory, now=True)


@pytest.fixture
def hw(url: str) -> Iterator[headwater.Headwater]:
    with headwater.connect(url) as hw:
        yield hw


@pytest.fixture
def db(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'app.db'}"


@pytest.mark.long
def test_a_killed_driver_leaves_a_batch_whole_or_not_at_all(
    spark: SparkSession, hw: headwater.Headwater, url: str, db: str, tmp_path: Path
) -> None:
    write(hw.stream("rides"), range(1, 401))
    dying = [sys.executable, "-m", "tests.support.spark.dying_totals", "rides", url, db, "folded"]
    # To a file: the JVM outlives the driver for a moment, and would hold a pipe open.
    with (tmp_path / "said").open("w") as said:
        died = subprocess.run(dying, cwd=ROOT, stdout=said, stderr=said, check=False)
    assert died.returncode == -signal.SIGKILL, (tmp_path / "said").read_text()
    engine = sa.create_engine(db)
    assert told(engine, "pilot") == by_pilot(range(1, 101))
    assert totals(spark, "rides", url=url, db=db, shape=SHAPE, available_now=True).added == 300
    assert told(engine, "pilot") == by_pilot(range(1, 401))
    engine.dispose()


@pytest.mark.long
def test_the_store_may_be_killed_at_every_step(
    spark: SparkSession, hw: headwater.Headwater, url: str, db: str
) -> None:
    write(hw.stream("rides"), range(1, 601))
    directory = Path(url.removeprefix("embedded://"))
    killed: list[str] = []

    def kill(step: str) -> None:
        # A server that is down already is killed at the next step of that name.
        if killed.count(step) < 2:
            with contextlib.suppress(ProcessLookupError):
                os.kill(_pid(directory), signal.SIGKILL)
                killed.append(step)

    found = totals(
        spark, "rides", url=url, db=db, shape=SHAPE, batch=100, available_now=True, steps=kill
    )
    assert sorted(set(killed)) == ["added", "begun", "folded"]
    assert (found.records, found.next) == (600, {"rides": 601})
    engine = sa.create_engine(db)
    assert told(engine, "pilot") == by_pilot(range(1, 601))
    engine.dispose()


def _pid(directory: Path) -> Any:
    found = embedded.status(directory).pid
    if found is None:
        raise ProcessLookupError
    return found
