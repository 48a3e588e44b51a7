"""What tasks do with archives: write a range of a stream to Parquet, or restore one.

Memory stays within a few times ``PIECE_BYTES``, whatever the range and the size of its messages.
What is evicted before it was read is reported as an exact gap. A repeat writes the same files.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import pyarrow as pa

from headwater.client import Headwater
from headwater.errors import ArchiveMismatch
from headwater.log.handles import StreamHandle
from headwater.log.reading import scan_part
from headwater.spark.archives import reading
from headwater.spark.archives.reading import ALL, WITH_HEADERS, Wanted, scan
from headwater.spark.archives.table import Archive, File

# ── Writing ───────────────────────────────────────────────────────────────────────────────────────


PIECE_ROWS = 512_000
PIECE_BYTES = 64 * 1024 * 1024


class WrittenRange(NamedTuple):
    """A range of a stream that is in files now, except for gaps that were evicted too early."""

    first: int
    last: int
    files: list[File]
    gaps: list[tuple[int, int]]


def write_range(
    hw: Headwater, archive: Archive, created: int, first: int, last: int
) -> WrittenRange:
    """Write the messages first..last of a stream to files of its archive.

    Raises ArchiveMismatch when the stream is another one than that of ``created``.
    """
    directory = archive.directory
    gaps: list[tuple[int, int]] = []
    files: list[File] = []
    held: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in _messages(hw, archive, created, (first, last), gaps):
        held.append(batch)
        rows += batch.num_rows
        size += batch.nbytes
        while rows >= PIECE_ROWS or size >= PIECE_BYTES:
            # A full piece, wherever batches end: the same range makes the same pieces.
            table = pa.Table.from_batches(held)
            files += reading.write_files(directory, table.slice(0, PIECE_ROWS))
            held = table.slice(PIECE_ROWS).to_batches()
            rows = max(rows - PIECE_ROWS, 0)
            size = sum(rest.nbytes for rest in held)
    if held:
        files += reading.write_files(directory, pa.Table.from_batches(held))
    return WrittenRange(first, last, files, gaps)


def _messages(
    hw: Headwater,
    archive: Archive,
    created: int,
    span: tuple[int, int],
    gaps: list[tuple[int, int]],
) -> Iterator[pa.RecordBatch]:
    """Yield the messages of a range, and add what was evicted or lost of it to ``gaps``."""
    stream = StreamHandle(archive.stream, set())
    at, last = span
    while at and at <= last:
        part = hw.store.run(scan_part(stream, at, last + 1, headers=True, whole=False))
        if part.created != created:
            raise ArchiveMismatch(
                archive.directory.shown, archive.stream, "the stream was deleted or written anew"
            )
        if part.first > at:
            gaps.append((at, min(part.first - 1, last)))
        gaps += part.missing
        yield from part.pieces
        at = part.next


# ── Restoring ─────────────────────────────────────────────────────────────────────────────────────
# What a task of a restore does: archived messages into a stream, in order and each once.
#
# A batch has the last offset of its source as its sequence, and batches are always cut at the same
# offsets. So a task that is repeated, or that goes on where another died, asks the target how far
# it is; and no batch is written twice.


BATCH_ROWS = 50_000
BATCH_BYTES = 16 * 1024 * 1024


class MovedRange(NamedTuple):
    """Messages ``first`` to ``last`` of an archive, which have ``to_first`` to ``to_last`` now.

    Where the lengths differ, there were gaps of compaction or eviction, which are closed.
    """

    stream: str
    first: int
    last: int
    to_first: int
    to_last: int


class ArchivePiece(NamedTuple):
    """What one task restores: first..last of an archive, out of these files, into a stream."""

    archive: Archive
    files: list[File]
    first: int
    last: int
    into: str
    producer: str


def restore_piece(hw: Headwater, piece: ArchivePiece) -> list[MovedRange]:
    """Append the messages of a piece that the target lacks; returns their new offsets."""
    stream = hw.stream(piece.into)
    done = stream.newest_sequence(piece.producer) or 0
    directory = piece.archive.directory
    files = [file for file in piece.files if file.last > done]
    moved: list[MovedRange] = []
    columns = WITH_HEADERS if any(file.headed for file in files) else ALL
    for batch in _batches(scan(directory, files, Wanted(piece.first, piece.last), columns)):
        offsets = batch.column("offset")
        first, last = offsets[0].as_py(), offsets[-1].as_py()
        if last > done:
            there = stream.append(
                batch.drop_columns("offset"), producer=piece.producer, sequence=last
            )
            moved.append(MovedRange(piece.into, first, last, there.start, there.stop - 1))
    return moved


def _batches(rows: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Cut what was read into batches of a size that a stream accepts."""
    for batch in rows:
        too_large = batch.nbytes > BATCH_BYTES and batch.num_rows > 1
        if batch.num_rows > BATCH_ROWS or too_large:
            half = batch.num_rows // 2
            yield from _batches(iter([batch.slice(0, half), batch.slice(half)]))
        else:
            yield batch


def joined(moves: list[MovedRange]) -> list[MovedRange]:
    """Return ranges joined where neighbours moved by the same distance and have no gaps."""
    found: list[MovedRange] = []
    for move in moves:
        before = found[-1] if found else None
        if (
            before is not None
            and before.stream == move.stream
            and before.last + 1 == move.first
            and before.to_last + 1 == move.to_first
            and before.last - before.first == before.to_last - before.to_first
            and move.last - move.first == move.to_last - move.to_first
        ):
            found[-1] = before._replace(last=move.last, to_last=move.to_last)
        else:
            found.append(move)
    return found
