"""Scrubbing archives: every file of every version is there, as it was written, as it is recorded.

All bytes are read and compared with the digest in the name of their file; all pages with their
checksums; all offsets and times with the manifest. Files never change, and a version names only
files that are there; so an archive that is written to meanwhile raises no false alarm.
"""

from __future__ import annotations

import hashlib
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.fs as pafs
import pyarrow.parquet as pq

from headwater.errors import ArchiveDamaged, InvalidInput, SparkError, UnknownArchive
from headwater.log.node import MAP, SCHEMA
from headwater.spark.archives.manifest import (
    LEFT_S,
    Archive,
    Directory,
    File,
    Manifest,
    archived_streams,
    open_directory,
    safe_place,
)
from headwater.spark.archives.reading import GROUP_ROWS, Wanted, cut_offsets, overlapping, scan
from headwater.store.scrubbing import ScrubLedger, ScrubPace, ScrubProgress, ScrubReport

CHUNK_BYTES: Final = 1024 * 1024
_BACKUP: Final = "bring it back from a backup"
_LOST: Final = "bring the file back from a backup; its other offsets can be read and restored"
_AGAIN: Final = "bring the manifest back from a backup, or archive to another place"
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
    directory = open_directory(archive.place, archive.stream)
    # The listing comes first: what a version names that is made after it is no leftover.
    old = _old_files(directory)
    newest: Manifest | None = None
    trusted = True
    for name, found in archive.versions():
        if isinstance(found, SparkError):
            why = found.why if isinstance(found, ArchiveDamaged) else str(found)
            cure = f"remove it: {_AGAIN}" if newest is None else "remove it: a newer one is whole"
            ledger.found(f"manifest {name}", "a version of the manifest", why, cure)
            trusted = trusted and newest is not None
        elif newest is None:
            newest = found
            _check_manifest(name, found, ledger)
        yield
    if newest is not None:
        yield from _check_files(directory, newest, ledger)
    if trusted:
        named = {file.path for file in newest.files} if newest else set()
        for path in sorted(old - named):
            ledger.found(f"file {path}", "a file that the manifest names", "a leftover", _LEFTOVER)
        yield


def _old_files(directory: Directory) -> set[str]:
    """Return the files, versions aside, that no archiver which still runs has written."""
    selector = pafs.FileSelector(directory.path, allow_not_found=True, recursive=True)
    found = {
        one.path[len(directory.path) + 1 :]
        for one in directory.filesystem.get_file_info(selector)
        if one.type == pafs.FileType.File and time.time() - (one.mtime_ns or 0) / 1e9 > LEFT_S
    }
    return {path for path in found if not Archive.is_version(path)}


def _check_manifest(name: str, manifest: Manifest, ledger: ScrubLedger) -> None:
    """Check that what a version says does not contradict itself."""

    def wrong(what: str, expected: object, found: object) -> None:
        ledger.found(f"manifest {name}, {what}", expected, found, _AGAIN)

    if int(name.partition(".")[0]) != manifest.version:
        wrong("version", int(name.partition(".")[0]), manifest.version)
    for low, high in manifest.gaps:
        if not 1 <= low <= high <= manifest.last:
            wrong("gaps", f"offsets within 1-{manifest.last}", f"{low}-{high}")
    for (_, high), (low, _) in pairwise(manifest.gaps):
        if low <= high:
            wrong("gaps", f"a gap behind {high}", f"one that begins at {low}")
    for path, times in Counter(file.path for file in manifest.files).items():
        if times > 1:
            wrong(f"file {path}", "named once", f"named {times} times")
    for file in manifest.files:
        if not 1 <= file.first <= file.last <= manifest.last:
            wrong(f"file {file.path}", f"offsets within 1-{manifest.last}", _span(file))


def _span(file: File) -> str:
    return f"{file.first}-{file.last}"


# ── Files ────────────────────────────────────────────────────────────────────────────────────────


def _check_files(directory: Directory, manifest: Manifest, ledger: ScrubLedger) -> Iterator[None]:
    for together in overlapping(manifest.files):
        before = len(ledger.defects) + ledger.more
        for file in together:
            yield from _check_file(directory, manifest, file, ledger)
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
    directory: Directory, manifest: Manifest, file: File, ledger: ScrubLedger
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
    yield from _check_rows(pa.py_buffer(data), manifest, file, ledger)
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
        first, last = offsets[0].as_py(), offsets[-1].as_py()
        rising = pc.all(pc.greater(offsets.slice(1), offsets.slice(0, len(offsets) - 1))).as_py()
        self.ordered = self.ordered and first > self.last and rising is not False
        self.first, self.last = self.first or first, last
        self.rows += batch.num_rows
        times = pc.min_max(batch.column("time").cast(pa.int64())).as_py()
        known = self.min_time_ms, self.max_time_ms
        self.min_time_ms = min(times["min"], times["min"] if known[0] is None else known[0])
        self.max_time_ms = max(times["max"], times["max"] if known[1] is None else known[1])


def _check_rows(
    data: pa.Buffer, manifest: Manifest, file: File, ledger: ScrubLedger
) -> Iterator[None]:
    """Read all rows of a file and compare them with what is recorded of it."""
    place = f"file {file.path}"
    try:
        parquet = pq.ParquetFile(pa.BufferReader(data), page_checksum_verification=True)
        schema = SCHEMA.append(MAP) if file.headed else SCHEMA
        if not parquet.schema_arrow.equals(schema):
            columns = ", ".join(parquet.schema_arrow.names)
            ledger.found(place, f"columns {', '.join(schema.names)}", columns, _BACKUP)
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
                    _check_gaps(batch, manifest, place, ledger)
                yield
        except (pa.ArrowException, OSError) as error:
            whole = False
            span = parquet.metadata.row_group(group).column(0).statistics
            lost = f", offsets {span.min}-{span.max}" if span and span.has_min_max else ""
            ledger.found(f"{place}{lost}", "readable pages", error, _LOST)
    if not seen.ordered:
        ledger.found(place, "offsets in order, each once", "others", _BACKUP)
    elif whole:
        for name in ("rows", "first", "last", "min_time_ms", "max_time_ms"):
            if getattr(file, name) != getattr(seen, name):
                expected, found = getattr(file, name), getattr(seen, name)
                ledger.found(f"{place}, {name}", expected, found, _AGAIN)


def _check_gaps(batch: pa.RecordBatch, manifest: Manifest, place: str, ledger: ScrubLedger) -> None:
    offsets = batch.column("offset")
    for low, high in manifest.gaps_between(offsets[0].as_py(), offsets[-1].as_py()):
        if rows := cut_offsets(batch, low, high).num_rows:
            ledger.found(f"{place}, offsets {low}-{high}", "a gap", f"{rows} messages", _AGAIN)
