"""A disk that is full, or a writer that is killed, leaves no files behind in an archive."""

from __future__ import annotations

import contextlib
import os
import resource
import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.fs as pafs
import pytest

from headwater.spark.archives import manifest
from headwater.spark.archives.manifest import Directory, open_directory

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
def directory(request: pytest.FixtureRequest, tmp_path: Path) -> Directory:
    """A directory written by ourselves, and one as those of other file systems are."""
    if request.param == "local":
        return open_directory(str(tmp_path), "rides")
    return Directory(pafs.LocalFileSystem(), f"{tmp_path}/stream=rides", "rides")


def files(tmp_path: Path) -> list[str]:
    return sorted(path.name for path in tmp_path.rglob("*") if path.is_file())


@pytest.mark.parametrize("name", NAMES)
def test_a_full_disk_leaves_no_file_behind(directory: Directory, name: str, tmp_path: Path) -> None:
    for _ in range(3):
        with full_disk(100_000):
            with pytest.raises(OSError, match="File too large"):
                directory.create(name, LARGE)
            if not isinstance(directory, manifest.LocalDirectory):
                continue
            with pytest.raises(OSError, match="File too large"):
                directory.put(name, LARGE)
        assert files(tmp_path) == []
    assert directory.create(name, LARGE)
    assert files(tmp_path) == [Path(name).name]
    assert directory.read(name) == LARGE.to_pybytes()


def test_a_file_that_cannot_take_its_name_is_removed(tmp_path: Path) -> None:
    directory = open_directory(str(tmp_path), "rides")
    taken = tmp_path / "stream=rides" / "data" / "f"
    (taken / "folder").mkdir(parents=True)
    with pytest.raises(OSError, match="directory"):
        directory.put("data/f", LARGE)
    assert files(tmp_path) == []


def test_what_a_killed_writer_left_is_removed_a_day_later(
    directory: Directory, tmp_path: Path
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
    assert directory.create("data/g.parquet", LARGE)
    assert files(tmp_path) == [".new-1-young", ".new-2-of-tomorrow", "f.parquet", "g.parquet"]
    assert [one.name for one in directory.listing("data")] == ["f.parquet", "g.parquet"]
