"""The manifest of an archive, and where that lies: which offsets it holds, in which files.

stream=<name>/_manifest/0000000007.json      the seventh version, which replaces all before it
    stream=<name>/date=2030-01-31/...parquet     what it names; files that no version names are
                                                 left over from a run that died, and never read

A version is created atomically, under a name that was free, and is never changed: of two archivers
that go on from the same version one wins, and the other gets an error. Everything up to ``last`` is
archived or known to be gone, so what is covered is known without looking at the files. A stream
that was deleted and written anew is another stream: it has another ``created``.

``format`` says how all of it is written. Two lines of JSON, the second with the checksum of the
first, and ``format`` in the first, are what every release can rely on.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import secrets
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit, urlunsplit
from zlib import crc32

import msgspec
import pyarrow as pa
import pyarrow.fs as pafs

from headwater.errors import (
    ArchiveDamaged,
    ArchiveMismatch,
    ArchiveTaken,
    FormatTooNew,
    InvalidInput,
    UnknownArchive,
)

# ── Place ─────────────────────────────────────────────────────────────────────────────────────────
# Where an archive lies: a directory of this machine, or of any file system that pyarrow knows.
#
# An archive has a directory for each stream, ``stream=<name>``, spelled as Hive and Spark spell
# partitions, so that the whole place is also a plain Parquet data set with the columns stream and
# date. Files are written atomically: under another name first, which is removed when that fails;
# what a writer left who was killed, the next one removes after a day.


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


# ── Manifest ──────────────────────────────────────────────────────────────────────────────────────


# Files may have headers since the second; an archive in which none has is of the first.
FORMAT = 2
_WITHOUT_HEADERS = 1
_FOLDER = "_manifest"
# Paths of the files of an archive: relative ones, below the folder of their stream.
_INSIDE = re.compile(r"[\w.=/-]+")
_VERSION = re.compile(r"\d{10}\.json")
# So many versions stay: a reader that listed them has time to read the newest one.
_KEPT = 16


class File(msgspec.Struct, frozen=True, array_like=True):
    """One Parquet file: the first and last offset of its rows, and the span of their times.

    A ``headed`` one has a column of headers.
    """

    path: str
    first: int
    last: int
    rows: int
    bytes: int
    min_time_ms: int
    max_time_ms: int
    headed: bool = False


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """One version of what an archive holds.

    ``files`` are in order of their first offsets. ``gaps`` are the offsets that were evicted before
    they could be archived; offsets up to ``last`` that are in neither were compacted away.
    ``topic`` and ``partitions`` are there when the stream is a partition of a topic.
    """

    format: int = _WITHOUT_HEADERS
    version: int = 0
    stream: str
    created: int
    topic: str | None = None
    partitions: int | None = None
    last: int = 0
    gaps: tuple[tuple[int, int], ...] = ()
    files: tuple[File, ...] = ()

    @property
    def first(self) -> int:
        """The first offset that is not known to be gone; beyond ``last`` when all are."""
        return self.gaps[0][1] + 1 if self.gaps and self.gaps[0][0] == 1 else 1

    @property
    def rows(self) -> int:
        """How many messages there are in all files."""
        return sum(file.rows for file in self.files)

    @property
    def bytes(self) -> int:
        """How many bytes all files have."""
        return sum(file.bytes for file in self.files)

    def between(self, first: int, last: int) -> list[File]:
        """Return the files that may hold offsets first..last."""
        return [file for file in self.files if file.first <= last and file.last >= first]

    def gaps_between(self, first: int, last: int) -> list[tuple[int, int]]:
        """Return what is gone of first..last."""
        cut = ((max(low, first), min(high, last)) for low, high in self.gaps)
        return [(low, high) for low, high in cut if low <= high]

    def with_more(
        self, last: int, files: Iterable[File], gaps: Iterable[tuple[int, int]]
    ) -> Manifest:
        """Return the next version: everything up to ``last`` is in these files, too, or gone."""
        more = sorted(files, key=lambda file: (file.first, file.path))
        return msgspec.structs.replace(
            self,
            format=FORMAT if any(file.headed for file in more) else self.format,
            version=self.version + 1,
            last=last,
            gaps=_joined([*self.gaps, *gaps]),
            files=(*self.files, *more),
        )

    def check_stream(self, shown: str, created: int, last: int) -> None:
        """Refuse a log that this is not the history of; ask the log after the manifest was read.

        Raises ArchiveMismatch.
        """
        if created != self.created:
            raise ArchiveMismatch(
                shown, self.stream, "the stream was deleted and written anew since"
            )
        if last < self.last:
            raise ArchiveMismatch(
                shown, self.stream, f"it ends at {self.last}, the log at {last}: the log is older"
            )


@dataclass(frozen=True, slots=True)
class Archive:
    """The archive of one stream at a place, as a local path or a URI that pyarrow.fs opens."""

    place: str = field(repr=False)
    stream: str

    @property
    def directory(self) -> Directory:
        """The directory of the stream."""
        return open_directory(self.place, self.stream)

    def load(self) -> Manifest | None:
        """Return the newest version; None when nothing was archived.

        Raises ArchiveDamaged, FormatTooNew.

        Lists a folder, and reads the version unless this process has read it before.
        """
        directory = self.directory
        while versions := _versions(directory):
            newest = versions[-1]
            known = _read.get(self)
            if known is not None and known[0] == newest:
                return known[1]
            if (data := directory.read(f"{_FOLDER}/{newest.name}")) is not None:
                manifest = _decode(data, directory, newest.name, self.stream)
                _read[self] = (newest, manifest)
                return manifest
            # Many newer versions were made since the listing, and this one was removed.
        return None

    def require(self) -> Manifest:
        """Read the newest version; raises UnknownArchive, ArchiveDamaged."""
        manifest = self.load()
        if manifest is None:
            raise UnknownArchive(self.directory.shown, self.stream)
        return manifest

    def versions(self) -> Iterator[tuple[str, Manifest | ArchiveDamaged | ArchiveMismatch]]:
        """Read every version anew, the newest first: its name, and its content or its fault.

        Raises FormatTooNew.
        """
        directory = self.directory
        for version in reversed(_versions(directory)):
            # A version that was removed since the listing is one of the oldest.
            if (data := directory.read(f"{_FOLDER}/{version.name}")) is not None:
                try:
                    yield version.name, _decode(data, directory, version.name, self.stream)
                except (ArchiveDamaged, ArchiveMismatch) as error:
                    yield version.name, error

    @staticmethod
    def is_version(path: str) -> bool:
        """Return whether a path below the folder of a stream is that of a version."""
        folder, _, name = path.partition("/")
        return folder == _FOLDER and _VERSION.fullmatch(name) is not None

    def commit(self, manifest: Manifest) -> None:
        """Make a version the newest; raises ArchiveTaken when its number is taken.

        The files that it names must exist. All readers see it when this returns.
        """
        directory = self.directory
        if not directory.create(_name(manifest.version), _encode(manifest)):
            raise ArchiveTaken(directory.shown, self.stream)
        for old in _versions(directory)[:-_KEPT]:
            directory.remove(f"{_FOLDER}/{old.name}")


# The newest version that this process has read of each archive, and the file it was.
_read: dict[Archive, tuple[ListedFile, Manifest]] = {}


def _versions(directory: Directory) -> list[ListedFile]:
    """Return the versions that are there, the newest last; other files are not ours."""
    return [one for one in directory.listing(_FOLDER) if _VERSION.fullmatch(one.name)]


def _name(version: int) -> str:
    return f"{_FOLDER}/{version:010d}.json"


def _encode(manifest: Manifest) -> pa.Buffer:
    """Encode a version as two lines of JSON; the second has the checksum of the first."""
    body = msgspec.json.encode(manifest)
    return pa.py_buffer(body + b'\n{"crc32":%d}\n' % crc32(body))


def _decode(data: bytes, directory: Directory, name: str, stream: str) -> Manifest:
    body, _, rest = data.partition(b"\n")
    if rest != b'{"crc32":%d}\n' % crc32(body):
        raise ArchiveDamaged(directory.shown, f"{_FOLDER}/{name}", "its checksum is wrong")
    found: dict[str, object] = msgspec.json.decode(body)
    if int(str(found["format"])) > FORMAT:
        what = f"the archive of stream {stream!r} at {directory.shown}"
        raise FormatTooNew(what, int(str(found["format"])), FORMAT)
    manifest = msgspec.convert(found, Manifest, strict=False)
    if manifest.stream != stream:
        raise ArchiveMismatch(
            directory.shown, stream, f"it holds the history of {manifest.stream!r}"
        )
    for file in manifest.files:
        parts = file.path.split("/")
        if not _INSIDE.fullmatch(file.path) or ".." in parts or "" in parts:
            raise ArchiveDamaged(
                directory.shown,
                f"{_FOLDER}/{name}",
                f"it names {file.path!r}, which does not lie in the archive",
            )
    return manifest


def _joined(gaps: list[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    """Return gaps in order, neighbours joined."""
    joined: list[tuple[int, int]] = []
    for low, high in sorted(gaps):
        if joined and low <= joined[-1][1] + 1:
            joined[-1] = (joined[-1][0], max(high, joined[-1][1]))
        else:
            joined.append((low, high))
    return tuple(joined)
