"""An archiver without a cluster around it, readers of the source, and what they should find.

Planners and tasks of the source are plain objects: here they run in this process, as fast as a
property test needs it. That Spark runs them in the same way is shown by the tests of the jobs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import pyarrow as pa
import pytest

from headwater import Headwater, Stream
from headwater.spark.archives import reading, writing
from headwater.spark.archives.writing import WrittenRange
from headwater.spark.engine.connections import absolute_url
from headwater.spark.jobs.archive import Archiver
from headwater.spark.log import range_reader
from headwater.spark.log.range_reader import OffsetRange
from headwater.spark.log.source import HeadwaterSource
from headwater.spark.log.target import StreamOrTopic
from tests.support.entries import entries


class Row(NamedTuple):
    """A message as the source gives it."""

    offset: int
    tag: str
    value: bytes
    time_ms: int


def expected(last: int) -> list[tuple[int, str, bytes]]:
    """Return offset, tag and value of the messages 1..last of a stream of entries."""
    return [(n, tag, value) for n, (tag, value) in enumerate(entries(last), 1)]


def pairs_of(rows: list[Row]) -> list[tuple[int, str, bytes]]:
    """Return rows without their times, to be compared with what is expected."""
    return [(row.offset, row.tag, row.value) for row in rows]


def stream_of_3000(hw: Headwater, name: str) -> Stream:
    """Write a stream of 3000 messages, in nodes and in its tail."""
    stream = hw.stream(name)
    stream.write_many(entries(2400))
    for first in range(2401, 3001, 60):
        stream.write_many(entries(60, first))
    return stream


def cut_small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cut what there is into many tasks, files and row groups."""
    monkeypatch.setattr(range_reader, "TASK_NODES", 1)
    monkeypatch.setattr(writing, "PIECE_ROWS", 700)
    monkeypatch.setitem(reading._SETTINGS, "row_group_size", 200)


def rows_of(batches: Iterable[pa.RecordBatch]) -> list[Row]:
    found: list[Row] = []
    for batch in batches:
        times = batch.column("time").cast(pa.timestamp("ms", "UTC")).cast(pa.int64())
        columns = [batch.column(name).to_pylist() for name in ("offset", "tag", "value")]
        found += map(Row, *columns, times.to_pylist())
    return found


def one_by_one(
    work: Callable[[OffsetRange], WrittenRange], parts: Sequence[OffsetRange]
) -> list[WrittenRange]:
    return [work(part) for part in parts]


def run_archiver(
    url: str, stream: str, place: str, do: Any = one_by_one, *, evict: bool = False
) -> Archiver:
    """Archive what is new in a stream, two tasks to a round."""
    archiver = Archiver(StreamOrTopic(absolute_url(url), stream, is_topic=False), place)
    for _ in archiver.run(do, 2):
        pass
    if evict:
        for each in archiver.streams:
            each.evict(archiver.target.hw)
    return archiver


def read_batch(**options: str) -> list[Row]:
    """Do what Spark does for a batch read, task after task."""
    source = HeadwaterSource(options)
    reader = source.reader(source.schema())
    parts = reader.partitions()
    return [row for part in parts for row in rows_of(reader.read(part))]


def stream_reader(**options: str) -> Any:
    """Do what Spark does when a streaming query starts."""
    source = HeadwaterSource(options)
    return source.streamReader(source.schema())
