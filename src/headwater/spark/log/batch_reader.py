"""Reading a stream or topic once, from offset to offset.

Where to begin and to end is decided when the read is planned: what is written later is not read,
and what is evicted before its task reads it is a loss.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition

from headwater.errors import InvalidInput
from headwater.log.reading import Extent
from headwater.spark.engine.failures import one_line
from headwater.spark.log import range_reader
from headwater.spark.log.range_reader import CountedRange, OffsetRange, RangeReader, split
from headwater.spark.log.target import PositionOption


class BatchReader(DataSourceReader):
    """Plans a read on the driver's side, and is sent to every task of it."""

    def __init__(
        self,
        reading: RangeReader,
        starting: PositionOption,
        ending: PositionOption,
        min_partitions: int,
        group: str | None,
    ) -> None:
        self.reading = reading
        self.starting = starting
        self.ending = ending
        self.min_partitions = min_partitions
        self.group = group

    @one_line()
    def partitions(self) -> list[InputPartition]:
        """Decide what is read, and cut it into tasks.

        Raises UnknownStream, UnknownTopic, OffsetOutOfRange, DataLost, InvalidInput.
        """
        target = self.reading.target
        streams = target.streams()
        self.starting.check(len(streams))
        self.ending.check(len(streams))
        extents = target.extents(streams.values())
        if not any(extent.created for extent in extents):
            target.require()
        ranges = [
            self._range(place, stream, extent)
            for (place, stream), extent in zip(streams.items(), extents, strict=True)
        ]
        counted = self._counted(ranges)
        others = [span for span in ranges if span not in counted]
        return [
            *map(CountedRange.of, self._cut(counted)),
            *split(target, others, self.min_partitions),
        ]

    def _counted(self, ranges: Sequence[OffsetRange]) -> list[OffsetRange]:
        """Return the ranges whose rows are known without a look at any message."""
        if not range_reader.are_enough(self.reading.names):
            return []
        dense = range_reader.dense_spans(self.reading.target, [span.stream for span in ranges])
        return [
            span
            for span, known in zip(ranges, dense, strict=True)
            if span.size and range_reader.covers(known, span)
        ]

    def _cut(self, counted: Sequence[OffsetRange]) -> Iterable[OffsetRange]:
        """Cut ranges that are only counted; where offsets are shown, tasks end as always."""
        if "offset" in self.reading.schema.names:
            return split(self.reading.target, counted, self.min_partitions)
        return (part for one in counted for part in range_reader.cut(one, self.min_partitions))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one task."""
        if isinstance(partition, OffsetRange):
            yield from self.reading.read(partition)

    def _range(self, place: int, name: str, extent: Extent) -> OffsetRange:
        target = self.reading.target
        start = self.starting.resolve(place, target, name, extent)
        stop = self.ending.resolve(place, target, name, extent)
        if start > stop and self.starting.of(place) == start and self.ending.of(place) == stop:
            raise InvalidInput(
                f"option {self.starting.option!r} is {start} in stream {name!r}, behind "
                f"{self.ending.option!r}, which is {stop}; begin before the end"
            )
        if self.group is not None:
            target.hw.stream(name).register_reader(self.group, min(start, stop))
        start, stop = self._narrow(place, name, start, stop)
        if start < min(stop, extent.first):
            self.reading.lost(name, start, min(stop, extent.first) - 1)
            start = extent.first
        self.reading.report_gaps(name, start, stop)
        return OffsetRange(name, place, start, max(start, stop), extent.created)

    def _narrow(self, place: int, name: str, start: int, stop: int) -> tuple[int, int]:
        """Leave out what the conditions cannot match."""
        conditions = self.reading.conditions
        if range_reader.leaves_out(conditions, "partition", place):
            return start, start
        if range_reader.leaves_out(conditions, "stream", name):
            return start, start
        first, end = range_reader.offsets_where(conditions)
        since = range_reader.since_ms(conditions)
        if since is not None and since > 0:
            first = max(first, self.reading.target.offset_at(name, since))
        start, stop = max(start, first), min(stop, end)
        return (start, stop) if start < stop else (start, start)


class FilteringReader(BatchReader):
    """A batch reader of a scan that is shared with nobody: it reads less by its filters."""

    def pushFilters(self, found: list[Filter]) -> Iterable[Filter]:  # noqa: N802  Spark's name
        """Take the filters that spare something; yield the others."""
        taken = []
        for one in found:
            condition = range_reader.condition_of(one)
            if condition is not None and self.reading.spares(condition):
                taken.append(condition)
            else:
                yield one
        self.reading = replace(self.reading, conditions=tuple(taken))
