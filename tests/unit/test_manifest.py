"""A manifest says which offsets are archived: whole, in order, and by one archiver at a time."""

from __future__ import annotations

import multiprocessing
import subprocess
import sys
from multiprocessing.connection import Connection
from pathlib import Path

import pyarrow as pa
import pyarrow.fs as pafs
import pytest

from headwater.errors import (
    ArchiveDamaged,
    ArchiveMismatch,
    ArchiveTaken,
    FormatTooNew,
    InvalidInput,
    UnknownArchive,
)
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
