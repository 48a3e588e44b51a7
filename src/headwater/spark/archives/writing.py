"""What a task of the archiver does: it writes a range of a stream to Parquet, as Arrow all the way.

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
from headwater.spark.archives import parquet
from headwater.spark.archives.manifest import Archive, File

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
            files += parquet.write_files(directory, table.slice(0, PIECE_ROWS))
            held = table.slice(PIECE_ROWS).to_batches()
            rows = max(rows - PIECE_ROWS, 0)
            size = sum(rest.nbytes for rest in held)
    if held:
        files += parquet.write_files(directory, pa.Table.from_batches(held))
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
