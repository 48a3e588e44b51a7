"""Jobs a second in one worker process: ``headwater run`` against the workers of other libraries.

Three handlers: one that does nothing, one that sleeps for a millisecond in a thread, and one that
does so in a task, the latter two 32 at a time. All use the same server, with the same durability.
A library is run where it is installed: in this environment, or in build/peers, which `make bench`
makes from bench/peers.txt.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Collection
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import redis

import headwater
from bench.harness import Row, interleave, server, socket_url
from bench.job_libraries import LIBRARIES, PAYLOAD

PEERS = Path("build/peers/bin/python")
AT_ONCE = 32
PATIENCE_S = 300.0
# How many jobs each does in a run, for about a second; what is not there has no such handlers.
JOBS: dict[str, dict[str, int]] = {
    "empty": {
        "headwater": 50_000,
        "celery": 500,
        "dramatiq": 500,
        "huey": 1500,
        "rq": 300,
        "arq": 500,
        "taskiq": 800,
        "faststream": 500,
    },
    "sync": {
        "headwater": 20_000,
        "celery": 500,
        "dramatiq": 2000,
        "huey": 1000,
        "rq": 300,
        "taskiq": 500,
        "faststream": 500,
    },
    "async": {
        "headwater": 20_000,
        "dramatiq": 1500,
        "arq": 500,
        "taskiq": 800,
        "faststream": 500,
    },
}
TITLES = {
    "empty": "empty jobs",
    "sync": "jobs of 1 ms in threads, 32 at once",
    "async": "jobs of 1 ms in tasks, 32 at once",
}
# By how much ours has to be ahead at least, and by how much it shall be.
GOALS = {"empty": (10.0, 30.0), "sync": (2.0, 10.0), "async": (2.0, 10.0)}


@dataclass
class JobBench:
    """A server, and how much of the usual work each run does."""

    native: redis.Redis
    share: float
    rounds: int

    def count(self, library: str, handler: str) -> int:
        """Return how many jobs a run has."""
        return max(100, int(JOBS[handler][library] * self.share))

    def ours(self, handler: str) -> float:
        """Work jobs off by ``headwater run``; returns jobs a second."""
        count = self.count("headwater", handler)
        self.native.flushdb()
        with headwater.connect(socket_url(self.native)) as hw:
            for start in range(0, count, 1000):
                hw.queue("jobs").push_many([PAYLOAD] * min(1000, count - start))
        environment = {
            "BENCH_HANDLER": handler,
            "BENCH_CONCURRENCY": str(_concurrency(handler)),
            "BENCH_JOBS": str(count),
        }
        words = [sys.executable, "-m", "headwater", "run", "bench.job_app:app"]
        return _measured([*words, "--store", socket_url(self.native)], environment)

    def theirs(self, library: str, handler: str, python: str) -> float:
        """Fill the queue of a library and work it off; returns jobs a second."""
        self.native.flushdb()
        path = self.native.connection_pool.connection_kwargs["path"]
        count, at_once = self.count(library, handler), _concurrency(handler)
        words = [python, "-m", "bench.job_libraries", library, path]
        return _measured([*words, str(count), handler, str(at_once)], {})


def _concurrency(handler: str) -> int:
    return 1 if handler == "empty" else AT_ONCE


def _measured(words: list[str], environment: dict[str, str]) -> float:
    """Run a program until it has done all jobs, and end it; returns what it reported."""
    with tempfile.TemporaryDirectory(prefix="hw-bench-") as folder:
        result, log = Path(folder, "result"), Path(folder, "log")
        with log.open("w") as errors:
            process = subprocess.Popen(
                words,
                stdout=subprocess.DEVNULL,
                stderr=errors,
                start_new_session=True,
                env=os.environ | environment | {"BENCH_RESULT": str(result)},
            )
        deadline = time.monotonic() + PATIENCE_S
        try:
            while not result.exists():
                if process.poll() is not None or time.monotonic() > deadline:
                    raise RuntimeError(f"{' '.join(words)} failed: {log.read_text()[-2000:]}")
                time.sleep(0.01)
        finally:
            # What it started ends with it.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        return float(result.read_text())


def python_of(library: str) -> str | None:
    """Return the interpreter that has a library; None when none has."""
    if importlib.util.find_spec(library) is not None:
        return sys.executable
    words = [str(PEERS), "-c", f"import {library}"]
    if PEERS.exists() and subprocess.run(words, capture_output=True, check=False).returncode == 0:
        return str(PEERS)
    return None


def run(rounds: int, libraries: Collection[str]) -> list[Row]:
    """Measure every handler with every library that is found; says which are not."""
    found = {name: python_of(name) for name in LIBRARIES if name in libraries}
    missing = [name for name, python in found.items() if python is None]
    if missing:
        print(f"not installed, and not measured: {', '.join(missing)}", file=sys.stderr)
    rows = []
    with server("off") as native:
        # In a short run, few jobs each.
        bench = JobBench(native, 1 if rounds >= 3 else 0.1, max(1, rounds // 3))
        for handler, counts in JOBS.items():
            for library, python in found.items():
                if python is None or library not in counts:
                    continue
                theirs = partial(bench.theirs, library, handler, python)
                a, b = interleave(partial(bench.ours, handler), theirs, bench.rounds)
                name = f"{TITLES[handler]}: headwater run / {library}, jobs/s"
                rows.append(Row.of(name, "off", a, b, *GOALS[handler]))
    return rows
