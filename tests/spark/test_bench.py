"""The benchmark of Spark runs: short, so that it cannot rot; its figures are not judged here."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from bench.spark import measure
from tests.support.spark.standalone import ROOT, environment


@pytest.mark.long
@pytest.mark.timeout(300)
def test_every_row_is_measured_against_its_peer(spark: SparkSession) -> None:
    rows = measure(spark, rounds=1, rows=100_000, long=200_000, trickle_s=1, warm=1)
    assert [row.name.partition(" / ")[0] for row in rows] == [
        "Spark: read the columns of scan, one task",
        "Spark: read, two tasks",
        "Spark: read",
        "Spark: read",
        "Spark: cost of a row, 100,000 to 200,000",
        "Spark: read all columns of 100,000",
        "Spark: count(*) of 100,000",
        "Spark: filter 100,000 by tag",
        "Spark: the last 10,000 of 100,000 by offset",
        "Spark: the last 10,000 of 100,000 by time",
        "Spark: session() to the first row of a range",
        "Spark: session() to the first row of a stream",
        "Spark: catch up 100,000",
        "Spark: the same, 100,000 at a time",
        "Spark: micro-batch at a trickle",
        "Spark: the same",
        "Spark: write 100,000",
        "Spark: write 100,000",
    ]
    assert all(row.ratio > 0 and row.by_processor > 0 for row in rows)


@pytest.mark.long
def test_one_row_is_measured_by_its_name(spark: SparkSession) -> None:
    rows = measure(
        spark, rounds=1, rows=100_000, long=100_000, trickle_s=1, warm=1, only="COUNT(*)"
    )
    assert [row.name for row in rows] == ["Spark: count(*) of 100,000 / zstd Parquet"]


# ── The examples that need Spark do what they show ───────────────────────────────────────────────


def printed(place: Path, program: str, *options: str) -> str:
    """Run an example with the embedded store of a directory; returns what it prints."""
    words = [sys.executable, str(ROOT / "examples" / program), *options]
    bare = {name: value for name, value in environment().items() if name != "HEADWATER_URL"}
    done = subprocess.run(words, cwd=place, env=bare, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.timeout(300)
@pytest.mark.long
def test_the_notebook_runs_and_ends(tmp_path: Path) -> None:
    out = printed(tmp_path, "spark_notebook.py")
    assert "|pilot-0| 2858|" in out
    assert "Message(offset=1, tag='Ada', value=b'{\"rides\":2858," in out
    assert "20000 rides in files" in out


@pytest.mark.timeout(300)
@pytest.mark.long
def test_one_trace_goes_from_a_request_to_a_batch_of_spark(tmp_path: Path) -> None:
    out = printed(tmp_path, "one_trace.py", "--spark")
    assert out.count("spans:  POST /orders, process orders/mail, send mail") == 2
    assert out.count("linked: batch orders") == 2


# ── Rocket Rides with Spark: its totals stand beside the others, and a planted error is mended ───


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
