"""Ranges of offsets: cut into tasks, narrowed by filters, counted, and read by each task.

Every reply of the store says where the stream begins and ends, so a message that was evicted after
the task was planned is noticed, and reported with its exact offsets.
"""

from __future__ import annotations

import datetime as dt
import logging
import operator
import struct
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from itertools import groupby, pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa
from pyspark.sql import datasource as spark
from pyspark.sql.datasource import Filter, InputPartition

from headwater.errors import DataLost, LostFuture, OffsetOutOfRange, StreamReplaced
from headwater.kernel.inputs import MAX_EXACT, to_ms
from headwater.log import reading
from headwater.log.handles import StreamHandle
from headwater.log.keys import NODE_MESSAGES
from headwater.log.node import header_of, with_maps
from headwater.log.reading import Scanned, UnopenedNode, borders, extent
from headwater.spark.engine.failures import one_line
from headwater.spark.log import columns
from headwater.spark.log.columns import ValueColumns
from headwater.spark.log.noting import ReadNote
from headwater.spark.log.target import StreamOrTopic
from headwater.store.many import together

if TYPE_CHECKING:
    from headwater.spark.archives.table import File


# ── Filters ───────────────────────────────────────────────────────────────────────────────────────
# Filters that are pushed down: which are understood, and what need not be read because of them.
#
# Spark applies every filter to what is read. Conditions on partition and stream leave out whole
# streams, those on offset narrow the range, and a least time narrows it too: no message before the
# first one of that time can match. A greatest time cannot, since a writer may give times of its
# own in any order. Files of an archive and their parts are also left out by their times and tags.


_COMPARISONS: dict[type[Filter], str] = {
    spark.EqualTo: "equal",
    spark.EqualNullSafe: "equal",
    spark.GreaterThan: "greater",
    spark.GreaterThanOrEqual: "greater_equal",
    spark.LessThan: "less",
    spark.LessThanOrEqual: "less_equal",
    spark.In: "in",
    spark.StringStartsWith: "starts_with",
    spark.StringEndsWith: "ends_with",
    spark.StringContains: "match_substring",
}
_PYTHON: dict[str, Callable[[Any, Any], bool]] = {
    "equal": operator.eq,
    "greater": operator.gt,
    "greater_equal": operator.ge,
    "less": operator.lt,
    "less_equal": operator.le,
    "in": lambda value, among: value in among,
    "starts_with": str.startswith,
    "ends_with": str.endswith,
    "match_substring": operator.contains,
}
_TYPES: dict[str, type] = {
    "stream": str,
    "partition": int,
    "offset": int,
    "tag": str,
    "time": dt.datetime,
}


class Condition(NamedTuple):
    """One comparison of a column with a value, or with several (``in``)."""

    column: str
    comparison: str
    value: Any
    negated: bool = False

    def holds(self, value: Any) -> bool:
        """Return whether a single value meets it."""
        return _PYTHON[self.comparison](value, self.value) != self.negated


def condition_of(found: Filter) -> Condition | None:
    """Return the condition of a filter; None when Spark has to apply it itself."""
    negated = isinstance(found, spark.Not)
    inner = found.child if isinstance(found, spark.Not) else found
    comparison = _COMPARISONS.get(type(inner))
    column = ".".join(getattr(inner, "attribute", ()))
    kind = _TYPES.get(column)
    if comparison is None or kind is None:
        return None
    value: Any = inner.value  # type: ignore[attr-defined]
    values = tuple(value) if comparison == "in" else (value,)
    if any(type(each) is not kind for each in values):
        return None
    if kind is dt.datetime and any(each.tzinfo is None for each in values):
        return None
    return Condition(column, comparison, values if comparison == "in" else value, negated)


def leaves_out(conditions: Iterable[Condition], column: str, value: Any) -> bool:
    """Return whether no row with that value in that column can match: a whole stream is spared."""
    return any(one.column == column and not one.holds(value) for one in conditions)


def offsets_where(conditions: Iterable[Condition]) -> tuple[int, int]:
    """Return the first offset that can match, and the one behind the last."""
    start, stop = 1, MAX_EXACT
    for one in conditions:
        if one.column != "offset" or one.negated:
            continue
        values = one.value if one.comparison == "in" else (one.value,)
        least = {"greater": values[0] + 1}.get(one.comparison, min(values))
        most = {"less": values[0] - 1}.get(one.comparison, max(values))
        if not one.comparison.startswith("less"):
            start = max(start, least)
        if not one.comparison.startswith("greater"):
            stop = min(stop, most + 1)
    return start, stop


def since_ms(conditions: Iterable[Condition]) -> int | None:
    """Return the least time that a matching row can have; None when any time can."""
    bounds = [
        to_ms(min(one.value) if one.comparison == "in" else one.value)
        for one in conditions
        if one.column == "time" and not one.negated and not one.comparison.startswith("less")
    ]
    return max(bounds, default=None)


def until_ms(conditions: Iterable[Condition]) -> int:
    """Return the greatest time that a matching row can have."""
    bounds = [
        to_ms(max(one.value) if one.comparison == "in" else one.value)
        for one in conditions
        if one.column == "time" and not one.negated and not one.comparison.startswith("greater")
    ]
    return min(bounds, default=MAX_EXACT)


def tags_where(conditions: Iterable[Condition]) -> frozenset[str] | None:
    """Return the only tags that a matching row can have; None when there may be others."""
    named = [
        frozenset(one.value if one.comparison == "in" else (one.value,))
        for one in conditions
        if one.column == "tag" and not one.negated and one.comparison in ("equal", "in")
    ]
    return reduce(frozenset.intersection, named) if named else None


# ── Task ranges ───────────────────────────────────────────────────────────────────────────────────
# Ranges of offsets, cut into tasks of about the same work.
#
# Ranges are cut where a node ends, so that no node is fetched and opened twice. Work is counted in
# nodes, not in offsets: compaction leaves many offsets empty, but packs what it leaves into full
# nodes.


# About a million messages: some tenths of a second, against milliseconds to start a task.
TASK_NODES = 1000


@dataclass(frozen=True)
class OffsetRange(InputPartition):
    """What one task reads: start..stop-1 of a stream, and which stream of that name it was."""

    stream: str
    partition: int
    start: int
    stop: int
    created: int
    # The files that hold it, when it is read from an archive.
    files: tuple[File, ...] = ()
    # What the first task of a micro-batch notes of its query.
    note: ReadNote | None = None

    @property
    def size(self) -> int:
        """How many offsets it spans."""
        return self.stop - self.start


def split(target: StreamOrTopic, ranges: Sequence[OffsetRange], least: int) -> list[OffsetRange]:
    """Cut ranges into tasks, at least so many when there are as many offsets.

    One round trip to each server; none when there is nothing to cut.
    """
    ranges = [span for span in ranges if span.size > 0]
    total = sum(span.size for span in ranges)
    shares = [-(-least * span.size // total) for span in ranges]
    archived = {
        span: _of_archive(target, span, share) for span, share in zip(ranges, shares, strict=True)
    }
    parts = {span: [live] if live.size else [] for span, (_, live) in archived.items()}
    large = [
        (span, live, share)
        for (span, (_, live)), share in zip(archived.items(), shares, strict=True)
        if live.size and (share > 1 or live.size > TASK_NODES * NODE_MESSAGES)
    ]
    found = target.hw.store.run(
        together(
            borders(live.stream, live.start, live.stop, TASK_NODES, share)
            for _, live, share in large
        )
    )
    for (span, live, share), between in zip(large, found, strict=True):
        ends = between if len(between) + 1 >= share else _even(live, share)
        cuts = [live.start, *(end + 1 for end in ends), live.stop]
        parts[span] = [
            replace(live, start=start, stop=stop) for start, stop in pairwise(cuts) if start < stop
        ]
    return [part for span in ranges for part in (*archived[span][0], *parts[span])]


def _of_archive(
    target: StreamOrTopic, span: OffsetRange, least: int
) -> tuple[list[OffsetRange], OffsetRange]:
    """Return the tasks that read from the archive, and the range that is left to the log."""
    contents = target.history(span.stream)
    if contents is None:
        return [], span
    from headwater.spark.archives.reading import divide

    parts, goes_on = divide(contents, span.start, span.stop, least)
    ranges = [replace(span, start=part.start, stop=part.stop, files=part.files) for part in parts]
    return ranges, replace(span, start=goes_on)


def _even(span: OffsetRange, parts: int) -> list[int]:
    """Return ends by offsets, for a range with too few nodes to cut between them."""
    return [span.start + span.size * part // parts - 1 for part in range(1, parts)]


# ── Counted ranges ────────────────────────────────────────────────────────────────────────────────
# Ranges of which only offsets are wanted: the JVM counts them itself, without a task in Python.
#
# Offsets are dense where compaction left no holes, and a stream counts its messages. So the plan
# of a batch read knows all rows of such a range, as they are at that moment
# (``jvm/CountedReader.java``).


# By this the JVM finds the facts in a pickled task; no text has these bytes.
_MARK = b"\xffheadwater:counted\xff"
_FACTS = struct.Struct("<qqii")
# The JVM counts so many in a tenth of a second.
TASK_OFFSETS = 10_000_000


@dataclass(frozen=True)
class CountedRange(InputPartition):
    """A task for the JVM: a mark, start, stop, partition and the name of the stream."""

    facts: bytes

    @classmethod
    def of(cls, span: OffsetRange) -> CountedRange:
        """Return the task for a range."""
        name = span.stream.encode()
        facts = _FACTS.pack(span.start, span.stop, span.partition, len(name))
        return cls(_MARK + facts + name)


def are_enough(names: Collection[str]) -> bool:
    """Return whether the JVM asks for no column that lies in messages."""
    return columns.NODE.name in names and columns.COUNTED.issuperset(names)


def dense_spans(target: StreamOrTopic, streams: Sequence[str]) -> list[range]:
    """Return the offsets of each stream; an empty range when some are missing between them.

    One round trip to each server.
    """
    handles = (StreamHandle(name, set()) for name in streams)
    found = target.hw.store.run(together(map(reading.info, handles)))
    return [
        range(one.first, one.last + 1)
        if one.length == one.last - one.first + 1 and not one.missing
        else range(0)
        for one in found
    ]


def covers(dense: range, span: OffsetRange) -> bool:
    """Return whether no offset of a span is missing."""
    return dense.start <= span.start and span.stop <= dense.stop


def cut(span: OffsetRange, least: int) -> Iterator[OffsetRange]:
    """Cut a range into tasks of which only the number of rows is wanted, ``least`` at least."""
    parts = min(span.size, max(least, -(-span.size // TASK_OFFSETS)))
    for part in range(parts):
        start, stop = (span.start + span.size * place // parts for place in (part, part + 1))
        yield replace(span, start=start, stop=stop)


# ── Range reader ──────────────────────────────────────────────────────────────────────────────────


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
        contents = self.target.history(stream)
        for first, last in contents.gaps_between(start, stop - 1) if contents else ():
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
        if not are_enough(self.names):
            return False
        [dense] = dense_spans(self.target, [part.stream])
        created = self.target.hw.store.run(extent(part.stream)).created
        return created == part.created and covers(dense, part)

    def _archived(
        self,
        part: OffsetRange,
        files: Sequence[File],
        first: int,
        last: int,
        needed: Collection[str],
    ) -> Iterator[pa.RecordBatch]:
        """Read columns of first..last from files of the archive, without what cannot match."""
        from headwater.spark.archives.reading import WITH_HEADERS, Wanted, scan
        from headwater.spark.archives.table import Archive

        assert self.target.archive is not None
        conditions = self.conditions
        wanted = Wanted(
            first,
            last,
            since_ms(conditions) or 0,
            until_ms(conditions),
            tags_where(conditions),
        )
        directory = Archive(self.target.archive, part.stream).directory
        names = [name for name in WITH_HEADERS if name in needed]
        yield from scan(directory, files, wanted, names)

    def _gone(self, part: OffsetRange, first: int, last: int, why: str) -> Iterator[pa.RecordBatch]:
        """Read what is gone from the archive if it is there by now; report the rest as lost."""
        contents = self.target.history(part.stream)
        if contents is not None and contents.created == part.created and contents.last >= first:
            end = min(last, contents.last)
            self.report_gaps(part.stream, first, end + 1)
            needed = {"offset", "tag", "value", "time", *self.names}
            yield from self._archived(part, contents.between(first, end), first, end, needed)
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
