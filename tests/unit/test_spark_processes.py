"""Our sources in Spark's Python processes: what they import, what they free, how they end."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import LongType, StructField, StructType

from headwater.errors import SparkFailed, UnreadableNode
from headwater.kernel.headers import Headers
from headwater.log import node
from headwater.spark.archives.table import Archive
from headwater.spark.engine.optimizer_rule import java_sources
from headwater.spark.engine.session import install_wrapper
from headwater.spark.engine.writes import QueryWriter
from headwater.spark.icks import DirtyList
from headwater.spark.jobs.backfill import BackfillTarget
from headwater.spark.jobs.backfill_inputs import TableInput
from headwater.spark.jobs.progress import JobReport, Manner, Summary, counted, deed
from headwater.spark.jobs.reconcile import Canon, Sources
from headwater.spark.log.sink import LogWrite
from headwater.spark.log.staging import LogSink
from headwater.spark.log.target import StreamOrTopic
from headwater.spark.queues import QueueAddress, QueueWrite
from headwater.spark.sql_sink.source import SqlSink
from headwater.spark.timelines import FarmPlan
from tests.support.spark.tables import small_table

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


# A streaming query is known by its id: without one nothing is written, and nothing is mistaken.


@pytest.mark.parametrize("sink", ["log", "queue", "sql"])
def test_a_task_that_does_not_know_its_query_fails(tmp_path: Path, sink: str) -> None:
    url, ids = f"embedded://{tmp_path}", StructType([StructField("id", LongType())])
    writer: Any = (
        SqlSink({"url": small_table(tmp_path), "table": "t"}).streamWriter(ids, overwrite=False)
        if sink == "sql"
        else QueryWriter(
            LogWrite(LogSink(StreamOrTopic(url, "stream", False), 0))
            if sink == "log"
            else QueueWrite(QueueAddress(url, "queue"))
        )
    )
    with pytest.raises(SparkFailed, match="does not know the id of its query"):
        writer.write(iter([pa.record_batch({"id": [99], "value": [b"v"]})]))


# ── What holds the URL of a store or a database does not show it ─────────────────────────────────


URL = "redis://:secret@host"


class _Intake(TableInput):
    """One whose database is not looked at."""

    def __post_init__(self) -> None:
        self._schema = self._key = None  # type: ignore[assignment]


@pytest.mark.parametrize(
    "holder",
    [
        StreamOrTopic(URL, "name", False, "s3://key:secret@bucket"),
        Archive("s3://key:secret@bucket", "name"),
        LogSink(StreamOrTopic(URL, "name", True), 3),
        QueueAddress(URL, "name"),
        QueueWrite(QueueAddress(URL, "name")),
        DirtyList(URL, "name", False),
        BackfillTarget("stream", "name", {"url": URL}),
        FarmPlan(URL),
        _Intake(None, "name", URL),  # type: ignore[arg-type]
        Sources(None, {"url": URL}, URL, ("name",), Canon("t", per="p", value="v")),  # type: ignore[arg-type]
    ],
    ids=lambda holder: type(holder).__name__,
)
def test_no_url_is_shown(holder: object) -> None:
    assert "secret" not in repr(holder)


# ── Our Java holds on to Spark in one place only, and reads the nodes that our Python writes ─────


REFLECTION = re.compile(r"java\.lang\.reflect|forName|getDeclared\w+|setAccessible|\.getMethod")


def test_nothing_but_internals_uses_reflection() -> None:
    users = {name for name, text in java_sources().items() if REFLECTION.search(text)}
    assert users == {"Internals.java"}


@pytest.fixture(scope="module")
def constants() -> dict[str, int]:
    """The constants of the reader in Java."""
    found = re.findall(r"static final int (\w+) = (\d+);", java_sources()["Nodes.java"])
    return {name: int(value) for name, value in found}


def test_both_readers_of_nodes_know_the_same_version_and_columns(constants: dict[str, int]) -> None:
    for name in ("VERSION", "HAS_TIME", "HAS_OFFSET", "HAS_HEADERS", "ZSTD", "LZ4"):
        assert constants[name] == getattr(node, name), name


@pytest.mark.parametrize("headers", [b"", Headers({"a": "b"}).encoded], ids=["", "headers"])
@pytest.mark.parametrize("rows", [1, 1000], ids=["plain", "packed"])
def test_both_readers_of_nodes_know_the_same_header(
    constants: dict[str, int], rows: int, headers: bytes
) -> None:
    columns = node.HAS_TIME | (node.HAS_HEADERS if headers else 0)
    batch = node.batch_of(["tag"] * rows, [b"value"] * rows, [7] * rows, headers=[headers] * rows)
    packed = node.pack(batch)
    blob = packed.blob

    def number(at: int) -> int:
        return int.from_bytes(blob[at : at + 4], "little")

    assert blob[:2] == b"HW"
    assert "MAGIC = 'H' | 'W' << 8;" in java_sources()["Nodes.java"]
    # What older clients can read is written as they read it.
    assert blob[constants["VERSION_AT"]] == (node.VERSION if headers else 1)
    assert blob[constants["COLUMNS_AT"]] == columns | (node.ZSTD if rows > 1 else 0)
    assert number(constants["ROWS_AT"]) == rows
    assert number(constants["SIZE_AT"]) == packed.raw_bytes
    body = blob[constants["HEADER"] :]
    assert len(body) == packed.raw_bytes if rows == 1 else body[:4] == b"\x28\xb5\x2f\xfd"


def test_both_readers_of_nodes_raise_the_same_error() -> None:
    text = java_sources()["Nodes.java"]
    begin = text.index("RuntimeException unreadable(String why)")
    words = "".join(re.findall(r'"([^"]*)"', text[begin : text.index("}", begin)]))
    error = UnreadableNode("")
    assert words == f"{type(error).__module__}.{type(error).__name__}: {error}"


# ── Jobs tell how far they are in a manner that fits who listens, and end with a summary ─────────


@dataclass(frozen=True, slots=True, kw_only=True)
class Moved(Summary):
    name: str
    rows_moved: int

    def sentence(self) -> str:
        return f"{deed(self.dry_run, 'move', 'moved')} {counted(self.rows_moved, 'row')}"


class Clock:
    """A clock that goes on when it is told to."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_plain_line_comes_now_and_then_and_at_the_end(capsys: pytest.CaptureFixture[str]) -> None:
    clock = Clock()
    with JobReport(Manner.PLAIN, clock=clock).step("moving", 4000) as step:
        for _ in range(8):
            clock.now += 2
            step.advance(500)
    out, err = capsys.readouterr()
    assert out == ""
    assert err.splitlines() == [
        "moving: 1,500 of 4,000 rows, 37 %",
        "moving: 3,000 of 4,000 rows, 75 %",
        "moving: 4,000 rows, done in 16.0 s",
    ]


def test_a_plain_line_is_not_said_twice(capsys: pytest.CaptureFixture[str]) -> None:
    clock = Clock()
    with JobReport(Manner.PLAIN, clock=clock).step("adding up") as step:
        for more in (0, 0, 0, 7, 0):
            clock.now += 5
            step.advance(more)
    assert capsys.readouterr().err.splitlines() == [
        "adding up: 0 rows",
        "adding up: 7 rows",
        "adding up: 7 rows, done in 25.0 s",
    ]


def test_what_is_not_known_yet_is_counted_without_a_share(
    capsys: pytest.CaptureFixture[str],
) -> None:
    clock = Clock()
    report = JobReport(Manner.PLAIN, clock=clock)
    with report.step("reading", unit="file") as step:
        clock.now = 9
        step.advance(1)
        step.expect(2)
        clock.now = 18
        step.advance(1)
    report.note("a gap was found")
    assert capsys.readouterr().err.splitlines() == [
        "reading: 1 file",
        "reading: 2 of 2 files, 100 %",
        "reading: 2 files, done in 18.0 s",
        "a gap was found",
    ]


@pytest.mark.parametrize("report", [JobReport(), JobReport.of_command(quiet=True)])
def test_nobody_is_told_who_does_not_listen(
    report: JobReport, capsys: pytest.CaptureFixture[str]
) -> None:
    with report.step("moving", 2) as step:
        step.advance(2)
    report.note("nothing")
    assert capsys.readouterr() == ("", "")


def test_a_line_that_moves_takes_any_words(capsys: pytest.CaptureFixture[str]) -> None:
    with JobReport(Manner.LINE).step("moving [bold]", 2) as step:
        step.advance(2)
    out, err = capsys.readouterr()
    assert out == ""
    assert "moving [bold]" in err
    assert "2 rows" in err


def test_a_step_that_fails_does_not_say_that_it_is_done(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(KeyError), JobReport(Manner.PLAIN).step("moving"):
        raise KeyError
    assert "done" not in capsys.readouterr().err


def test_a_summary_tells_what_was_done_or_would_be() -> None:
    done = Moved(name="rides", rows_moved=12345, seconds=2.04)
    assert done.headline() == "moved 12,345 rows in 2.0 s"
    assert done.facts() == [("name", "rides"), ("rows moved", "12,345")]
    many = Moved(name={"rides": 5000, "trips": 2}, rows_moved=1)  # type: ignore[arg-type]
    assert many.facts()[0] == ("name", "rides 5,000, trips 2")
    planned = Moved(name="rides", rows_moved=1, dry_run=True)
    assert planned.headline() == "dry run: would move 1 row; nothing was changed"
