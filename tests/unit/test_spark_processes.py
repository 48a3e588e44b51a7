"""Our sources in Spark's Python processes: what they import, what they free, how they end."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from headwater.spark.engine.session import install_wrapper

FREEZING = """
import gc, json
import headwater.client
from headwater.spark.engine.processes import quiet_and_freeze

before = gc.get_freeze_count()
quiet_and_freeze()
gc.collect()
first = gc.get_freeze_count() - before
left = len(gc.get_objects())
rings = []
for _ in range(20):
    ring = []
    ring.append(ring)
    del ring
    rings.append(gc.collect())
print(json.dumps({"first": first, "left": left, "rings": rings, "hooks": len(gc.callbacks)}))
"""
LEAVING = """
import traceback
from headwater.spark.engine.processes import quiet_and_freeze

quiet_and_freeze()
for error in (BrokenPipeError("nobody hears"), ValueError("a fault")):
    try:
        raise error
    except Exception:
        traceback.print_exc()
"""
PLANNING = """
import json, sys
import pyspark.sql.streaming.python_streaming_source_runner
from headwater.spark.log.source import HeadwaterSource

source = HeadwaterSource({"url": "redis://localhost:1", "stream": "rides"})
source.streamReader(source.schema())
print(json.dumps([name for name in sys.modules if name.startswith("headwater")]))
"""
FORKING = """
import json, sys
import headwater.spark.log.source_daemon
before = set(sys.modules)
from headwater.spark.log.source import HeadwaterSource

source = HeadwaterSource({"url": "redis://localhost:1", "stream": "rides"})
source.streamReader(source.schema())
parts = ("headwater", "pyarrow", "pyspark", "redis")
print(json.dumps([name for name in sys.modules if name not in before and name.startswith(parts)]))
"""
STUCK = """
import os, signal
from headwater.spark.engine import processes

processes._END_S = 1
signal.signal(signal.SIGTERM, processes._end_of_stream)
processes.end_undisturbed()
os.kill(os.getpid(), signal.SIGTERM)
print("goes on", flush=True)
signal.pause()
"""
# What a streaming query over a stream does not need.
UNUSED = (
    "headwater.aio_client",
    "headwater.ick",
    "headwater.queue",
    "headwater.whole_store.scrubbing",
    "headwater.log.scrubbing",
    "headwater.spark.archives",
    "headwater.spark.engine.session",
    "headwater.spark.log.batch_reader",
    "headwater.spark.log.sink",
)


def run(program: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True
    )


def test_what_outlives_the_first_collections_is_set_aside_and_garbage_is_still_found() -> None:
    found = json.loads(run(FREEZING).stdout)
    assert found["first"] > 10_000
    assert found["left"] < found["first"] / 10
    assert all(found["rings"])
    assert found["hooks"] == 0


def test_a_line_that_is_closed_is_no_fault_and_others_are_printed() -> None:
    printed = run(LEAVING).stderr
    assert "a fault" in printed
    assert "nobody hears" not in printed


def test_the_python_of_a_streaming_query_imports_only_what_it_uses() -> None:
    imported = json.loads(run(PLANNING).stdout)
    assert "headwater.spark.log.stream_reader" in imported
    assert [name for name in imported if name.startswith(UNUSED)] == []


def test_the_parent_of_streaming_queries_has_imported_all_that_a_query_needs() -> None:
    assert json.loads(run(FORKING).stdout) == []


def test_a_process_that_does_not_come_to_its_end_is_ended() -> None:
    """Spark sends one signal, which the process ignores while it notes its end."""
    command = [sys.executable, "-c", STUCK]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert (done.stdout, done.returncode) == ("goes on\n", -signal.SIGALRM)


def test_without_a_cache_a_program_has_one_wrapper_for_as_long_as_it_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    no_folder = tmp_path / "cache"
    no_folder.write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(no_folder))
    first = install_wrapper("python", "#!/bin/sh\n")
    assert first is not None
    assert install_wrapper("python", "#!/bin/sh\n") == first
    assert os.access(first, os.X_OK)
