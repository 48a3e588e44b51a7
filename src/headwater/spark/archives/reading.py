"""Reading an archive: the rows of any range in order of offset, and the offset of a time.

Files of one run follow each other, unless messages carry times of their own that go back and forth
over the days: then files of several days hold every other offset, and are merged.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from headwater.spark.archives.manifest import File, Manifest
from headwater.spark.archives.parquet import Wanted, cut_offsets, read_file
from headwater.spark.archives.place import Directory

ALL = ("offset", "tag", "value", "time")
WITH_HEADERS = (*ALL, "headers")


def scan(
    directory: Directory, files: Sequence[File], wanted: Wanted, columns: Sequence[str] = ALL
) -> Iterator[pa.RecordBatch]:
    """Yield the wanted offsets in order; rows of other times and tags may be among them.

    ``columns`` must hold offset; what it leaves out is not read. Memory: one row group of each
    file that overlaps with others. Raises ArchiveDamaged.
    """
    for together in overlapping([file for file in files if wanted.in_file(file)]):
        parts = [read_file(directory, file, wanted, columns) for file in together]
        for batch in parts[0] if len(parts) == 1 else _merged(parts):
            if batch.num_rows:
                yield batch


def overlapping(files: Sequence[File]) -> list[list[File]]:
    """Return groups of files whose offsets overlap, in order."""
    groups: list[list[File]] = []
    end = 0
    for file in sorted(files, key=lambda file: file.first):
        if file.first > end:
            groups.append([])
        groups[-1].append(file)
        end = max(end, file.last)
    return groups


def _merged(parts: list[Iterator[pa.RecordBatch]]) -> Iterator[pa.RecordBatch]:
    """Merge parts that are each in order, up to the offset that all of them have reached."""
    heads: dict[int, pa.RecordBatch] = {}
    waiting = set(range(len(parts)))
    while True:
        for place in sorted(waiting):
            if (rows := next((b for b in parts[place] if b.num_rows), None)) is not None:
                heads[place] = rows
        if not heads:
            return
        border = min(rows.column("offset")[-1].as_py() for rows in heads.values())
        taken = [cut_offsets(rows, 0, border) for rows in heads.values()]
        yield pa.concat_batches(taken).sort_by("offset")
        heads = {
            place: rows.slice(cut.num_rows)
            for (place, rows), cut in zip(heads.items(), taken, strict=True)
        }
        waiting = {place for place, rows in heads.items() if not rows.num_rows}
        heads = {place: rows for place, rows in heads.items() if rows.num_rows}


def offset_at(directory: Directory, manifest: Manifest, time_ms: int) -> int | None:
    """Return the offset of the first archived message at or after a time; None if there is none."""
    found: int | None = None
    wanted = Wanted(since_ms=time_ms)
    for file in manifest.files:
        if found is not None and file.first > found:
            break
        if wanted.in_file(file):
            for batch in read_file(directory, file, wanted, ("offset", "time")):
                late = pc.greater_equal(batch.column("time").cast(pa.int64()), time_ms)
                if (place := pc.index(late, True).as_py()) >= 0:
                    offset = batch.column("offset")[place].as_py()
                    found = offset if found is None else min(found, offset)
                    break
    return found
