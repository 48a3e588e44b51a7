"""An archive holds what its table says, whoever dies and whoever else is at work.

Archivers and writers run in processes of their own here, some of which are killed.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Callable, Iterator
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

import headwater
from headwater import Stream
from headwater.errors import ArchiveTaken
from headwater.spark.archives.table import Archive, LocalDirectory
from headwater.spark.engine.connections import client
from headwater.spark.jobs.archive import StreamArchiver
from tests.support.entries import entries
from tests.support.spark.archiving import (
    Row,
    cut_small,
    expected,
    pairs_of,
    read_batch,
    rows_of,
    run_archiver,
    stream_of_3000,
    stream_reader,
)

# The threads of delta-rs do not survive a fork.
spawn = multiprocessing.get_context("spawn")


@pytest.fixture
def stream(embedded_url: str, name: str) -> Iterator[Stream]:
    with headwater.connect(embedded_url) as hw:
        yield stream_of_3000(hw, name)


@pytest.fixture
def options(embedded_url: str, stream: Stream, place: str) -> dict[str, str]:
    return {"url": embedded_url, "stream": stream.name, "archive": place}


def in_process(work: Callable[..., None], *args: Any) -> BaseProcess:
    process = spawn.Process(target=work, args=args, daemon=True)
    process.start()
    return process


def die(*_: Any) -> Any:
    os.kill(os.getpid(), signal.SIGKILL)


def half_then_die(directory: LocalDirectory, name: str, data: pa.Buffer) -> Any:
    directory._make_folder(name)
    directory._beside(name).write_bytes(data.slice(0, data.size // 2))
    die()


def after(done: Callable[..., Any]) -> Callable[..., Any]:
    """Do it, then die."""

    def do_and_die(*args: Any) -> Any:
        done(*args)
        die()

    return do_and_die


# Where the archiver dies, and how much is archived then, of 3000 messages in two rounds.
STEPS: dict[str, tuple[type, str, Any, range]] = {
    "a file half written": (LocalDirectory, "put", half_then_die, range(1)),
    "a file written": (LocalDirectory, "put", after(LocalDirectory.put), range(1)),
    "all files written": (Archive, "commit", die, range(1)),
    "a table without rows": (Archive, "_create", after(Archive._create), range(1)),
    "committed, and not flushed": (Archive, "_ours", die, range(1, 3000)),
    "committed": (Archive, "commit", after(Archive.commit), range(1, 3000)),
    "before eviction": (StreamArchiver, "evict", die, range(3000, 3001)),
}


def _die_at(step: str, url: str, stream: str, place: str) -> None:
    """Run an archiver that kills itself with signal 9 at a step."""
    owner, name, deed, _ = STEPS[step]
    setattr(owner, name, deed)
    cut_small(pytest.MonkeyPatch())
    run_archiver(url, stream, place, evict=True)


@pytest.mark.fault
@pytest.mark.parametrize("step", STEPS)
def test_an_archiver_may_be_killed_at_any_step(
    step: str, stream: Stream, options: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    cut_small(monkeypatch)
    dying = in_process(_die_at, step, options["url"], stream.name, options["archive"])
    dying.join(60)
    assert dying.exitcode == -signal.SIGKILL
    found = Archive(options["archive"], stream.name).load()
    assert (found.last if found else 0) in STEPS[step][-1]
    assert stream.info().first == 1
    assert pairs_of(read_batch(**options)) == expected(3000)
    stream.write_many(entries(100, 3001))
    run_archiver(options["url"], stream.name, options["archive"], evict=True)
    assert stream.info().first == 3101
    assert pairs_of(read_batch(**options)) == expected(3100)
    contents = Archive(options["archive"], stream.name).require()
    assert (contents.rows, contents.gaps) == (3100, ())


def test_a_repeated_run_leaves_the_same_files(
    stream: Stream, options: dict[str, str], place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    cut_small(monkeypatch)
    dying = in_process(_die_at, "all files written", options["url"], stream.name, place)
    dying.join(60)
    assert dying.exitcode == -signal.SIGKILL
    left = {path.name for path in Path(place).rglob("*.parquet")}
    run_archiver(options["url"], stream.name, place)
    named = {Path(file.path).name for file in Archive(place, stream.name).require().files}
    assert left
    assert left <= named == {path.name for path in Path(place).rglob("*.parquet")}


def _write_on(url: str, name: str, first: int, last: int) -> None:
    stream = client(url).stream(name)
    for at in range(first, last, 20):
        stream.write_many(entries(20, at))


def _archive_on(url: str, name: str, place: str, last: int) -> None:
    while True:
        try:
            done = run_archiver(url, name, place, evict=True)
        except ArchiveTaken:
            continue
        if done.streams[0].contents.last >= last:
            return


@pytest.mark.fault
def test_one_log_is_read_while_a_writer_and_two_archivers_run(
    stream: Stream, options: dict[str, str], place: str
) -> None:
    last = 12_000
    url = options["url"]
    others = [
        in_process(_write_on, url, stream.name, 3001, last),
        in_process(_archive_on, url, stream.name, place, last),
        in_process(_archive_on, url, stream.name, place, last),
    ]
    query = stream_reader(**options)
    position = query.initialOffset()
    streamed: list[Row] = []
    reads = 0
    while any(other.is_alive() for other in others) or not streamed or streamed[-1].offset < last:
        rows = read_batch(**options)
        assert len(rows) >= 3000
        assert pairs_of(rows) == expected(len(rows))
        end = query.latestOffset(position, ReadAllAvailable())
        for part in query.partitions(position, end):
            streamed += rows_of(query.read(part))
        position = end
        reads += 1
    assert [other.exitcode for other in others] == [0, 0, 0]
    assert reads > 2, "the others were too quick to be seen at work"
    assert pairs_of(streamed) == expected(last)
    contents = Archive(place, stream.name).require()
    assert (contents.rows, contents.last, contents.gaps) == (last, last, ())
    assert stream.info().first == last + 1
