"""Where an archive lies: a directory of this machine, or of any file system that pyarrow knows.

An archive has a directory for each stream, ``stream=<name>``, spelled as Hive and Spark spell
partitions, so that the whole place is also a plain Parquet data set with the columns stream and
date. Files are written atomically: under another name first, which is removed when that fails; what
a writer left who was killed, the next one removes after a day.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import secrets
import time
from functools import cache
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit, urlunsplit

import pyarrow as pa
import pyarrow.fs as pafs

from headwater.errors import ArchiveDamaged, InvalidInput

# What Spark escapes in the names of partitions, and no more: it finds the names again.
_ESCAPED = re.compile(r"[\x00-\x1f\x7f\"#%'*/:=?\\{\[\]^]")
_MAX_NAME_BYTES = 255
_NEW = ".new-"
# No file takes that long to write: whoever wrote one that is older was killed.
LEFT_S = 24 * 3600.0
# What a file system without hard links answers.
_NO_LINKS = (errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EMLINK)


def absolute_place(place: str | os.PathLike[str]) -> str:
    """Return the name by which every process of this machine finds a place: a path, or a URI."""
    text = os.fspath(place)
    if not text:
        raise InvalidInput("an archive needs a directory or a URI; name where it lies")
    return text if "://" in text else str(Path(text).expanduser().absolute())


def safe_place(place: str) -> str:
    """Return the name of a place that may be shown: without user, password and options of a URI."""
    if "://" not in place:
        return place
    parts = urlsplit(place)
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))


def stream_folder(stream: str) -> str:
    """Return the directory name of a stream; raises InvalidInput when it would be too long."""
    name = "stream=" + _ESCAPED.sub(lambda sign: f"%{ord(sign[0]):02X}", stream)
    if len(name.encode()) > _MAX_NAME_BYTES:
        raise InvalidInput(
            f"the name of stream {stream!r} is too long for a directory; "
            "archives take names of about 80 characters, more when most are letters and digits"
        )
    return name


class ListedFile(NamedTuple):
    """A file as its folder lists it; another file of the same name differs in the rest."""

    name: str
    size: int
    changed_ns: int


class Directory:
    """The directory of one stream's archive; ``name`` is always relative to it."""

    def __init__(self, filesystem: pafs.FileSystem, path: str, shown: str) -> None:
        self.filesystem = filesystem
        self.path = path
        self.shown = shown
        self._tidied: set[str] = set()

    def within(self, name: str) -> str:
        """Return the full path of a file."""
        return f"{self.path}/{name}"

    def listing(self, folder: str) -> list[ListedFile]:
        """List what lies in a folder, sorted; nothing when there is no such folder."""
        found = self.filesystem.get_file_info(
            pafs.FileSelector(self.within(folder), allow_not_found=True)
        )
        return sorted(
            ListedFile(one.base_name, one.size or 0, one.mtime_ns or 0)
            for one in found
            if not one.base_name.startswith(_NEW)
        )

    def read(self, name: str) -> bytes | None:
        """Return the content of a file, or None when there is none."""
        try:
            with self.filesystem.open_input_file(self.within(name)) as file:
                data: bytes = file.read()
                return data
        except FileNotFoundError:
            return None

    def open(self, name: str) -> pa.NativeFile:
        """Open a file that must be there; raises ArchiveDamaged."""
        try:
            return self.filesystem.open_input_file(self.within(name))
        except FileNotFoundError:
            raise ArchiveDamaged(self.shown, name, "it is missing") from None

    def prepare(self) -> None:
        """Make the directory unless it is there; raises InvalidInput when that cannot be."""
        try:
            self._make_folder("any")
        except OSError as error:
            raise InvalidInput(
                f"an archive cannot lie at {self.shown}: {error.strerror or error}; name a "
                "directory that can be written, or a URI such as s3://bucket/folder"
            ) from None

    def put(self, name: str, data: pa.Buffer) -> None:
        """Write a file atomically; replaces one of that name."""
        self._make_folder(name)
        with self.filesystem.open_output_stream(self.within(name)) as file:
            file.write(data)

    def create(self, name: str, data: pa.Buffer) -> bool:
        """Write a file unless there is one of that name; returns whether this call has written it.

        Object stores, as pyarrow speaks to them, cannot refuse to replace an object: there two
        calls within the same moment may both believe that they won.
        """
        if self.filesystem.get_file_info(self.within(name)).type != pafs.FileType.NotFound:
            return False
        beside = self._beside(name)
        try:
            self.put(beside, data)
            self.filesystem.move(self.within(beside), self.within(name))
        except BaseException as error:
            self._remove_quietly(beside)
            # HDFS does not move a file onto another.
            if not isinstance(error, OSError) or self.read(name) is None:
                raise
        return bool(self.read(name) == data.to_pybytes())

    def remove(self, name: str) -> None:
        """Remove a file if it is there."""
        with contextlib.suppress(FileNotFoundError):
            self.filesystem.delete_file(self.within(name))

    def _make_folder(self, name: str) -> None:
        self.filesystem.create_dir(self.within(name).rpartition("/")[0], recursive=True)

    def _beside(self, name: str) -> str:
        """Return a name of nobody else beside a file, to write it under first."""
        folder, _, base = name.rpartition("/")
        if folder not in self._tidied:
            self._tidied.add(folder)
            self._tidy(folder)
        return f"{folder}/{_NEW}{secrets.token_hex(8)}-{base}"

    def _tidy(self, folder: str) -> None:
        """Remove files that writers left behind in a folder who were killed."""
        selector = pafs.FileSelector(self.within(folder), allow_not_found=True)
        for one in self.filesystem.get_file_info(selector):
            changed_s = (one.mtime_ns or time.time_ns()) / 1e9
            if one.base_name.startswith(_NEW) and time.time() - changed_s > LEFT_S:
                self._remove_quietly(f"{folder}/{one.base_name}")

    def _remove_quietly(self, name: str) -> None:
        """Remove a file on the way to an error, or one that is in nobody's way."""
        with contextlib.suppress(OSError):
            self.remove(name)


class LocalDirectory(Directory):
    """A directory of this machine: files are durable, and a name is taken once only."""

    def put(self, name: str, data: pa.Buffer) -> None:
        """See Directory; on disk when this returns."""
        beside = self._write_beside(name, data)
        try:
            Path(self.within(beside)).replace(self.within(name))
        except BaseException:
            self._remove_quietly(beside)
            raise
        _sync(Path(self.within(name)).parent)

    def create(self, name: str, data: pa.Buffer) -> bool:
        """See Directory; of any number of calls, one wins."""
        beside = self._write_beside(name, data)
        try:
            os.link(self.within(beside), self.within(name))
        except FileExistsError:
            return False
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
            return super().create(name, data)
        finally:
            self._remove_quietly(beside)
        _sync(Path(self.within(name)).parent)
        return True

    def _write_beside(self, name: str, data: pa.Buffer) -> str:
        self._make_folder(name)
        beside = self._beside(name)
        try:
            with Path(self.within(beside)).open("wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
        except BaseException:
            # A full disk: what is there of it is in the way of the next attempt.
            self._remove_quietly(beside)
            raise
        return beside

    def _make_folder(self, name: str) -> None:
        folder = Path(self.within(name)).parent
        missing = [one for one in (folder, *folder.parents) if not one.exists()]
        for one in reversed(missing):
            one.mkdir(exist_ok=True)
            _sync(one.parent)


def _sync(folder: Path) -> None:
    """Flush the names in a folder to disk, too."""
    opened = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)


def open_directory(place: str, stream: str) -> Directory:
    """Return the directory of a stream's archive; it need not exist. Raises InvalidInput."""
    folder = stream_folder(stream)
    filesystem, path = _filesystem(place, os.getpid())
    kind = LocalDirectory if isinstance(filesystem, pafs.LocalFileSystem) else Directory
    shown = f"{safe_place(place).rstrip('/')}/{folder}"
    return kind(filesystem, f"{path.rstrip('/')}/{folder}", shown)


@cache
def _filesystem(place: str, process: int) -> tuple[pafs.FileSystem, str]:  # noqa: ARG001
    """Open a place once for each process: a fork cannot use its parent's connections."""
    if "://" not in place:
        return pafs.LocalFileSystem(), place
    try:
        filesystem, path = pafs.FileSystem.from_uri(place)
    except (pa.ArrowException, OSError):
        # The message of pyarrow repeats the URI, which may hold a password.
        raise InvalidInput(
            f"an archive cannot lie at {safe_place(place)!r}; name a directory, or a URI that "
            "pyarrow.fs opens, such as s3://bucket/folder"
        ) from None
    return filesystem, path


def archived_streams(place: str) -> list[str]:
    """List the streams that have an archive at a place, sorted."""
    prefix = "stream="
    there = open_directory(place, "any")
    root = there.path.rpartition("/")[0]
    found = there.filesystem.get_file_info(pafs.FileSelector(root or "/", allow_not_found=True))
    names = [one.base_name[len(prefix) :] for one in found if one.base_name.startswith(prefix)]
    return sorted(re.sub("%([0-9A-F]{2})", lambda code: chr(int(code[1], 16)), n) for n in names)
