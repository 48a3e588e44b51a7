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

import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq
import pytest
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
from headwater.log.node import SCHEMA
from headwater.spark.archives import manifest, reading
from headwater.spark.archives.manifest import (
    Archive,
    Directory,
    File,
    Manifest,
    absolute_place,
    archived_streams,
    open_directory,
    safe_place,
    stream_folder,
)
from headwater.spark.archives.reading import Wanted, offset_at, scan, write_files

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
    manifest = Manifest(stream="rides", created=1).with_more(offset, files, [])
    late = [row[0] for row in rows if row[3] >= since]
    assert offset_at(directory, manifest, since) == (min(late) if late else None)


def test_a_file_is_named_after_its_day_its_offsets_and_its_bytes(directory: Directory) -> None:
    days = [0, 0, DAY_MS, 2**53 - 1]
    table = table_of([(n, "t", b"v", time) for n, time in enumerate(days, 7)])
    files = write_files(directory, table)
    assert files == write_files(directory, table)
    assert [file.path[:50] for file in files] == [
        "date=1970-01-01/0000000000000007-0000000000000008-",
        "date=1970-01-02/0000000000000009-0000000000000009-",
        "date=9999-12-31/0000000000000010-0000000000000010-",
    ]
    assert [(file.rows, file.min_time_ms, file.max_time_ms) for file in files] == [
        (2, 0, 0),
        (1, DAY_MS, DAY_MS),
        (1, 2**53 - 1, 2**53 - 1),
    ]
    assert len(directory.listing("date=1970-01-01")) == 1


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
    path = tmp_path / "stream=rides" / file.path
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
NAMES = ("data/date=2030-01-31/f.parquet", "manifest/00000001.json")


@contextlib.contextmanager
def full_disk(most: int) -> Iterator[None]:
    """Let no file grow beyond so many bytes: a write fails in the middle, as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.fixture(params=["local", "pyarrow"])
def local_directory(request: pytest.FixtureRequest, tmp_path: Path) -> Directory:
    """A directory written by ourselves, and one as those of other file systems are."""
    if request.param == "local":
        return open_directory(str(tmp_path), "rides")
    return Directory(pafs.LocalFileSystem(), f"{tmp_path}/stream=rides", "rides")


def files(tmp_path: Path) -> list[str]:
    return sorted(path.name for path in tmp_path.rglob("*") if path.is_file())


@pytest.mark.parametrize("name", NAMES)
def test_a_full_disk_leaves_no_file_behind(
    local_directory: Directory, name: str, tmp_path: Path
) -> None:
    for _ in range(3):
        with full_disk(100_000):
            with pytest.raises(OSError, match="File too large"):
                local_directory.create(name, LARGE)
            if not isinstance(local_directory, manifest.LocalDirectory):
                continue
            with pytest.raises(OSError, match="File too large"):
                local_directory.put(name, LARGE)
        assert files(tmp_path) == []
    assert local_directory.create(name, LARGE)
    assert files(tmp_path) == [Path(name).name]
    assert local_directory.read(name) == LARGE.to_pybytes()


def test_a_file_that_cannot_take_its_name_is_removed(tmp_path: Path) -> None:
    local_directory = open_directory(str(tmp_path), "rides")
    taken = tmp_path / "stream=rides" / "data" / "f"
    (taken / "folder").mkdir(parents=True)
    with pytest.raises(OSError, match="directory"):
        local_directory.put("data/f", LARGE)
    assert files(tmp_path) == []


def test_what_a_killed_writer_left_is_removed_a_day_later(
    local_directory: Directory, tmp_path: Path
) -> None:
    folder = tmp_path / "stream=rides" / "data"
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
    assert local_directory.create("data/g.parquet", LARGE)
    assert files(tmp_path) == [".new-1-young", ".new-2-of-tomorrow", "f.parquet", "g.parquet"]
    assert [one.name for one in local_directory.listing("data")] == ["f.parquet", "g.parquet"]


# ── A manifest says which offsets are archived: whole, in order, and by one archiver at a time ───


def a_file(first: int, last: int) -> File:
    return File(f"date=2030-01-31/{first}-{last}.parquet", first, last, last - first + 1, 99, 5, 9)


def first_version(last: int = 100) -> Manifest:
    nothing = Manifest(stream="rides", created=7)
    return nothing.with_more(last, [a_file(1, last)], [])


@pytest.fixture
def archive(tmp_path: Path) -> Archive:
    return Archive(str(tmp_path / "archive"), "rides")


def test_what_was_never_archived_has_no_manifest(archive: Archive) -> None:
    assert archive.load() is None
    with pytest.raises(UnknownArchive, match="rides"):
        archive.require()


def test_the_newest_version_is_read_as_it_was_made(archive: Archive) -> None:
    one = first_version()
    two = one.with_more(250, [a_file(201, 250), a_file(101, 150)], [(151, 200)])
    for version in (one, two):
        archive.commit(version)
        assert archive.load() == version
    assert [file.first for file in two.files] == [1, 101, 201]
    assert (two.first, two.last, two.rows, two.bytes) == (1, 250, 200, 297)


def test_old_versions_go_and_the_newest_stays(archive: Archive) -> None:
    version = first_version()
    for last in range(200, 4200, 100):
        archive.commit(version)
        version = version.with_more(last, [], [])
    found = archive.load()
    assert found is not None
    assert found.version == 40
    assert len(archive.directory.listing("_manifest")) == 16


def test_gaps_are_exact_and_neighbours_are_one() -> None:
    manifest = Manifest(stream="rides", created=7).with_more(50, [], [(1, 20), (21, 50)])
    assert manifest.gaps == ((1, 50),)
    assert manifest.first == 51
    more = manifest.with_more(200, [a_file(61, 200)], [(51, 60), (120, 130)])
    assert more.gaps == ((1, 60), (120, 130))
    assert more.gaps_between(55, 125) == [(55, 60), (120, 125)]
    assert more.between(1, 60) == []
    assert [file.first for file in more.between(1, 61)] == [61]


def test_of_two_that_continue_from_one_version_one_wins(archive: Archive) -> None:
    archive.commit(first_version(100))
    with pytest.raises(ArchiveTaken, match="rides"):
        archive.commit(first_version(150))
    found = archive.load()
    assert found is not None
    assert found.last == 100


def _race(archive: Archive, last: int, go: Connection) -> None:
    go.recv()
    try:
        archive.commit(first_version(last))
        go.send(last)
    except ArchiveTaken:
        go.send(None)


def test_of_many_processes_at_once_one_wins(archive: Archive) -> None:
    context = multiprocessing.get_context("fork")
    pipes = [context.Pipe() for _ in range(8)]
    racers = [
        context.Process(target=_race, args=(archive, last, theirs))
        for last, (_, theirs) in enumerate(pipes, 1)
    ]
    for racer in racers:
        racer.start()
    for ours, _ in pipes:
        ours.send("go")
    winners = [won for ours, _ in pipes if (won := ours.recv()) is not None]
    for racer in racers:
        racer.join()
    found = archive.load()
    assert found is not None
    assert winners == [found.last]


def test_what_is_half_written_is_never_believed(archive: Archive, tmp_path: Path) -> None:
    archive.commit(first_version())
    folder = tmp_path / "archive" / "stream=rides" / "_manifest"
    for name in (".new-0123-0000000002.json", "0000000002.json~", "_SUCCESS", "note.json"):
        (folder / name).write_bytes(b'{"format":1,"ver')
    assert archive.load() == first_version()
    newest = folder / "0000000001.json"
    whole = newest.read_bytes()
    for damaged in (whole[:-1], whole[:40], b"", whole.replace(b"100", b"900")):
        newest.write_bytes(damaged)
        with pytest.raises(ArchiveDamaged, match="checksum"):
            archive.load()


def test_a_manifest_of_a_later_format_is_refused(archive: Archive) -> None:
    archive.commit(Manifest(format=3, version=1, stream="rides", created=7))
    with pytest.raises(FormatTooNew, match=r"archive of stream 'rides' .* has format 3.*upgrade"):
        archive.load()


@pytest.mark.parametrize(
    "path", ["../secret.parquet", "/etc/passwd", "a/../../b", "s3://bucket/x", "a//b", "", "a\\b"]
)
def test_a_manifest_that_names_files_outside_the_archive_is_refused(
    archive: Archive, path: str
) -> None:
    file = File(path, 1, 100, 100, 99, 5, 9)
    archive.commit(Manifest(stream="rides", created=7).with_more(100, [file], []))
    with pytest.raises(ArchiveDamaged, match="does not lie in the archive"):
        archive.load()


def test_the_history_of_another_stream_is_refused() -> None:
    manifest = first_version(100)
    manifest.check_stream("here", created=7, last=100)
    with pytest.raises(ArchiveMismatch, match="anew"):
        manifest.check_stream("here", created=8, last=100)
    with pytest.raises(ArchiveMismatch, match="the log at 99"):
        manifest.check_stream("here", created=7, last=99)


def test_streams_of_any_name_are_side_by_side(tmp_path: Path) -> None:
    names = ["a", "a/0", "a%2F0", "..", "stream=a", "Straße:1", "x" * 200]
    for name in names:
        nothing = Manifest(stream=name, created=7)
        Archive(str(tmp_path), name).commit(nothing.with_more(len(name), [], []))
    assert archived_streams(str(tmp_path)) == sorted(names)
    for name in names:
        assert Archive(str(tmp_path), name).require().last == len(name)
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
    Archive(f"file://{tmp_path}/archive", "rides").commit(first_version())
    assert Archive(str(tmp_path / "archive"), "rides").require() == first_version()


def test_any_file_system_of_pyarrow_will_do(tmp_path: Path) -> None:
    tree = pafs.SubTreeFileSystem(str(tmp_path), pafs.LocalFileSystem())
    directory = Directory(tree, "archive/stream=rides", "archive")
    assert directory.listing("_manifest") == []
    assert directory.read("_manifest/1") is None
    assert directory.create("_manifest/1", pa.py_buffer(b"one"))
    assert not directory.create("_manifest/1", pa.py_buffer(b"two"))
    directory.put("date=2030-01-31/a", pa.py_buffer(b"data"))
    directory.put("date=2030-01-31/a", pa.py_buffer(b"other"))
    assert [found.name for found in directory.listing("_manifest")] == ["1"]
    assert directory.read("_manifest/1") == b"one"
    assert directory.open("date=2030-01-31/a").read() == b"other"
    with pytest.raises(ArchiveDamaged, match="missing"):
        directory.open("date=2030-01-31/b")
    directory.remove("_manifest/1")
    directory.remove("_manifest/1")
    assert directory.listing("_manifest") == []


def test_a_manifest_is_read_without_spark() -> None:
    program = (
        "import sys, headwater.spark.archives.manifest as m;"
        "assert m.Archive('/nowhere', 'rides').load() is None;"
        "assert not any(name.split('.')[0] == 'pyspark' for name in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
