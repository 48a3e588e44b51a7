"""What a task of a restore does: archived messages into a stream, in order and each once.

A batch has the last offset of its source as its sequence, and batches are always cut at the same
offsets. So a task that is repeated, or that goes on where another died, asks the target how far it
is; and no batch is written twice.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import pyarrow as pa

from headwater.client import Headwater
from headwater.spark.archives.manifest import Archive, File
from headwater.spark.archives.parquet import Wanted
from headwater.spark.archives.reading import ALL, WITH_HEADERS, scan

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
