"""Reading an archive: its Parquet files, any range of it, and archive and log as one.

Files of one run follow each other, unless messages carry times of their own that go back and forth
over the days: then files of several days hold every other offset, and are merged.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import re
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple, TypeVar

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from headwater.errors import ArchiveDamaged
from headwater.log.keys import MAX_OFFSET
from headwater.log.node import MAP, SCHEMA, empty_column, longest, map_column
from headwater.log.reading import Extent
from headwater.spark.archives.table import SCHEMA as TABLE
from headwater.spark.archives.table import (
    Archive,
    Contents,
    Directory,
    File,
    archived_streams,
    statistics_of,
)

# ── Parquet ───────────────────────────────────────────────────────────────────────────────────────
# Messages as Parquet: how a file of an archive is written, and how its rows are found.
#
# Columns offset, tag, value, time and headers (map<string, binary>, null where no message of a file
# has any), in order of offset; zstd; row groups of 64,000 rows with the span of offsets, times and
# tags of each; a checksum for each page. The path of a file has its day, its first and last offset,
# and a digest of its bytes: writing the same messages again writes the same file. Files of another
# program, which has optimized the table, may have their rows in any order.


ALL = ("offset", "tag", "value", "time")
WITH_HEADERS = (*ALL, "headers")
GROUP_ROWS = 64_000
# The path of a file that an archiver has written; its rows are in order.
_OURS = re.compile(r"day=[\d-]+/\d{16}-\d{16}-[0-9a-f]{12}\.parquet")
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
    headed = "headers" in table.column_names and longest(table.column("headers")) > 0
    headers = (
        map_column(table.column("headers").to_pylist())
        if headed
        else pa.nulls(table.num_rows, MAP.type)
    )
    fields = [TABLE.field(name) for name in WITH_HEADERS]
    rows = table.select(ALL).append_column("headers", headers).cast(pa.schema(fields))
    pq.write_table(rows, sink, **_SETTINGS)
    data = sink.getvalue()
    offsets = table.column("offset")
    first, last = offsets[0].as_py(), offsets[-1].as_py()
    times = pc.min_max(table.column("time").cast(pa.int64())).as_py()
    date = dt.date(1970, 1, 1) + dt.timedelta(days=day)
    digest = hashlib.blake2b(data, digest_size=6).hexdigest()
    path = f"day={date}/{first:016d}-{last:016d}-{digest}.parquet"
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
        """Return whether a row group may hold such rows."""
        known = statistics_of(group)
        offsets, tags, times = (known.get(name) for name in ("offset", "tag", "time"))
        if offsets is not None and (offsets.min > self.last or offsets.max < self.first):
            return False
        # Raw numbers of times, as Headwater writes them, are microseconds.
        if times is not None and times.physical_type == "INT64":
            earliest, latest = times.min_raw // 1000, times.max_raw // 1000
            if earliest > self.until_ms or latest < self.since_ms:
                return False
        if tags is None or self.tags is None:
            return True
        return any(tags.min <= tag <= tags.max for tag in self.tags)


def read_file(
    directory: Directory, file: File, wanted: Wanted, columns: Sequence[str]
) -> Iterator[pa.RecordBatch]:
    """Yield the row groups that may hold what is wanted, cut to its offsets.

    The other rows of a group are returned, too: the caller has to compare times and tags.
    ``columns`` must hold offset, and may end with headers. Raises ArchiveDamaged.
    """
    with directory.open(file.path) as opened:
        try:
            parquet = pq.ParquetFile(opened, page_checksum_verification=True)
            groups = [
                place
                for place in range(parquet.num_row_groups)
                if wanted.in_group(parquet.metadata.row_group(place))
            ]
            there = [name for name in columns if name != "headers" or file.headed]
            for batch in _in_order(parquet, file, groups, there):
                yield _as_messages(cut_offsets(batch, wanted.first, wanted.last), columns)
        except (pa.ArrowException, OSError) as error:
            raise ArchiveDamaged(directory.shown, file.path, str(error)) from error


def is_ours(file: File) -> bool:
    """Return whether an archiver wrote a file: its rows are in order, its name has its digest."""
    return _OURS.fullmatch(file.path) is not None


def _in_order(
    parquet: pq.ParquetFile, file: File, groups: list[int], columns: list[str]
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of row groups in order of offset."""
    if is_ours(file):
        yield from parquet.iter_batches(
            GROUP_ROWS, row_groups=groups, columns=columns, use_threads=False
        )
        return
    for together in overlapping([_Group.of(parquet, place) for place in groups]):
        read = (parquet.read_row_group(group.place, columns=columns) for group in together)
        yield from pa.concat_tables(read).sort_by("offset").to_batches(GROUP_ROWS)


class _Group(NamedTuple):
    """A row group, and the first and last offset of its rows."""

    first: int
    last: int
    place: int

    @classmethod
    def of(cls, parquet: pq.ParquetFile, place: int) -> _Group:
        """Return a row group of a file by its place there."""
        offsets = statistics_of(parquet.metadata.row_group(place))["offset"]
        first, last = (offsets.min, offsets.max) if offsets else (1, MAX_OFFSET)
        return cls(first, last, place)


def _as_messages(rows: pa.RecordBatch, columns: Sequence[str]) -> pa.RecordBatch:
    """Return rows with the types that messages have: times in milliseconds, and no null headers."""
    arrays = []
    for name in columns:
        if name != "headers":
            arrays.append(rows.column(name).cast(SCHEMA.field(name).type))
        elif name not in rows.schema.names:
            arrays.append(empty_column(rows.num_rows))
        else:
            maps = rows.column(name)
            arrays.append(pa.MapArray.from_arrays(maps.offsets, maps.keys, maps.items))
    fields = [MAP if name == "headers" else SCHEMA.field(name) for name in columns]
    return pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields))


def cut_offsets(batch: pa.RecordBatch, first: int, last: int) -> pa.RecordBatch:
    """Return the rows of first..last out of rows that are in order of offset; copies nothing."""
    offsets = batch.column("offset")
    low = bisect_left(offsets, first, key=pa.Int64Scalar.as_py)
    high = bisect_right(offsets, last, key=pa.Int64Scalar.as_py)
    return batch.slice(low, max(high - low, 0))


# ── Reading ───────────────────────────────────────────────────────────────────────────────────────


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


Span = TypeVar("Span", File, "_Group")


def overlapping(spans: Sequence[Span]) -> list[list[Span]]:
    """Return groups of files, or of row groups, whose offsets overlap, in order."""
    groups: list[list[Span]] = []
    end = 0
    for span in sorted(spans, key=lambda span: span.first):
        if span.first > end:
            groups.append([])
        groups[-1].append(span)
        end = max(end, span.last)
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


def offset_at(directory: Directory, contents: Contents, time_ms: int) -> int | None:
    """Return the offset of the first archived message at or after a time; None if there is none."""
    found: int | None = None
    wanted = Wanted(since_ms=time_ms)
    for file in contents.files:
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


# ── Archive and log ───────────────────────────────────────────────────────────────────────────────
# Both as one: the archive for what its table covers, the log for the rest.
#
# The archiver commits to the table before the log evicts anything. So a reader that
# reads the table first and the log after it, and reads both again when there is a gap between
# the two, finds every offset in one of them; and a task whose part of the log was evicted
# meanwhile finds it in a newer version.


# About a second's work for a task.
TASK_ROWS = 1_000_000


class ArchivePart(NamedTuple):
    """Offsets start..stop-1 of an archive, and the files that hold them."""

    start: int
    stop: int
    files: tuple[File, ...]


def whole_extents(
    archives: Sequence[Archive], look: Callable[[], Sequence[Extent]]
) -> list[Extent]:
    """Return the extent of each stream, archive and log together.

    ``look`` asks the log. Of a stream that was deleted from the log, only its archive counts.
    Raises ArchiveMismatch when an archive is not the history of its stream.
    """
    before: list[Contents | None] = []
    while True:
        contents = [archive.load() for archive in archives]
        extents = look()
        found = [*zip(archives, contents, extents, strict=True)]
        # Where they do not meet, the log may have evicted what was archived in between.
        if contents == before or all(_meet(contents, extent) for _, contents, extent in found):
            return [_joined(*each) for each in found]
        before = contents


def _meet(contents: Contents | None, extent: Extent) -> bool:
    return extent.first <= (contents.last if contents else 0) + 1


def _joined(archive: Archive, contents: Contents | None, extent: Extent) -> Extent:
    if contents is None:
        return extent
    if not extent.created:
        return Extent(contents.first, contents.last, contents.created, None)
    contents.check_stream(archive.directory.shown, extent.created, extent.last)
    if contents.first > contents.last:
        return extent
    return extent._replace(first=min(contents.first, extent.first))


def divide(contents: Contents, start: int, stop: int, least: int) -> tuple[list[ArchivePart], int]:
    """Cut what the archive has of start..stop-1 into parts; returns where the log goes on, too.

    At least so many parts, when there are as many offsets; none for offsets without a message.
    """
    end = min(stop, contents.last + 1)
    if end <= start:
        return [], start
    rows = sum(file.rows for file in contents.between(start, end - 1))
    count = min(max(-(-rows // TASK_ROWS), least), end - start)
    borders = [start + (end - start) * part // count for part in range(count + 1)]
    parts = [
        ArchivePart(low, high, tuple(contents.between(low, high - 1)))
        for low, high in pairwise(borders)
    ]
    return [part for part in parts if part.files], end


def first_at(archive: Archive, time_ms: int, in_log: int) -> int:
    """Return the offset of the first message at or after a time, knowing the log's answer."""
    contents = archive.load()
    found = None if contents is None else offset_at(archive.directory, contents, time_ms)
    return in_log if found is None else min(found, in_log)


def archived_partitions(place: str, topic: str) -> int:
    """Return how many partitions a topic had when it was archived; 0 when it never was."""
    counts = [
        Archive(place, name).require().partitions or 0
        for name in archived_streams(place)
        if name.rpartition("/")[0] == topic
    ]
    return max(counts, default=0)
