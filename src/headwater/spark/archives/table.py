"""Contents as a Delta table: where it lies, which offsets it holds, and in which files.

    stream-<name>/_delta_log/00000000000000000007.json     the seventh commit
    stream-<name>/day=2030-01-31/...parquet                what commits name; files that none names
                                                           are left over from a run that died

A table holds the history of one stream. Its configuration says of which: its name, and when it was
created, as a stream that was deleted and written anew is another one. Each commit adds files, and
the last offset that is archived since then, as the version of the application transaction
``headwater``; offsets that were evicted before they could be archived are transactions of the same
commit. So files, position and gaps change together, and of two archivers that go on from one
position one wins. Whatever reads Delta tables reads this one: it asks for reader version 1.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import json
import os
import re
import secrets
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import parse_qsl, unquote, urlsplit, urlunsplit

import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq

from headwater.errors import (
    ArchiveDamaged,
    ArchiveMismatch,
    ArchiveTaken,
    FormatTooNew,
    InvalidInput,
    UnknownArchive,
)
from headwater.kernel.packaging import extra_needed
from headwater.log.keys import MAX_OFFSET

if TYPE_CHECKING:
    from deltalake import DeltaTable
    from deltalake.transaction import AddAction

# ── Place ─────────────────────────────────────────────────────────────────────────────────────────
# Where an archive lies: a directory of this machine, or of any file system that pyarrow knows.
#
# An archive has a directory for each stream, ``stream-<name>``. Files are written atomically: under
# another name first, which is removed when that fails; what a writer left who was killed, the next
# one removes after a day.


# What is spelled by its bytes, rides/0 as rides@2F0: clients of object stores disagree about most
# other signs, the percent sign first, and readers take what is before an equals sign for a column.
_ESCAPED = re.compile(rb"[^\w.-]|^\.", re.ASCII)
_MAX_NAME_BYTES = 255
_NEW = ".new-"
_PREFIX = "stream-"
# No file takes that long to write: whoever wrote one that is older was killed.
LEFT_S = 24 * 3600.0


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
    escaped = _ESCAPED.sub(lambda sign: b"@%02X" % ord(sign[0]), stream.encode())
    name = _PREFIX + escaped.decode()
    if len(name.encode()) > _MAX_NAME_BYTES:
        raise InvalidInput(
            f"the name of stream {stream!r} is too long for a directory; "
            "archives take names of about 80 characters, more when most are letters and digits"
        )
    return name


class Directory:
    """The directory of one stream's archive; ``name`` is always relative to it."""

    def __init__(self, filesystem: pafs.FileSystem, path: str, shown: str) -> None:
        self.filesystem = filesystem
        self.path = path
        self.shown = shown

    def within(self, name: str) -> str:
        """Return the full path of a file."""
        return f"{self.path}/{name}"

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

    def _make_folder(self, name: str) -> None:
        self.filesystem.create_dir(self.within(name).rpartition("/")[0], recursive=True)


class LocalDirectory(Directory):
    """A directory of this machine: files are durable."""

    def __init__(self, filesystem: pafs.FileSystem, path: str, shown: str) -> None:
        super().__init__(filesystem, path, shown)
        self._tidied: set[Path] = set()

    def put(self, name: str, data: pa.Buffer) -> None:
        """See Directory; on disk when this returns."""
        self._make_folder(name)
        beside = self._beside(name)
        try:
            with beside.open("wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            beside.replace(self.within(name))
        except BaseException:
            # A full disk: what is there of it is in the way of the next attempt.
            beside.unlink(missing_ok=True)
            raise
        _sync(beside.parent)

    def _beside(self, name: str) -> Path:
        """Return a name of nobody else beside a file, to write it under first."""
        folder = Path(self.within(name)).parent
        if folder not in self._tidied:
            self._tidied.add(folder)
            _tidy(folder)
        return folder / f"{_NEW}{secrets.token_hex(8)}"

    def _make_folder(self, name: str) -> None:
        folder = Path(self.within(name)).parent
        missing = [one for one in (folder, *folder.parents) if not one.exists()]
        for one in reversed(missing):
            one.mkdir(exist_ok=True)
            _sync(one.parent)


def _tidy(folder: Path) -> None:
    """Remove files that writers left behind in a folder who were killed."""
    for left in folder.glob(f"{_NEW}*"):
        with contextlib.suppress(OSError):
            if time.time() - left.stat().st_mtime > LEFT_S:
                left.unlink()


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
    there = open_directory(place, "any")
    root = there.path.rpartition("/")[0]
    found = there.filesystem.get_file_info(pafs.FileSelector(root or "/", allow_not_found=True))
    names = [one.base_name[len(_PREFIX) :] for one in found if one.base_name.startswith(_PREFIX)]
    return sorted(unquote(name.replace("@", "%")) for name in names)


# ── Table ─────────────────────────────────────────────────────────────────────────────────────────


SCHEMA: Final = pa.schema(
    [
        pa.field("offset", pa.int64(), nullable=False),
        pa.field("tag", pa.string(), nullable=False),
        pa.field("value", pa.binary(), nullable=False),
        pa.field("time", pa.timestamp("us", "UTC"), nullable=False),
        # Null where no message of a file has any.
        pa.field("headers", pa.map_(pa.string(), pa.binary())),
        pa.field("day", pa.date32(), nullable=False),
    ]
)
# The versions of the protocol that tables are written in, which every reader of Delta has.
_READER, _WRITER = 1, 2
# The transaction whose version is the last archived offset, and those of gaps.
_POSITION = "headwater"
_GAPS = "headwater.gaps"
_STREAM, _CREATED = "headwater.stream", "headwater.created"
_TOPIC, _PARTITIONS = "headwater.topic", "headwater.partitions"
# Paths of the files of an archive: relative ones, below the folder of their stream.
_INSIDE = re.compile(r"[\w.=/-]+")
_LOG = "_delta_log"
# Statistics are JSON, whose dates end there.
_LAST_TIME_MS = 253_402_300_799_999


@dataclass(frozen=True, slots=True)
class File:
    """One Parquet file: the first and last offset of its rows, and the span of their times.

    A ``headed`` one may have headers. Times that are not known span all times.
    """

    path: str
    first: int
    last: int
    rows: int
    bytes: int
    min_time_ms: int = 0
    max_time_ms: int = MAX_OFFSET
    headed: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Contents:
    """What an archive holds at one version of its table; version -1 is before its first commit.

    ``files`` are in order of their first offsets. ``gaps`` are the offsets that were evicted before
    they could be archived; offsets up to ``last`` that are in neither were compacted away.
    ``topic`` and ``partitions`` are there when the stream is a partition of a topic.
    """

    version: int = -1
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

    def check_stream(self, shown: str, created: int, last: int) -> None:
        """Refuse a log that this is not the history of; ask the log after the table was read.

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

    def load(self) -> Contents | None:
        """Return what the newest version holds; None when nothing was archived.

        Raises ArchiveDamaged, ArchiveMismatch, FormatTooNew. It reads a checkpoint of the log and
        the commits after it.
        """
        with extra_needed("tier"):
            from deltalake import DeltaTable
            from deltalake.exceptions import DeltaError, TableNotFoundError

        directory = self.directory
        try:
            table = DeltaTable(_uri(directory, self.place), storage_options=_options(self.place))
            return self._history(table, directory)
        except TableNotFoundError:
            return None
        except (DeltaError, pa.ArrowException) as error:
            raise ArchiveDamaged(directory.shown, _LOG, _first_line(error)) from error

    def require(self) -> Contents:
        """Read the newest version; raises UnknownArchive, ArchiveDamaged."""
        contents = self.load()
        if contents is None:
            raise UnknownArchive(self.directory.shown, self.stream)
        return contents

    def commit(
        self,
        before: Contents,
        last: int,
        files: Iterable[File] = (),
        gaps: Sequence[tuple[int, int]] = (),
    ) -> Contents:
        """Add files, gaps and all offsets up to ``last`` to a version; returns the new one.

        The files must exist. All readers see them when this returns, and the commit is on disk.
        Raises ArchiveTaken when another archiver went on from that version.
        """
        with extra_needed("tier"):
            from deltalake import CommitProperties, DeltaTable, Transaction
            from deltalake.exceptions import CommitFailedError, DeltaError

        directory, files = self.directory, list(files)
        version = before.version
        try:
            if version < 0:
                version = self._create(before, directory)
            where, options = _uri(directory, self.place), _options(self.place)
            table = DeltaTable(where, version=version, storage_options=options)
            known = table.transaction_version(_GAPS) or 0
            steps = [Transaction(_POSITION, last), Transaction(_GAPS, known + len(gaps))]
            for number, (low, high) in enumerate(gaps, known):
                ends = _ends_of_gap(number)
                steps += [Transaction(ends[0], low), Transaction(ends[1], high)]
            table.create_write_transaction(
                [_added(file) for file in files],
                "append",
                SCHEMA,
                ["day"],
                commit_properties=CommitProperties(app_transactions=steps),
            )
        except CommitFailedError:
            # An answer may be lost after its commit: files of this content are then there already.
            return self._ours(last, files)
        except DeltaError as error:
            raise ArchiveDamaged(directory.shown, _LOG, _first_line(error)) from error
        return self._ours(last, files)

    def leftovers(self, older_s: float) -> list[str]:
        """Return the files below the directory that no commit names, unless they are young."""
        from deltalake import DeltaTable

        uri, options = _uri(self.directory, self.place), _options(self.place)
        return DeltaTable(uri, storage_options=options).vacuum(
            int(older_s / 3600), dry_run=True, enforce_retention_duration=False, full=True
        )

    def flush(self) -> None:
        """Flush the commits to disk, as whoever made them may have died before it did."""
        directory = self.directory
        if isinstance(directory, LocalDirectory) and (log := Path(directory.within(_LOG))).is_dir():
            for commit in log.glob("*.json"):
                _sync(commit)
            _sync(log)
            _sync(log.parent)

    def _ours(self, last: int, files: list[File]) -> Contents:
        contents = self.load()
        paths = {file.path for file in contents.files} if contents else set()
        if contents is None or contents.last != last or not {file.path for file in files} <= paths:
            raise ArchiveTaken(self.directory.shown, self.stream)
        self.flush()
        return contents

    def _create(self, contents: Contents, directory: Directory) -> int:
        """Make a table without rows; of two that do so, one finds that of the other."""
        from deltalake import DeltaTable
        from deltalake.exceptions import DeltaError

        facts: dict[str, str | None] = {_STREAM: contents.stream, _CREATED: str(contents.created)}
        if contents.topic is not None:
            facts |= {_TOPIC: contents.topic, _PARTITIONS: str(contents.partitions)}
        directory.prepare()
        try:
            DeltaTable.create(
                _uri(directory, self.place),
                SCHEMA,
                partition_by=["day"],
                configuration=facts,
                storage_options=_options(self.place),
                raise_if_key_not_exists=False,
            )
        except DeltaError:
            there = self.load()
            if there is None:
                raise
            if there.created == contents.created and there.last != contents.last:
                raise ArchiveTaken(directory.shown, self.stream) from None
            there.check_stream(directory.shown, contents.created, contents.last)
            return there.version
        return 0

    def _history(self, table: DeltaTable, directory: Directory) -> Contents:
        protocol = table.protocol()
        if protocol.min_reader_version > _READER:
            what = f"the archive of stream {self.stream!r} at {directory.shown}"
            raise FormatTooNew(what, protocol.min_reader_version, _READER)
        facts = table.metadata().configuration
        if facts.get(_STREAM) != self.stream:
            of = facts.get(_STREAM)
            why = f"it holds the history of {of!r}" if of else "it is a table of something else"
            raise ArchiveMismatch(directory.shown, self.stream, why)
        partitions = facts.get(_PARTITIONS)
        ends = [_ends_of_gap(number) for number in range(table.transaction_version(_GAPS) or 0)]
        gaps = [
            (table.transaction_version(low) or 0, table.transaction_version(high) or 0)
            for low, high in ends
        ]
        return Contents(
            version=table.version(),
            stream=self.stream,
            created=int(facts[_CREATED] or 0),
            topic=facts.get(_TOPIC),
            partitions=None if partitions is None else int(partitions),
            last=table.transaction_version(_POSITION) or 0,
            gaps=_joined(gaps),
            files=tuple(_files(table, directory)),
        )


def _ends_of_gap(number: int) -> tuple[str, str]:
    """Return the transactions whose versions are the first and the last offset of a gap."""
    return f"{_GAPS}.{number}.first", f"{_GAPS}.{number}.last"


def _joined(gaps: list[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    """Return gaps in order, neighbours joined."""
    joined: list[tuple[int, int]] = []
    for low, high in sorted(gaps):
        if joined and low <= joined[-1][1] + 1:
            joined[-1] = (joined[-1][0], max(high, joined[-1][1]))
        else:
            joined.append((low, high))
    return tuple(joined)


def _uri(directory: Directory, place: str) -> str:
    """Return the name by which delta-rs finds the directory."""
    if isinstance(directory, LocalDirectory):
        return directory.path
    return f"{urlsplit(place).scheme}://{directory.path}"


def _options(place: str) -> dict[str, str]:
    """Return what a URI says to pyarrow about an object store, in the words of delta-rs.

    What a URI does not say comes from the environment, as ``AWS_REGION`` and the like.
    """
    parts = urlsplit(place)
    if parts.scheme != "s3":
        return {}
    said = dict(parse_qsl(parts.query))
    options = {"AWS_CONDITIONAL_PUT": "etag"}
    if parts.username and parts.password:
        options["AWS_ACCESS_KEY_ID"] = unquote(parts.username)
        options["AWS_SECRET_ACCESS_KEY"] = unquote(parts.password)
    if "region" in said:
        options["AWS_REGION"] = said["region"]
    if "endpoint_override" in said:
        scheme = said.get("scheme", "https")
        options["AWS_ENDPOINT_URL"] = f"{scheme}://{said['endpoint_override']}"
        options["AWS_ALLOW_HTTP"] = str(scheme == "http").lower()
    return options


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]


def _added(file: File) -> AddAction:
    """Return what a commit says of a file."""
    from deltalake.transaction import AddAction

    least: dict[str, Any] = {"offset": file.first}
    most: dict[str, Any] = {"offset": file.last}
    if file.max_time_ms <= _LAST_TIME_MS:
        least["time"], most["time"] = _iso(file.min_time_ms), _iso(file.max_time_ms)
    stats = {
        "numRecords": file.rows,
        "minValues": least,
        "maxValues": most,
        "nullCount": {"headers": 0 if file.headed else file.rows},
    }
    day = file.path.partition("/")[0].removeprefix("day=")
    now_ms = int(time.time() * 1000)
    return AddAction(file.path, file.bytes, {"day": day}, now_ms, True, json.dumps(stats))


def _iso(time_ms: int) -> str:
    moment = dt.datetime(1970, 1, 1, tzinfo=dt.UTC) + dt.timedelta(milliseconds=time_ms)
    return moment.isoformat(timespec="milliseconds")


def _files(table: DeltaTable, directory: Directory) -> list[File]:
    """Return the files of a table in order; footers are read where others left no statistics."""
    actions = pa.table(table.get_add_actions(flatten=True))

    def facts(name: str) -> list[Any]:
        if name not in actions.column_names:
            return [None] * actions.num_rows
        column = actions.column(name)
        # Beyond the year 9999 a time is no datetime.
        if pa.types.is_timestamp(column.type):
            column = column.cast(pa.int64())
        values: list[Any] = column.to_pylist()
        return values

    columns = ("path", "min.offset", "max.offset", "num_records", "size_bytes")
    times = ("min.time", "max.time", "null_count.headers")
    files = []
    for path, *measured, size, earliest, latest, unheaded in zip(
        *map(facts, (*columns, *times)), strict=True
    ):
        parts = path.split("/")
        if not _INSIDE.fullmatch(path) or ".." in parts or "" in parts:
            why = f"it names {path!r}, which does not lie in the archive"
            raise ArchiveDamaged(directory.shown, _LOG, why)
        first, last, rows = _measured(directory, path) if None in measured else measured
        span = (0, MAX_OFFSET)
        if None not in (earliest, latest):
            span = (earliest // 1000, latest // 1000)
        files.append(File(path, first, last, rows, size, *span, headed=unheaded != rows))
    return sorted(files, key=lambda file: (file.first, file.path))


def _measured(directory: Directory, path: str) -> tuple[int, int, int]:
    """Return the first and the last offset of a file, and its rows, by its footer."""
    with directory.open(path) as opened:
        footer = pq.ParquetFile(opened).metadata
    groups = [footer.row_group(place) for place in range(footer.num_row_groups)]
    spans = [span for group in groups if (span := statistics_of(group)["offset"]) is not None]
    if not spans or len(spans) < len(groups):
        raise ArchiveDamaged(directory.shown, path, "it has no statistics of its offsets")
    return min(span.min for span in spans), max(span.max for span in spans), footer.num_rows


def statistics_of(group: pq.RowGroupMetaData) -> dict[str, pq.Statistics | None]:
    """Return the statistics of the columns of a row group by name; None of one without."""
    columns = [group.column(place) for place in range(group.num_columns)]
    return {column.path_in_schema: column.statistics for column in columns}
