"""Messages as Parquet: how a file of an archive is written, and how its rows are found.

Columns offset, tag, value, time and, where a message has some, headers (map<string, binary>), in
order of offset; zstd; row groups of 64,000 rows with the span of offsets, times and tags of each; a
checksum for each page. The path of a file has its day, its first and last offset, and a digest of
its bytes: writing the same messages again writes the same file.
"""

from __future__ import annotations

import datetime as dt
import hashlib
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from headwater.errors import ArchiveDamaged
from headwater.log.keys import MAX_OFFSET
from headwater.log.node import MAP, SCHEMA, empty_column, longest, map_column
from headwater.spark.archives.manifest import File
from headwater.spark.archives.place import Directory

GROUP_ROWS = 64_000
_LAST_DAY = (dt.date.max - dt.date(1970, 1, 1)).days
_SETTINGS = {
    "compression": "zstd",
    "use_dictionary": ["tag"],
    "column_encoding": {"offset": "DELTA_BINARY_PACKED", "time": "DELTA_BINARY_PACKED"},
    "write_statistics": ["offset", "tag", "time"],
    "sorting_columns": [pq.SortingColumn(0)],
    "write_page_checksum": True,
    "row_group_size": GROUP_ROWS,
}


def write_files(directory: Directory, table: pa.Table) -> list[File]:
    """Write messages as one file for each of their days; all are written when this returns.

    A column of headers, if there is one, is as they are stored.
    """
    days = pc.min_element_wise(table.column("time").cast(pa.date32()).cast(pa.int32()), _LAST_DAY)
    found = sorted(pc.unique(days).to_pylist())
    if len(found) == 1:
        return [_write_file(directory, found[0], table)]
    return [_write_file(directory, day, table.filter(pc.equal(days, day))) for day in found]


def _write_file(directory: Directory, day: int, table: pa.Table) -> File:
    sink = pa.BufferOutputStream()
    rows = table.select(SCHEMA.names).cast(SCHEMA)
    headed = "headers" in table.column_names and longest(table.column("headers")) > 0
    if headed:
        rows = rows.append_column(MAP, map_column(table.column("headers").to_pylist()))
    pq.write_table(rows, sink, **_SETTINGS)
    data = sink.getvalue()
    offsets = table.column("offset")
    first, last = offsets[0].as_py(), offsets[-1].as_py()
    times = pc.min_max(table.column("time").cast(pa.int64())).as_py()
    date = dt.date(1970, 1, 1) + dt.timedelta(days=day)
    digest = hashlib.blake2b(data, digest_size=6).hexdigest()
    path = f"date={date}/{first:016d}-{last:016d}-{digest}.parquet"
    directory.put(path, data)
    return File(path, first, last, table.num_rows, data.size, times["min"], times["max"], headed)


class Wanted(NamedTuple):
    """Which rows are looked for: offsets, times in milliseconds, and tags (None: any of them)."""

    first: int = 1
    last: int = MAX_OFFSET
    since_ms: int = 0
    until_ms: int = MAX_OFFSET
    tags: frozenset[str] | None = None

    def in_file(self, file: File) -> bool:
        """Return whether a file may hold such rows."""
        return (
            file.first <= self.last
            and file.last >= self.first
            and file.min_time_ms <= self.until_ms
            and file.max_time_ms >= self.since_ms
        )

    def in_group(self, group: pq.RowGroupMetaData) -> bool:
        """Return whether a row group may hold such rows; raw numbers of times are milliseconds."""
        offsets, tags, _, times = (group.column(place).statistics for place in range(4))
        return bool(
            offsets.min_raw <= self.last
            and offsets.max_raw >= self.first
            and times.min_raw <= self.until_ms
            and times.max_raw >= self.since_ms
            and (self.tags is None or any(tags.min <= tag <= tags.max for tag in self.tags))
        )


def read_file(
    directory: Directory, file: File, wanted: Wanted, columns: Sequence[str]
) -> Iterator[pa.RecordBatch]:
    """Yield the row groups that may hold what is wanted, cut to its offsets.

    The other rows of a group are returned, too: the caller has to compare times and tags.
    ``columns`` must hold offset, and may end with headers. Raises ArchiveDamaged.
    """
    headers = "headers" in columns
    there = [name for name in columns if name != "headers" or file.headed]
    with directory.open(file.path) as opened:
        try:
            parquet = pq.ParquetFile(opened, page_checksum_verification=True)
            groups = [
                place
                for place in range(parquet.num_row_groups)
                if wanted.in_group(parquet.metadata.row_group(place))
            ]
            for batch in parquet.iter_batches(
                GROUP_ROWS, row_groups=groups, columns=there, use_threads=False
            ):
                rows = cut_offsets(batch, wanted.first, wanted.last)
                if headers and not file.headed:
                    rows = rows.append_column(MAP, empty_column(rows.num_rows))
                yield rows
        except (pa.ArrowException, OSError) as error:
            raise ArchiveDamaged(directory.shown, file.path, str(error)) from error


def cut_offsets(batch: pa.RecordBatch, first: int, last: int) -> pa.RecordBatch:
    """Return the rows of first..last out of rows that are in order of offset; copies nothing."""
    offsets = batch.column("offset")
    low = bisect_left(offsets, first, key=pa.Int64Scalar.as_py)
    high = bisect_right(offsets, last, key=pa.Int64Scalar.as_py)
    return batch.slice(low, max(high - low, 0))
