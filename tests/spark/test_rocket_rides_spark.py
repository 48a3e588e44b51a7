"""Rocket Rides with Spark: its totals stand beside the others, and a planted error is mended."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.support.pages import ROOT


@pytest.mark.long
@pytest.mark.fault
@pytest.mark.timeout(600)
def test_spark_agrees_with_everybody_and_reconcile_mends_what_was_planted() -> None:
    words = ["--rides", "60", "--seconds", "4", "--seed", "7"]
    done = subprocess.run(
        [sys.executable, "-m", "examples.rocket_rides", *words],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    head = next(line.split() for line in lines if line.startswith("metres"))
    assert head[1:] == ["clients", "database", "log", "consumer0", "consumer1", "spark"]
    sums = next(line.split() for line in lines if line.startswith("all  "))
    assert len(sums) == 7
    assert len(set(sums[1:])) == 1
    assert lines[-1] == "consumer0 has applied it; reconcile: no drift"
