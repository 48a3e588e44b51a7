"""What a task does: it fetches the nodes of its range and passes them on to Spark, many at a time.

Every reply of the store says where the stream begins and ends, so a message that was evicted after
the task was planned is noticed, and reported with its exact offsets.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from headwater.errors import DataLost, LostFuture, OffsetOutOfRange, StreamReplaced
from headwater.log import reading
from headwater.log.handles import StreamHandle
from headwater.log.node import header_of, with_maps
from headwater.log.reading import Scanned, UnopenedNode, extent
from headwater.spark.engine.failures import one_line
from headwater.spark.log import columns, counted_ranges, filters
from headwater.spark.log.decoding import ValueColumns
from headwater.spark.log.filters import Condition
from headwater.spark.log.target import StreamOrTopic
from headwater.spark.log.task_ranges import OffsetRange

if TYPE_CHECKING:
    from headwater.spark.archives.manifest import File

# The JVM takes a batch as a whole, at some cost, and turns it into rows while the next one is made:
# larger ones do not fit into its caches and delay the pipe.
BATCH_ROWS = 10_000
BATCH_BYTES = 4 * 1024 * 1024
# So many messages are one batch where they are only counted.
COUNTED_ROWS = 1_000_000

logger = logging.getLogger("headwater.spark")


@dataclass(frozen=True, slots=True)
class RangeReader:
    """How tasks read: from where, which columns, which rows, and whether a loss is an error."""

    target: StreamOrTopic
    schema: pa.Schema
    fail_on_loss: bool
    conditions: tuple[Condition, ...] = ()
    # What values are decoded into.
    decoded: ValueColumns | None = None

    @property
    def names(self) -> frozenset[str]:
        """The columns of the log that are needed for those that Spark asked for."""
        of_values = self.decoded.names if self.decoded else frozenset()
        found = frozenset(self.schema.names)
        return found if found.isdisjoint(of_values) else found - of_values | {"value"}

    def spares(self, condition: Condition) -> bool:
        """Return whether less is read because of a condition: of tags, only an archive knows."""
        if self.decoded is not None and condition.column in self.decoded.names:
            return False
        return condition.column != "tag" or self.target.archive is not None

    def lost(self, stream: str, first: int, last: int, why: str = "evicted") -> None:
        """Raise DataLost for offsets that are gone, or log them when losses are accepted."""
        error = DataLost(stream, first, last, why)
        if self.fail_on_loss:
            raise error
        logger.warning("skipped offsets %d to %d of %r: %s", first, last, stream, why)

    def lost_future(self, stream: str, first: int, last: int) -> None:
        """Raise LostFuture for offsets that a failover lost, or log them when that is accepted."""
        error = LostFuture(stream, first, last)
        if self.fail_on_loss:
            raise error
        logger.warning(
            "offsets %d to %d of %r were lost by the store after they were read; going back to %d",
            *(first, last, stream, first),
        )

    def report_gaps(self, stream: str, start: int, stop: int) -> None:
        """Raise DataLost, or log, for what was evicted before it could be archived."""
        manifest = self.target.manifest(stream)
        for first, last in manifest.gaps_between(start, stop - 1) if manifest else ():
            self.lost(stream, first, last)

    def read(self, part: OffsetRange) -> Iterator[pa.RecordBatch]:
        """Yield what lies in a range as batches for Spark.

        Raises DataLost, OffsetOutOfRange or StreamReplaced when it is not what was planned.
        """
        with one_line():
            for kind, pieces in groupby(self._scan(part), key=type):
                if kind is list:
                    for nodes in pieces:
                        yield columns.batch_of_nodes(
                            nodes, part.stream, part.partition, self.schema
                        )
                else:
                    yield from self._rows(pieces, part)

    def _rows(
        self, batches: Iterable[pa.RecordBatch], part: OffsetRange
    ) -> Iterator[pa.RecordBatch]:
        """Join batches of the log into larger ones with the columns that Spark asked for."""
        held: list[pa.RecordBatch] = []
        rows = size = 0
        for batch in batches:
            held.append(batch)
            rows += batch.num_rows
            size += batch.nbytes
            if rows >= BATCH_ROWS or size >= BATCH_BYTES:
                yield from self._shape(held, part)
                held, rows, size = [], 0, 0
        if held:
            yield from self._shape(held, part)

    def _scan(self, part: OffsetRange) -> Iterator[pa.RecordBatch | list[UnopenedNode]]:
        """Yield what lies in a range: batches of rows, or the nodes of a reply, unopened."""
        if part.files:
            needed = {"offset", *self.names}
            yield from self._archived(part, part.files, part.start, part.stop - 1, needed)
            return
        if self._can_count(part):
            yield [
                UnopenedNode(base, 0, header_of(min(COUNTED_ROWS, part.stop - base)))
                for base in range(part.start, part.stop, COUNTED_ROWS)
            ]
            return
        run, handle = self.target.hw.store.run, StreamHandle(part.stream, set())
        headers = columns.HEADERS in self.names
        # The JVM knows no headers, and decodes no values.
        unopened = columns.NODE in self.schema and not headers and self._is_plain()
        at = part.start
        while at and at < part.stop:
            if unopened:
                scanned = run(reading.scan_unopened(handle, at, part.stop))
            else:
                scanned = run(
                    reading.scan_part(handle, at, part.stop, headers=headers, whole=False)
                )
            self._check(part, scanned)
            if scanned.first > at:
                yield from self._gone(part, at, min(scanned.first, part.stop) - 1, "evicted")
            for first, last in scanned.missing:
                yield from self._gone(part, first, last, "missing in the store")
            for kind, pieces in groupby(scanned.pieces, key=type):
                if kind is UnopenedNode:
                    yield list(pieces)
                else:
                    yield from (with_maps(piece) if headers else piece for piece in pieces)
            at = scanned.next

    def _can_count(self, part: OffsetRange) -> bool:
        """Return whether the offsets say it all: no other column is wanted, and none is missing.

        What was evicted or replaced since the task was planned is for the scan to report.
        """
        if not counted_ranges.are_enough(self.names):
            return False
        [dense] = counted_ranges.dense_spans(self.target, [part.stream])
        created = self.target.hw.store.run(extent(part.stream)).created
        return created == part.created and counted_ranges.covers(dense, part)

    def _archived(
        self,
        part: OffsetRange,
        files: Sequence[File],
        first: int,
        last: int,
        needed: Collection[str],
    ) -> Iterator[pa.RecordBatch]:
        """Read columns of first..last from files of the archive, without what cannot match."""
        from headwater.spark.archives.manifest import Archive
        from headwater.spark.archives.parquet import Wanted
        from headwater.spark.archives.reading import WITH_HEADERS, scan

        assert self.target.archive is not None
        conditions = self.conditions
        wanted = Wanted(
            first,
            last,
            filters.since_ms(conditions) or 0,
            filters.until_ms(conditions),
            filters.tags_where(conditions),
        )
        directory = Archive(self.target.archive, part.stream).directory
        names = [name for name in WITH_HEADERS if name in needed]
        yield from scan(directory, files, wanted, names)

    def _gone(self, part: OffsetRange, first: int, last: int, why: str) -> Iterator[pa.RecordBatch]:
        """Read what is gone from the archive if it is there by now; report the rest as lost."""
        manifest = self.target.manifest(part.stream)
        if manifest is not None and manifest.created == part.created and manifest.last >= first:
            end = min(last, manifest.last)
            self.report_gaps(part.stream, first, end + 1)
            needed = {"offset", "tag", "value", "time", *self.names}
            yield from self._archived(part, manifest.between(first, end), first, end, needed)
            first = end + 1
        if first <= last:
            self.lost(part.stream, first, last, why)

    def _check(self, part: OffsetRange, scanned: Scanned[Any]) -> None:
        if scanned.created != part.created:
            raise StreamReplaced(part.stream)
        if scanned.last < part.stop - 1:
            raise OffsetOutOfRange(part.stream, "the end to read", part.stop, scanned.last)

    def _shape(self, held: list[pa.RecordBatch], part: OffsetRange) -> list[pa.RecordBatch]:
        table = pa.Table.from_batches(held)
        return columns.batches_for_spark(
            table, part.stream, part.partition, self.schema, self.decoded
        )

    def _is_plain(self) -> bool:
        return self.decoded is None or self.decoded.names.isdisjoint(self.schema.names)
