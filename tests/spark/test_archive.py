"""An archive holds what its manifest says, and readers see one log.

Planners and tasks run in this process here (see tests.support.spark.archiving);
tests.spark.test_archive_job has Spark run them.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import redis
from pyspark.sql.streaming.datasource import ReadAllAvailable

import headwater
from headwater import Headwater, Stream
from headwater.errors import ArchiveMismatch, DataLost
from headwater.log.keys import stream_key, tail_key
from headwater.spark.archives import reading, writing
from headwater.spark.archives.manifest import Archive, Directory, File
from headwater.spark.jobs.archive import reader_name
from headwater.spark.log.range_reader import Condition
from headwater.spark.log.source import HeadwaterSource
from tests.support.entries import entries
from tests.support.spark.archiving import (
    cut_small,
    expected,
    pairs_of,
    read_batch,
    rows_of,
    run_archiver,
    stream_of_3000,
    stream_reader,
)


@pytest.fixture
def hw(embedded_url: str) -> Iterator[Headwater]:
    with headwater.connect(embedded_url) as hw:
        yield hw


@pytest.fixture
def stream(hw: Headwater, name: str) -> Stream:
    return stream_of_3000(hw, name)


@pytest.fixture
def options(embedded_url: str, stream: Stream, place: str) -> dict[str, str]:
    return {"url": embedded_url, "stream": stream.name, "archive": place}


@pytest.fixture
def archived(embedded_url: str, stream: Stream, place: str) -> Callable[..., None]:
    """Run an archiver to its end."""

    def run(*, evict: bool = False) -> None:
        run_archiver(embedded_url, stream.name, place, evict=evict)

    return run


@pytest.fixture
def small_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    cut_small(monkeypatch)


# ── One log ──────────────────────────────────────────────────────────────────────────────────


def test_what_was_archived_and_evicted_is_read_as_before(
    stream: Stream, options: dict[str, str], archived: Callable[..., None]
) -> None:
    before = read_batch(**options)
    archived(evict=True)
    assert stream.info().first == 3001
    stream.write_many(entries(500, 3001))
    assert read_batch(**options)[:3000] == before
    assert pairs_of(read_batch(**options, minPartitions="7")) == expected(3500)
    with pytest.raises(DataLost, match="1 to 3000"):
        read_batch(url=options["url"], stream=stream.name, startingOffsets="1")


def test_a_read_that_was_planned_before_an_eviction_finds_the_archive(
    stream: Stream, options: dict[str, str], archived: Callable[..., None]
) -> None:
    source = HeadwaterSource(options)
    reader = source.reader(source.schema())
    parts = list(reader.partitions())
    query = stream_reader(**options)
    start = query.initialOffset()
    end = query.latestOffset(start, ReadAllAvailable())
    steps = query.partitions(start, end)
    stream.evict(100)
    archived(evict=True)
    with pytest.raises(DataLost, match="1 to 100"):
        list(reader.read(parts[0]))
    lenient = HeadwaterSource({**options, "failOnDataLoss": "false"})
    reader = lenient.reader(lenient.schema())
    rows = [row for part in parts for row in rows_of(reader.read(part))]
    assert pairs_of(rows) == expected(3000)[100:]
    with pytest.raises(DataLost, match="1 to 100"):
        [list(query.read(step)) for step in steps]


def test_an_eviction_between_two_looks_leaves_no_gap(
    options: dict[str, str],
    archived: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The manifest is read, then an archiver commits and evicts, then the log is looked at."""
    load = Archive.load
    pending = [True]

    def load_then_archive(archive: Archive) -> Any:
        found = load(archive)
        if pending and pending.pop():
            archived(evict=True)
        return found

    monkeypatch.setattr(Archive, "load", load_then_archive)
    assert pairs_of(read_batch(**options)) == expected(3000)


@pytest.mark.usefixtures("small_tasks")
def test_conditions_spare_files_and_keep_the_same_rows(
    stream: Stream,
    options: dict[str, str],
    archived: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    source = HeadwaterSource(options)
    reader = source.reader(source.schema())
    conditions = (Condition("offset", "greater", 1000), Condition("tag", "equal", "tag-3"))
    reader.reading = replace(reader.reading, conditions=conditions)  # type: ignore[attr-defined]

    def kept() -> list[Any]:
        """Return what Spark would keep of the rows that are read."""
        rows = [row for part in reader.partitions() for row in rows_of(reader.read(part))]
        return [row for row in rows if row.tag == "tag-3"]

    in_log = kept()
    archived(evict=True)
    opened: list[str] = []
    read_file = reading.read_file

    def noting(directory: Directory, file: File, *rest: Any) -> Any:
        opened.append(file.path)
        return read_file(directory, file, *rest)

    monkeypatch.setattr("headwater.spark.archives.reading.read_file", noting)
    assert kept() == in_log
    all_files = Archive(options["archive"], stream.name).require().files
    assert 0 < len(set(opened)) < len(all_files)
    assert all(row.offset > 1000 for row in in_log)


def test_a_stream_that_is_gone_is_what_its_archive_has(
    stream: Stream, options: dict[str, str], archived: Callable[..., None]
) -> None:
    archived()
    stream.delete()
    assert pairs_of(read_batch(**options)) == expected(3000)


def test_a_stream_made_anew_is_refused(
    stream: Stream, options: dict[str, str], archived: Callable[..., None]
) -> None:
    archived()
    stream.delete()
    stream.write_many(entries(5000))
    for attempt in (archived, lambda: read_batch(**options)):
        with pytest.raises(ArchiveMismatch, match="written anew"):
            attempt()
    query = stream_reader(**options)
    with pytest.raises(ArchiveMismatch, match="written anew"):
        query.initialOffset()


def test_a_log_older_than_its_archive_is_refused(
    stream: Stream, options: dict[str, str], archived: Callable[..., None]
) -> None:
    archived()
    archive = Archive(options["archive"], stream.name)
    archive.commit(archive.require().with_more(4000, [], []))
    for attempt in (archived, lambda: read_batch(**options)):
        with pytest.raises(ArchiveMismatch, match="the log at 3000"):
            attempt()


# ── Losses, readers ──────────────────────────────────────────────────────────────────────────


@pytest.mark.damages
def test_what_the_store_has_lost_is_an_exact_gap(
    embedded_url: str, stream: Stream, options: dict[str, str], archived: Callable[..., None]
) -> None:
    place = options.pop("archive")
    for row in entries(9, 3001):
        stream.write(*row)
    socket = Path(embedded_url.removeprefix("embedded://")) / "valkey.sock"
    with redis.Redis(unix_socket_path=str(socket)) as raw:
        assert raw.xdel(tail_key(stream_key(stream.name)), "0-3005") == 1
    with pytest.raises(DataLost, match=r"3005 to 3005 .* are missing in the store"):
        read_batch(**options)
    rows = read_batch(**options, failOnDataLoss="false")
    assert pairs_of(rows) == [row for row in expected(3009) if row[0] != 3005]
    archived()
    assert Archive(place, stream.name).require().gaps == ((3005, 3005),)


def test_what_was_evicted_too_early_is_an_exact_gap(
    stream: Stream, options: dict[str, str], archived: Callable[..., None]
) -> None:
    stream.evict(40)
    archived()
    stream.write_many(entries(100, 3001))
    stream.evict(3100)
    archived()
    stream.write_many(entries(10, 3101))
    manifest = Archive(options["archive"], stream.name).require()
    assert (manifest.gaps, manifest.first, manifest.last) == (((1, 40), (3001, 3100)), 41, 3100)
    for start, lost in (("earliest", "3001 to 3100"), ("1", "1 to 40")):
        with pytest.raises(DataLost, match=lost):
            read_batch(**options, startingOffsets=start)
    rows = read_batch(**options, failOnDataLoss="false")
    assert pairs_of(rows) == [*expected(3000)[40:], *expected(3110)[3100:]]
    query = stream_reader(**options)
    start = query.initialOffset()
    end = query.latestOffset(start, ReadAllAvailable())
    with pytest.raises(DataLost, match="3001 to 3100"):
        query.partitions(start, end)
    query = stream_reader(**options, startingOffsets="1")
    with pytest.raises(DataLost, match="1 to 40"):
        query.initialOffset()


@pytest.mark.usefixtures("small_tasks")
def test_what_is_evicted_while_it_is_archived_is_an_exact_gap(
    stream: Stream,
    options: dict[str, str],
) -> None:
    def evicting(work: Any, parts: Any) -> Any:
        written = []
        for part in parts:
            stream.evict(part.start + 9)
            written.append(work(part))
        return written

    run_archiver(options["url"], stream.name, options["archive"], evicting)
    manifest = Archive(options["archive"], stream.name).require()
    assert len(manifest.gaps) > 1
    assert all(last - first == 9 for first, last in manifest.gaps)
    lost = {n for first, last in manifest.gaps for n in range(first, last + 1)}
    rows = read_batch(**options, failOnDataLoss="false")
    assert pairs_of(rows) == [row for row in expected(3000) if row[0] not in lost]


def test_retention_waits_for_the_archiver_and_it_for_other_readers(
    stream: Stream, options: dict[str, str], archived: Callable[..., None]
) -> None:
    archived()
    reader = reader_name(options["archive"])
    assert stream.info().readers == {reader: 3001}
    stream.write_many(entries(100, 3001))
    assert stream.retain(max_count=10).held_by == reader
    stream.retain()
    stream.register_reader("slow", 3020)
    group = stream.group("slower", 3005)
    group.read(5)
    archived(evict=True)
    assert stream.info().first == 3010
    group.remove()
    archived(evict=True)
    assert stream.info().first == 3020
    stream.forget_reader("slow")
    archived(evict=True)
    assert stream.info().first == 3101


def test_large_messages_are_archived_in_pieces(
    stream: Stream, options: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writing, "PIECE_BYTES", 1_000_000)
    values = [os.urandom(400_000) for _ in range(30)]
    for value in values:
        stream.write("large", value)
    run_archiver(options["url"], stream.name, options["archive"])
    files = Archive(options["archive"], stream.name).require().files
    assert len(files) >= 3
    # A reply of the store, and what was held before it.
    assert max(file.bytes for file in files) < 6_000_000
    rows = read_batch(**options, startingOffsets="3001")
    assert [row.value for row in rows] == values
