"""What is written to the files of an archive is read again in order, whatever its times."""

from __future__ import annotations

import contextlib
import datetime as dt
import multiprocessing
import os
import resource
import subprocess
import sys
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import polars
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from hypothesis import given, settings
from hypothesis import strategies as st

from headwater.errors import (
    ArchiveDamaged,
    ArchiveMismatch,
    ArchiveTaken,
    FormatTooNew,
    InvalidInput,
    UnknownArchive,
)
from headwater.kernel.headers import encode_headers
from headwater.log.node import SCHEMA
from headwater.spark.archives import reading, table
from headwater.spark.archives.reading import Wanted, offset_at, scan, write_files
from headwater.spark.archives.table import (
    Archive,
    Contents,
    Directory,
    File,
    absolute_place,
    archived_streams,
    open_directory,
    safe_place,
    stream_folder,
)
from tests.support.object_store import object_store

DAY_MS = 24 * 3600 * 1000
Row = tuple[int, str, bytes, int]


def table_of(rows: list[Row]) -> pa.Table:
    columns = zip(*rows, strict=True) if rows else ((), (), (), ())
    return pa.table([pa.array(c, f.type) for c, f in zip(columns, SCHEMA, strict=True)], SCHEMA)


def rows_of(batches: Any) -> list[Row]:
    found = []
    for batch in batches:
        times = batch.column("time").cast(pa.int64()).to_pylist()
        columns = [batch.column(name).to_pylist() for name in ("offset", "tag", "value")]
        found += list(zip(*columns, times, strict=True))
    return found


@pytest.fixture
def directory(tmp_path: Path) -> Directory:
    return open_directory(str(tmp_path), "rides")


rows_strategy = st.lists(
    st.tuples(
        st.integers(1, 3),
        st.sampled_from(["", "a", "b", "ü"]),
        st.binary(max_size=3),
        st.integers(0, 4 * DAY_MS),
    ),
    min_size=1,
    max_size=60,
)


@settings(max_examples=60, deadline=None)
@given(
    steps=rows_strategy,
    cuts=st.sets(st.integers(1, 59), max_size=4),
    span=st.tuples(st.integers(1, 100), st.integers(1, 100)),
    times=st.tuples(st.integers(0, 4 * DAY_MS), st.integers(0, 4 * DAY_MS)),
    group=st.integers(1, 20),
)
def test_any_rows_come_back_in_order_from_any_files(
    tmp_path_factory: pytest.TempPathFactory,
    steps: list[Row],
    cuts: set[int],
    span: tuple[int, int],
    times: tuple[int, int],
    group: int,
) -> None:
    directory = open_directory(str(tmp_path_factory.mktemp("a")), "rides")
    rows, offset = [], 0
    for step, tag, value, time_ms in steps:
        offset += step
        rows.append((offset, tag, value, time_ms))
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(reading._SETTINGS, "row_group_size", group)
        files: list[File] = []
        for low, high in zip([0, *sorted(cuts)], [*sorted(cuts), len(rows)], strict=True):
            if rows[low:high]:
                files += write_files(directory, table_of(rows[low:high]))
    assert rows_of(scan(directory, files, Wanted())) == rows
    first, last = sorted(span)
    cut = [row for row in rows if first <= row[0] <= last]
    assert rows_of(scan(directory, files, Wanted(first, last))) == cut
    since, until = sorted(times)
    narrow = Wanted(first, last, since, until, frozenset({"a"}))
    found = rows_of(scan(directory, files, narrow))
    assert [row for row in cut if row[1] == "a" and since <= row[3] <= until] == [
        row for row in found if row[1] == "a" and since <= row[3] <= until
    ]
    assert found == sorted(set(found) & set(cut))
    contents = Contents(stream="rides", created=1, last=offset, files=tuple(files))
    late = [row[0] for row in rows if row[3] >= since]
    assert offset_at(directory, contents, since) == (min(late) if late else None)


def test_a_file_is_named_after_its_day_its_offsets_and_its_bytes(directory: Directory) -> None:
    days = [0, 0, DAY_MS, 2**53 - 1]
    table = table_of([(n, "t", b"v", time) for n, time in enumerate(days, 7)])
    files = write_files(directory, table)
    assert files == write_files(directory, table)
    assert [file.path[:49] for file in files] == [
        "day=1970-01-01/0000000000000007-0000000000000008-",
        "day=1970-01-02/0000000000000009-0000000000000009-",
        "day=9999-12-31/0000000000000010-0000000000000010-",
    ]
    assert [(file.rows, file.min_time_ms, file.max_time_ms) for file in files] == [
        (2, 0, 0),
        (1, DAY_MS, DAY_MS),
        (1, 2**53 - 1, 2**53 - 1),
    ]
    assert len(list(Path(directory.within("day=1970-01-01")).iterdir())) == 1


def test_files_are_compressed_sorted_and_know_their_spans(directory: Directory) -> None:
    rows = [(n, f"tag-{n % 7}", b"value" * 20, 1000 + n) for n in range(1, 130_001)]
    [file] = write_files(directory, table_of(rows))
    with directory.open(file.path) as opened:
        facts = pq.ParquetFile(opened).metadata
    assert [facts.row_group(g).num_rows for g in range(facts.num_row_groups)] == [
        64_000,
        64_000,
        2_000,
    ]
    second = facts.row_group(1)
    assert {second.column(place).compression for place in range(4)} == {"ZSTD"}
    assert [column.column_index for column in second.sorting_columns] == [0]
    assert (second.column(0).statistics.min, second.column(0).statistics.max) == (64_001, 128_000)
    assert second.column(3).statistics.min == dt.datetime.fromtimestamp(65.001, dt.UTC)


def test_only_what_is_asked_for_is_read(directory: Directory) -> None:
    rows = [(n, "t", b"v" * 100, 1000 + n) for n in range(1, 130_001)]
    files = write_files(directory, table_of(rows))
    batches = list(scan(directory, files, Wanted(70_000, 70_010), ["offset"]))
    assert [batch.schema.names for batch in batches] == [["offset"]]
    assert batches[0].column("offset").to_pylist() == list(range(70_000, 70_011))
    late = list(scan(directory, files, Wanted(since_ms=129_001)))
    assert sum(batch.num_rows for batch in late) == 2_000
    assert list(scan(directory, files, Wanted(tags=frozenset({"other"})))) == []


def test_damaged_and_missing_files_are_named(directory: Directory, tmp_path: Path) -> None:
    rows = [(n, "t", b"%d" % n, n) for n in range(1, 5001)]
    [file] = write_files(directory, table_of(rows))
    path = tmp_path / "stream-rides" / file.path
    whole = path.read_bytes()
    for damaged in (whole[:-1], b"", whole[:900] + b"\x00\x01\x02\x03" + whole[904:]):
        path.write_bytes(damaged)
        with pytest.raises(ArchiveDamaged, match=file.path):
            list(scan(directory, [file], Wanted()))
    path.unlink()
    with pytest.raises(ArchiveDamaged, match="missing"):
        list(scan(directory, [file], Wanted()))


# ── A disk that is full, or a writer that is killed, leaves no files behind in an archive ────────


LARGE = pa.py_buffer(b"x" * 200_000)


@contextlib.contextmanager
def full_disk(most: int) -> Iterator[None]:
    """Let no file grow beyond so many bytes: a write fails in the middle, as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def files(tmp_path: Path) -> list[str]:
    return sorted(path.name for path in tmp_path.rglob("*") if path.is_file())


def test_a_full_disk_leaves_no_file_behind(directory: Directory, tmp_path: Path) -> None:
    for _ in range(3):
        with full_disk(100_000), pytest.raises(OSError, match="File too large"):
            directory.put("day=2030-01-31/f.parquet", LARGE)
        assert files(tmp_path) == []
    directory.put("day=2030-01-31/f.parquet", LARGE)
    assert files(tmp_path) == ["f.parquet"]
    assert directory.open("day=2030-01-31/f.parquet").read() == LARGE.to_pybytes()


def test_a_file_that_cannot_take_its_name_is_removed(directory: Directory, tmp_path: Path) -> None:
    (tmp_path / "stream-rides" / "data" / "f" / "folder").mkdir(parents=True)
    with pytest.raises(OSError, match="directory"):
        directory.put("data/f", LARGE)
    assert files(tmp_path) == []


def test_what_a_killed_writer_left_is_removed_a_day_later(
    directory: Directory, tmp_path: Path
) -> None:
    folder = tmp_path / "stream-rides" / "data"
    folder.mkdir(parents=True)
    for name, age_s in (
        (".new-0-old", 25 * 3600),
        (".new-1-young", 3600),
        ("f.parquet", 25 * 3600),
        (".new-2-of-tomorrow", -25 * 3600),
    ):
        (folder / name).write_bytes(b"x")
        then = time.time() - age_s
        os.utime(folder / name, (then, then))
    directory.put("data/g.parquet", LARGE)
    assert files(tmp_path) == [".new-1-young", ".new-2-of-tomorrow", "f.parquet", "g.parquet"]


# ── A table says which offsets are archived: whole, in order, and by one archiver at a time ──────


NOTHING = Contents(stream="rides", created=7)


def a_file(first: int, last: int) -> File:
    path = f"day=2030-01-31/{first}-{last}.parquet"
    return File(path, first, last, last - first + 1, 99, 5, 9, headed=False)


@pytest.fixture(scope="session")
def bucket(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with object_store(tmp_path_factory.mktemp("objects")) as uri:
        yield uri


@pytest.fixture(params=["a directory", "an object store"])
def archive(request: pytest.FixtureRequest, tmp_path: Path) -> Archive:
    if request.param == "a directory":
        return Archive(str(tmp_path / "archive"), "rides")
    place = request.getfixturevalue("bucket").replace("/history?", f"/{tmp_path.name}?")
    return Archive(place, "rides")


def test_what_was_never_archived_has_no_table(archive: Archive) -> None:
    assert archive.load() is None
    with pytest.raises(UnknownArchive, match="rides"):
        archive.require()


def test_what_is_committed_is_read_as_it_was_made(archive: Archive) -> None:
    one = archive.commit(NOTHING, 100, [a_file(1, 100)])
    two = archive.commit(one, 250, [a_file(201, 250), a_file(101, 150)], [(151, 200)])
    assert archive.load() == two
    assert two.files == (a_file(1, 100), a_file(101, 150), a_file(201, 250))
    assert (two.first, two.last, two.rows, two.bytes) == (1, 250, 200, 297)
    assert (one.version, two.version) == (1, 2)


def test_the_partition_of_a_topic_knows_its_topic(archive: Archive) -> None:
    made = archive.commit(
        Contents(stream="rides", created=7, topic="r", partitions=8), 9, [a_file(1, 9)]
    )
    assert (made.topic, made.partitions, made.created) == ("r", 8, 7)


def test_gaps_are_exact_and_neighbours_are_one(archive: Archive) -> None:
    one = archive.commit(NOTHING, 50, [], [(1, 20), (21, 50)])
    assert one.gaps == ((1, 50),)
    assert one.first == 51
    more = archive.commit(one, 200, [a_file(61, 200)], [(51, 60), (120, 130)])
    assert more.gaps == ((1, 60), (120, 130))
    assert more.gaps_between(55, 125) == [(55, 60), (120, 125)]
    assert more.between(1, 60) == []
    assert [file.first for file in more.between(1, 61)] == [61]


def test_of_two_that_continue_from_one_version_one_wins(archive: Archive) -> None:
    begin = archive.commit(NOTHING, 100, [a_file(1, 100)])
    won = archive.commit(begin, 200, [a_file(101, 200)])
    for last in (150, 200, 250):
        with pytest.raises(ArchiveTaken, match="rides"):
            archive.commit(begin, last, [a_file(102, last)])
    assert archive.load() == won
    with pytest.raises(ArchiveTaken, match="rides"):
        archive.commit(NOTHING, 90, [a_file(1, 90)])
    assert archive.load() == won


def test_a_commit_whose_answer_was_lost_is_no_error_when_it_is_made_again(archive: Archive) -> None:
    begin = archive.commit(NOTHING, 100, [a_file(1, 100)])
    made = archive.commit(begin, 200, [a_file(101, 200)], [(120, 130)])
    assert archive.commit(begin, 200, [a_file(101, 200)], [(120, 130)]) == made


def _race(archive: Archive, last: int, go: Connection) -> None:
    begin = archive.load() or NOTHING
    go.send("ready")
    go.recv()
    try:
        go.send(archive.commit(begin, last, [a_file(begin.last + 1, last)]).last)
    except ArchiveTaken:
        go.send(None)


@pytest.mark.parametrize("begun", [False, True], ids=["the first commit", "a later one"])
def test_of_many_processes_at_once_one_wins(archive: Archive, *, begun: bool) -> None:
    if begun:
        archive.commit(NOTHING, 10, [a_file(1, 10)])
    context = multiprocessing.get_context("spawn")
    pipes = [context.Pipe() for _ in range(4)]
    racers = [
        context.Process(target=_race, args=(archive, last, theirs), daemon=True)
        for last, (_, theirs) in enumerate(pipes, 11)
    ]
    for racer in racers:
        racer.start()
    for ours, _ in pipes:
        assert ours.recv() == "ready"
    for ours, _ in pipes:
        ours.send("go")
    winners = [won for ours, _ in pipes if (won := ours.recv()) is not None]
    for racer in racers:
        racer.join()
    contents = archive.require()
    assert winners == [contents.last]
    assert contents.rows == contents.last


def test_a_commit_beside_one_of_another_program_counts(archive: Archive) -> None:
    """Somebody optimizes the table between the look of an archiver and its commit."""
    files = [
        file
        for first in (1, 101, 201)
        for file in write_files(archive.directory, table_of(rows_from(first, first + 99)))
    ]
    begin = archive.commit(NOTHING, 300, files)
    found = delta_table(archive).optimize.compact()
    assert (found["numFilesAdded"], found["numFilesRemoved"]) == (1, 3)
    (more,) = write_files(archive.directory, table_of(rows_from(301, 400)))
    contents = archive.commit(begin, 400, [more])
    assert [(file.first, file.last, file.rows) for file in contents.files] == [
        (1, 300, 300),
        (301, 400, 100),
    ]
    assert rows_of(scan(archive.directory, contents.files, Wanted())) == rows_from(1, 400)
    part = scan(archive.directory, contents.files, Wanted(95, 310), ["offset", "time"])
    assert [offset for batch in part for offset in batch.column("offset").to_pylist()] == [
        *range(95, 311)
    ]


def rows_from(first: int, last: int) -> list[Row]:
    return [(n, f"tag-{n % 3}", b"%d" % n, 1_900_000_000_000 + n) for n in range(first, last + 1)]


def delta_table(archive: Archive) -> DeltaTable:
    """Return the table as a program finds it that does not know Headwater."""
    return DeltaTable(
        table._uri(archive.directory, archive.place), storage_options=table._options(archive.place)
    )


def test_other_programs_read_the_table(archive: Archive) -> None:
    plain = write_files(archive.directory, table_of(rows_from(1, 100)))
    rows = table_of(rows_from(101, 110)).append_column(
        "headers", pa.array([encode_headers({"kind": b"late"})] * 10, pa.binary())
    )
    archive.commit(NOTHING, 110, [*plain, *write_files(archive.directory, rows)])
    frame = polars.scan_delta(delta_table(archive)).sort("offset").collect()
    assert frame["offset"].to_list() == [*range(1, 111)]
    assert frame["value"].to_list() == [b"%d" % n for n in range(1, 111)]
    assert frame["time"][0] == dt.datetime.fromtimestamp(1_900_000_000.001, dt.UTC)
    assert {str(day) for day in frame["day"]} == {"2030-03-17"}
    protocol = delta_table(archive).protocol()
    assert (protocol.min_reader_version, protocol.min_writer_version) == (1, 2)


def local(tmp_path: Path) -> tuple[Archive, Path]:
    """Return an archive with a commit, and the folder of its commits."""
    archive = Archive(str(tmp_path / "archive"), "rides")
    archive.commit(NOTHING, 100, [a_file(1, 100)])
    return archive, tmp_path / "archive" / "stream-rides" / "_delta_log"


def test_what_is_half_written_is_never_believed(tmp_path: Path) -> None:
    archive, folder = local(tmp_path)
    for name in ("_commit_0123.json.tmp", "00000000000000000002.json~", "_SUCCESS", "note.json"):
        (folder / name).write_bytes(b'{"add":{"pa')
    assert archive.require().last == 100
    newest = folder / "00000000000000000001.json"
    whole = newest.read_bytes()
    for damaged in (whole[:-9], whole[:40]):
        newest.write_bytes(damaged)
        with pytest.raises(ArchiveDamaged, match="_delta_log"):
            archive.load()


def test_a_table_of_a_later_protocol_is_refused(tmp_path: Path) -> None:
    archive, folder = local(tmp_path)
    first = folder / "00000000000000000000.json"
    first.write_text(first.read_text().replace('"minReaderVersion":1', '"minReaderVersion":2'))
    with pytest.raises(FormatTooNew, match=r"archive of stream 'rides' .* has format 2.*upgrade"):
        archive.load()


@pytest.mark.parametrize("path", ["../secret.parquet", "a/../../b", "s3://bucket/x", "a//b"])
def test_a_table_that_names_files_outside_the_archive_is_refused(path: str, tmp_path: Path) -> None:
    archive, folder = local(tmp_path)
    newest = folder / "00000000000000000001.json"
    newest.write_text(newest.read_text().replace("day=2030-01-31/1-100.parquet", path))
    with pytest.raises(ArchiveDamaged, match="does not lie in the archive"):
        archive.load()


def test_the_history_of_another_stream_is_refused(tmp_path: Path) -> None:
    contents = local(tmp_path)[0].require()
    contents.check_stream("here", created=7, last=100)
    with pytest.raises(ArchiveMismatch, match="anew"):
        contents.check_stream("here", created=8, last=100)
    with pytest.raises(ArchiveMismatch, match="the log at 99"):
        contents.check_stream("here", created=7, last=99)
    DeltaTable.create(str(tmp_path / "archive" / "stream-other"), SCHEMA)
    with pytest.raises(ArchiveMismatch, match="a table of something else"):
        Archive(str(tmp_path / "archive"), "other").load()


def test_streams_of_any_name_are_side_by_side(archive: Archive) -> None:
    names = ["a", "a/0", "a%2F0", "a=2F0", "..", "stream=a", "Straße:1", "x" * 200]
    for name in names:
        Archive(archive.place, name).commit(Contents(stream=name, created=7), len(name))
    assert archived_streams(archive.place) == sorted(names)
    for name in names:
        assert Archive(archive.place, name).require().last == len(name)
    with pytest.raises(InvalidInput, match="too long"):
        stream_folder("/" * 200)


def test_a_place_is_found_from_everywhere_and_shown_without_secrets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert absolute_place("archive") == str(tmp_path / "archive")
    assert absolute_place(Path("archive")) == str(tmp_path / "archive")
    assert (
        absolute_place("s3://key:secret@bucket/a?region=x") == "s3://key:secret@bucket/a?region=x"
    )
    assert safe_place("s3://key:secret@bucket/a?secret=x") == "s3://bucket/a"
    with pytest.raises(InvalidInput, match="directory or a URI"):
        absolute_place("")
    with pytest.raises(InvalidInput) as refused:
        open_directory("nonsense://user:secret@host/a", "rides")
    assert "secret" not in str(refused.value)


def test_a_uri_of_a_local_directory_is_that_directory(tmp_path: Path) -> None:
    made = Archive(f"file://{tmp_path}/archive", "rides").commit(NOTHING, 100, [a_file(1, 100)])
    assert Archive(str(tmp_path / "archive"), "rides").require() == made


def test_a_table_is_read_without_spark() -> None:
    program = (
        "import sys, headwater.spark.archives.table as t;"
        "assert t.Archive('/nowhere', 'rides').load() is None;"
        "assert not any(name.split('.')[0] == 'pyspark' for name in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
