"""Scrubbing archives: every file of every version is there, as it was written, as it is recorded.

All bytes are read and compared with the digest in the name of their file; all pages with their
checksums; all offsets and times with the table. Files never change, and a commit names only files
that are there; so an archive that is written to meanwhile raises no false alarm.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.fs as pafs
import pyarrow.parquet as pq

from headwater.errors import ArchiveDamaged, ArchiveMismatch, InvalidInput, UnknownArchive
from headwater.log.node import SCHEMA
from headwater.spark.archives.reading import (
    GROUP_ROWS,
    WITH_HEADERS,
    Wanted,
    cut_offsets,
    is_ours,
    overlapping,
    scan,
)
from headwater.spark.archives.table import (
    LEFT_S,
    Archive,
    Contents,
    Directory,
    File,
    archived_streams,
    safe_place,
    statistics_of,
)
from headwater.store.scrubbing import ScrubLedger, ScrubPace, ScrubProgress, ScrubReport

CHUNK_BYTES: Final = 1024 * 1024
_BACKUP: Final = "bring it back from a backup"
_LOST: Final = "bring the file back from a backup; its other offsets can be read and restored"
_AGAIN: Final = "bring the table back from a backup, or archive to another place"
_LEFTOVER: Final = "remove it while no archiver runs; no reader of the archive looks at it"


def scrub_archives(
    place: str,
    streams: Collection[str] = (),
    *,
    rate_mb_s: float | None = None,
    progress: Callable[[ScrubProgress], object] | None = None,
    stop: Callable[[], bool] | None = None,
) -> ScrubReport:
    """Read all archives at a place, or those of these streams; report what is wrong with them.

    It changes nothing. Raises UnknownArchive for a stream that has none, InvalidInput for a place
    without any, FormatTooNew, and ArchiveDamaged when a file can be neither read nor judged.
    """
    pace = ScrubPace(rate_mb_s, progress, stop, time.monotonic)
    there = archived_streams(place)
    if not there:
        shown = safe_place(place)
        raise InvalidInput(f"there are no archives at {shown!r}; name where one was written to")
    for name in streams:
        if name not in there:
            raise UnknownArchive(safe_place(place), name)
    for name in streams or there:
        pace.begin("archive", name)
        for _ in _check_archive(Archive(place, name), pace.ledger):
            for pause_s in pace.pauses():
                time.sleep(pause_s)
            if pace.stopped:
                return pace.report(complete=False)
    return pace.report(complete=True)


def _check_archive(archive: Archive, ledger: ScrubLedger) -> Iterator[None]:
    """Check one archive, in short steps."""
    ledger.begin("archive", archive.stream)
    try:
        # What is listed before the table is read, and was not written lately, is in it or left.
        old = _old_files(archive.directory)
        contents = archive.load()
        left = old if contents is None else archive.leftovers(LEFT_S)
    except (ArchiveDamaged, ArchiveMismatch) as error:
        why = error.why if isinstance(error, ArchiveDamaged) else str(error)
        ledger.found("its table", "commits that can be read", why, _AGAIN)
        return
    yield
    if contents is not None:
        _check_contents(contents, ledger)
        yield from _check_files(archive.directory, contents, ledger)
    for path in sorted(left):
        ledger.found(f"file {path}", "a file that a commit names", "a leftover", _LEFTOVER)
    yield


def _old_files(directory: Directory) -> list[str]:
    """Return the files that no archiver which still runs has written."""
    selector = pafs.FileSelector(directory.path, allow_not_found=True, recursive=True)
    return [
        listed.path[len(directory.path) + 1 :]
        for listed in directory.filesystem.get_file_info(selector)
        if listed.type == pafs.FileType.File and time.time() - (listed.mtime_ns or 0) / 1e9 > LEFT_S
    ]


def _check_contents(contents: Contents, ledger: ScrubLedger) -> None:
    """Check that what the table says does not contradict itself."""
    for low, high in contents.gaps:
        if not 1 <= low <= high <= contents.last:
            within = f"offsets within 1-{contents.last}"
            ledger.found("its table, gaps", within, f"{low}-{high}", _AGAIN)
    for file in contents.files:
        if not 1 <= file.first <= file.last <= contents.last:
            within = f"offsets within 1-{contents.last}"
            ledger.found(f"its table, file {file.path}", within, _span(file), _AGAIN)


def _span(file: File) -> str:
    return f"{file.first}-{file.last}"


# ── Files ────────────────────────────────────────────────────────────────────────────────────────


def _check_files(directory: Directory, contents: Contents, ledger: ScrubLedger) -> Iterator[None]:
    for together in overlapping(contents.files):
        before = len(ledger.defects) + ledger.more
        for file in together:
            yield from _check_file(directory, contents, file, ledger)
        if len(together) > 1 and len(ledger.defects) + ledger.more == before:
            yield from _check_once(directory, together, ledger)


def _check_once(directory: Directory, files: list[File], ledger: ScrubLedger) -> Iterator[None]:
    """Check that no offset is in two of the files, whose spans overlap."""
    last = 0
    for batch in scan(directory, files, Wanted(), ("offset",)):
        offsets = batch.column("offset")
        for low, high in pairwise([last, *offsets.to_pylist()]):
            if low == high:
                paths = ", ".join(file.path for file in files if file.first <= low <= file.last)
                ledger.found(f"offset {low}", "one message", f"several, in {paths}", _BACKUP)
        last = offsets[-1].as_py()
        yield


def _check_file(
    directory: Directory, contents: Contents, file: File, ledger: ScrubLedger
) -> Iterator[None]:
    place = f"file {file.path}"
    if directory.filesystem.get_file_info(directory.within(file.path)).type != pafs.FileType.File:
        ledger.found(place, f"offsets {_span(file)}", "no file", _BACKUP)
        return
    chunks: list[bytes] = []
    try:
        with directory.open(file.path) as opened:
            while chunk := opened.read(CHUNK_BYTES):
                chunks.append(chunk)
                ledger.bytes += len(chunk)
                yield
    except OSError as error:
        raise ArchiveDamaged(directory.shown, file.path, str(error)) from error
    data = b"".join(chunks)
    if len(data) != file.bytes:
        ledger.found(place, f"{file.bytes} bytes", f"{len(data)} bytes", _BACKUP)
        return
    before = len(ledger.defects) + ledger.more
    yield from _check_rows(pa.py_buffer(data), contents, file, ledger)
    if not is_ours(file):
        return
    digest = hashlib.blake2b(data, digest_size=6).hexdigest()
    recorded = file.path.rpartition("-")[2].removesuffix(".parquet")
    if digest != recorded and len(ledger.defects) + ledger.more == before:
        ledger.found(place, f"digest {recorded}", f"digest {digest}", _BACKUP)


@dataclass(slots=True)
class _Rows:
    """What was read of a file's rows."""

    rows: int = 0
    first: int = 0
    last: int = 0
    min_time_ms: int | None = None
    max_time_ms: int | None = None
    ordered: bool = True

    def add(self, batch: pa.RecordBatch) -> None:
        offsets = batch.column("offset")
        first, last = pc.min_max(offsets).as_py().values()
        rising = pc.all(pc.greater(offsets.slice(1), offsets.slice(0, len(offsets) - 1))).as_py()
        self.ordered = self.ordered and first > self.last and rising is not False
        self.first, self.last = min(first, self.first or first), max(last, self.last)
        self.rows += batch.num_rows
        in_ms = batch.column("time").cast(SCHEMA.field("time").type)
        times = pc.min_max(in_ms.cast(pa.int64())).as_py()
        known = self.min_time_ms, self.max_time_ms
        self.min_time_ms = min(times["min"], times["min"] if known[0] is None else known[0])
        self.max_time_ms = max(times["max"], times["max"] if known[1] is None else known[1])


def _check_rows(
    data: pa.Buffer, contents: Contents, file: File, ledger: ScrubLedger
) -> Iterator[None]:
    """Read all rows of a file and compare them with what is recorded of it."""
    place = f"file {file.path}"
    try:
        parquet = pq.ParquetFile(pa.BufferReader(data), page_checksum_verification=True)
        if not {*WITH_HEADERS} <= {*parquet.schema_arrow.names}:
            columns = ", ".join(parquet.schema_arrow.names)
            ledger.found(place, f"columns {', '.join(WITH_HEADERS)}", columns, _BACKUP)
            return
    except (pa.ArrowException, OSError) as error:
        ledger.found(place, "a Parquet file", error, _BACKUP)
        return
    seen, whole = _Rows(), True
    for group in range(parquet.num_row_groups):
        try:
            for batch in parquet.iter_batches(GROUP_ROWS, row_groups=[group], use_threads=False):
                seen.add(batch)
                if seen.ordered:
                    _check_gaps(batch, contents, place, ledger)
                yield
        except (pa.ArrowException, OSError) as error:
            whole = False
            span = statistics_of(parquet.metadata.row_group(group))["offset"]
            lost = f", offsets {span.min}-{span.max}" if span and span.has_min_max else ""
            ledger.found(f"{place}{lost}", "readable pages", error, _LOST)
    if not seen.ordered and is_ours(file):
        ledger.found(place, "offsets in order, each once", "others", _BACKUP)
    elif whole:
        for name in ("rows", "first", "last", "min_time_ms", "max_time_ms"):
            if getattr(file, name) != getattr(seen, name):
                expected, found = getattr(file, name), getattr(seen, name)
                ledger.found(f"{place}, {name}", expected, found, _AGAIN)


def _check_gaps(batch: pa.RecordBatch, contents: Contents, place: str, ledger: ScrubLedger) -> None:
    offsets = batch.column("offset")
    for low, high in contents.gaps_between(offsets[0].as_py(), offsets[-1].as_py()):
        if rows := cut_offsets(batch, low, high).num_rows:
            ledger.found(f"{place}, offsets {low}-{high}", "a gap", f"{rows} messages", _AGAIN)
