"""Reading a stream or topic once, from offset to offset."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition

from headwater.spark import columns
from headwater.spark.connections import client

BATCH_ROWS = 64_000


@dataclass
class OffsetRange(InputPartition):
    """What one task reads: start..stop-1 of a stream."""

    stream: str
    partition: int
    start: int
    stop: int


class BatchReader(DataSourceReader):
    """Reads offset ranges of streams that stand still."""

    def __init__(self, url: str, streams: dict[int, str], wanted: tuple[str, ...]) -> None:
        self.url = url
        self.streams = streams
        self.wanted = wanted

    def partitions(self) -> list[InputPartition]:
        """Plan one task per stream."""
        hw = client(self.url)
        parts: list[InputPartition] = []
        for place, name in self.streams.items():
            info = hw.stream(name).info()
            parts.append(OffsetRange(name, place, info.first, info.last + 1))
        return parts

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Hand over what lies in a range."""
        assert isinstance(partition, OffsetRange)
        stream = client(self.url).stream(partition.stream)
        held: list[pa.RecordBatch] = []
        rows = 0
        for batch in stream.scan(partition.start, partition.stop):
            held.append(batch)
            rows += batch.num_rows
            if rows >= BATCH_ROWS:
                yield from self._shape(held, partition)
                held, rows = [], 0
        if held:
            yield from self._shape(held, partition)

    def _shape(self, held: list[pa.RecordBatch], part: OffsetRange) -> list[pa.RecordBatch]:
        table = pa.Table.from_batches(held)
        return columns.hand_over(table, part.stream, part.partition, self.wanted)
