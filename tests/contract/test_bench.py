"""The benchmarks run: short, so that they cannot rot; what they measure is not judged here."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

# A busy machine takes minutes for what takes seconds.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def run(*words: str) -> str:
    # The exit code tells whether every goal was reached, which a busy machine cannot promise.
    done = subprocess.run(
        [sys.executable, "-m", "bench", *words], capture_output=True, text=True, check=False
    )
    assert done.returncode in (0, 1), done.stderr
    assert "Traceback" not in done.stderr, done.stderr
    return done.stdout


SHORT = (
    *("--rounds", "1", "--long", "5000", "--backlog", "5000", "--dirty", "5000"),
    *("--waiting", "1000", "--seconds", "0.1", "--fragments", "2000", "--groups", "200", "--json"),
    # Fewer of them than these take no memory that the server has not had already.
    *("--tails", "300", "--readers", "200"),
    # One that has handlers of all kinds; each costs some seconds of imports.
    *("--libraries", "dramatiq"),
)


@pytest.mark.parametrize(
    ("what", "rows", "fsync"),
    [
        ("log", 19, {"off", "always"}),
        ("outbox", 12, {"on"}),
        ("ick", 8, {"off", "always"}),
        ("queue", 10, {"off"}),
        ("jobs", 3, {"off"}),
        ("timed", 1, {"off"}),
        ("timeline", 8, {"off"}),
        ("api", 8, {"off"}),
        ("resp", 5, {"off"}),
        ("calls", 61, {"off"}),
    ],
)
def test_every_row_is_measured_against_its_peer(what: str, rows: int, fsync: set[str]) -> None:
    found = json.loads(run(what, *SHORT))["rows"]
    assert len(found) == rows
    assert all(row["ratio"] > 0 for row in found)
    assert {row["fsync"] for row in found} == fsync


def test_a_growing_stream_is_measured_at_every_mark() -> None:
    assert run("scale", "--messages", "100000").count("│") >= 7 * 7
