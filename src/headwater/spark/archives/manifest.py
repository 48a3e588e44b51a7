"""The manifest: which offsets of a stream an archive holds, in which files, and what is gone.

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

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from zlib import crc32

import msgspec
import pyarrow as pa

from headwater.errors import (
    ArchiveDamaged,
    ArchiveMismatch,
    ArchiveTaken,
    FormatTooNew,
    UnknownArchive,
)
from headwater.spark.archives.place import Directory, ListedFile, open_directory

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
