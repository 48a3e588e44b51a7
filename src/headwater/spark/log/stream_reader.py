"""Reading a stream or topic on and on: micro-batches from offset to offset.

The position that Spark keeps in its checkpoint holds, for each partition, the next offset, which
stream it belongs to, and the history of that stream. So a restart goes on exactly there, what was
evicted meanwhile or lost by a failover is reported with its exact offsets, and a stream that was
deleted and written anew is not mistaken for the old one. To find what is new costs one round trip,
whatever the number of partitions of a server.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from headwater.errors import FormatTooNew, HeadwaterError, OffsetOutOfRange, StreamReplaced
from headwater.log.handles import first_lost
from headwater.log.reading import Extent
from headwater.spark.engine.failures import one_line
from headwater.spark.engine.processes import end_undisturbed, stop_on_signal
from headwater.spark.log.noting import AskingQuery, QueryBeat, ReadNote
from headwater.spark.log.range_reader import OffsetRange, RangeReader, split
from headwater.spark.log.target import PositionOption, TriggerLimits

# ── Held rows ─────────────────────────────────────────────────────────────────────────────────────
# Small micro-batches, whose rows go to the JVM with their plan, without a task in Python.
#
# To start a task in Python takes longer than to read a few messages. The process that plans a
# micro-batch has a connection to the store, so it reads them itself; ``jvm/HeldReader.java`` takes
# them out of the plan. What is wrong with the log is raised from there as it is from a task.


# Offsets of a micro-batch, and bytes of a task, up to which rows go with the plan: Spark warns of a
# task of a megabyte, and all of them pass through the driver.
HELD_OFFSETS = 1000
HELD_BYTES = 128 * 1024
# By this the JVM finds the rows in a pickled task; no text has these bytes.
_MARK = b"\xffheadwater:held\xff"


@dataclass(frozen=True)
class HeldRows(InputPartition):
    """A task for the JVM: a mark, and its rows as a stream of Arrow batches."""

    facts: bytes


def is_small(tasks: Sequence[OffsetRange]) -> bool:
    """Return whether the rows of all tasks may go with the plan: few offsets, none archived."""
    few = sum(task.size for task in tasks) <= HELD_OFFSETS
    return few and not any(task.files for task in tasks)


def held_rows(reading: RangeReader, tasks: Sequence[OffsetRange]) -> list[InputPartition] | None:
    """Return tasks that hold their rows; None when these are too large.

    Costs a round trip for each task. Raises what a task would raise.
    """
    held: list[InputPartition] = []
    for task in tasks:
        rows = _rows(reading, task)
        if rows is None:
            return None
        held.append(HeldRows(_MARK + rows))
    return held


def _rows(reading: RangeReader, task: OffsetRange) -> bytes | None:
    made = pa.BufferOutputStream()
    with pa.ipc.new_stream(made, reading.schema) as writer:
        for batch in reading.read(task):
            writer.write_batch(batch)
            if made.tell() > HELD_BYTES:
                return None
    rows: bytes = made.getvalue().to_pybytes()
    return rows


# ── Stream reader ─────────────────────────────────────────────────────────────────────────────────


CHECKPOINT_FORMAT = 1


class PartitionPosition(NamedTuple):
    """The position of a query in a partition; ``created`` is 0 while there is no stream yet.

    ``history`` is that of the stream (see log/handles.py) when the position was planned; None in
    checkpoints that were written without it.
    """

    next: int
    created: int
    history: bytes | None = None

    def first_lost(self, history: bytes | None, last: int) -> int:
        """Return the first offset before this position that was lost; 0 when none is known."""
        if self.history is None or history is None:
            return 0
        return first_lost(self.history, self.next - 1, history, last)


QueryPosition = dict[int, PartitionPosition]


def _dump(places: QueryPosition) -> dict[str, Any]:
    return {str(partition): _dump_one(place) for partition, place in sorted(places.items())}


def _dump_one(place: PartitionPosition) -> dict[str, Any]:
    found = {"next": place.next, "created": place.created}
    return found if place.history is None else {**found, "history": place.history.decode()}


def _load(offset: dict[str, Any]) -> QueryPosition:
    """Read a position out of a checkpoint; without a format it is of the first.

    Fields that this release does not know are ignored, so that a later one may add some.
    """
    found = offset.get("format", CHECKPOINT_FORMAT)
    if found > CHECKPOINT_FORMAT:
        raise FormatTooNew("the checkpoint of this query", found, CHECKPOINT_FORMAT)
    return {int(partition): _load_one(place) for partition, place in offset.items()}


def _load_one(place: dict[str, Any]) -> PartitionPosition:
    history = place.get("history")
    known = None if history is None else history.encode()
    return PartitionPosition(place["next"], place["created"], known)


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans micro-batches on the driver's side, and is sent to every task of them."""

    def __init__(
        self,
        reading: RangeReader,
        starting: PositionOption,
        min_partitions: int,
        limits: TriggerLimits,
        group: str | None,
        checkpoint: str = "",
    ) -> None:
        self.reading = reading
        self.starting = starting
        self.min_partitions = min_partitions
        self.limits = limits
        self.group = group
        self.checkpoint = checkpoint.removeprefix("file:")
        self._streams: dict[int, str] = {}
        self._seen: dict[int, Extent] = {}
        self._until: dict[int, int] | None = None
        self._registered: dict[int, int] = {}
        self._triggered = time.monotonic()
        self._beat = QueryBeat(reading.target)
        self._planned: dict[int, int] = {}
        # Whether rows of small micro-batches go with their plan.
        self._holds = True
        stop_on_signal()

    # ── Positions ────────────────────────────────────────────────────────────────────────────

    @one_line()
    def initialOffset(self) -> dict[str, Any]:  # noqa: N802  Spark's name
        """Return where a new query begins. Raises OffsetOutOfRange, InvalidInput."""
        extents, target = self._look(), self.reading.target
        if extents:
            self.starting.check(len(extents))
        places = {
            place: PartitionPosition(
                self.starting.resolve(place, target, self._stream(place).name, extent),
                extent.created,
                extent.history,
            )
            for place, extent in extents.items()
        }
        self._settle(places, extents)
        self._register(places)
        return _dump(places)

    @one_line()
    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """Return how far the next micro-batch may read. Raises DataLost, LostFuture, ..."""
        extents = self._look()
        places = self._settle(self._known(start, extents), extents)
        self._register(places)
        self._beat.now_and_then()
        ends = {
            place: max(places[place].next, extent.last + 1) for place, extent in extents.items()
        }
        if self._until is not None:
            ends = {
                place: max(places[place].next, min(end, self._until.get(place, 0)))
                for place, end in ends.items()
            }
        elif self._is_too_early(places, extents, ends):
            ends = {place: places[place].next for place in ends}
        if isinstance(limit, ReadMaxRows):
            ends = _share(places, extents, ends, limit.max_rows)
        self._planned = ends
        return _dump({p: _moved(places[p], end, extents[p]) for p, end in ends.items()})

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Return what the option ``maxOffsetsPerTrigger`` allows a micro-batch."""
        most = self.limits.most
        return ReadAllAvailable() if most is None else ReadMaxRows(most)

    def reportLatestOffset(self) -> dict[str, Any]:  # noqa: N802
        """Return the end of the log as it was last seen, for the progress of the query.

        ``behind`` counts the offsets that wait behind the micro-batch, in all and by partition.
        """
        ends = {p: PartitionPosition(one.last + 1, one.created) for p, one in self._seen.items()}
        behind = {p: max(end.next - self._planned.get(p, 1), 0) for p, end in ends.items()}
        shown = {p: {**place, "behind": behind[int(p)]} for p, place in _dump(ends).items()}
        return {**shown, "behind": sum(behind.values())}

    @one_line()
    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Fix the end of a query that reads what is there now and ends."""
        self._until = {place: extent.last + 1 for place, extent in self._look().items()}

    @one_line()
    def commit(self, end: dict[str, Any]) -> None:
        """Release what is done to retention, if there is a ``groupId``, and remember it."""
        places = _load(end)
        self._register(places)
        self._beat.reached({self._stream(place).name: one.next for place, one in places.items()})

    def stop(self) -> None:
        """Note that the query has ended, and end this process silently: nobody listens any more."""
        end_undisturbed()
        self._beat.end()
        if isinstance(sys.exc_info()[1], EOFError):
            os._exit(0)

    # ── Tasks ────────────────────────────────────────────────────────────────────────────────

    @one_line()
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """Cut a micro-batch into tasks. Raises DataLost, LostFuture."""
        if not self._seen:
            # After a restart, with a micro-batch that was planned before it.
            self._look()
        asking = AskingQuery.taken_from(end)
        begins, ranges = _load(start), []
        for place, planned in _load(end).items():
            name = self._stream(place).name
            stop, created, history = planned
            before = begins.get(place, PartitionPosition(1, created))
            # Where an accepted loss begins, the plan has gone back to.
            begin = before.first_lost(history, stop - 1) or before.next
            seen = self._seen.get(place)
            known = seen.history if seen is not None and seen.created == created else None
            if seen is not None and (lost := planned.first_lost(known, seen.last)):
                # The next plan goes back to it.
                self.reading.lost_future(name, lost, stop - 1)
                stop = lost
            if seen is not None and begin < min(stop, seen.first):
                self.reading.lost(name, begin, min(stop, seen.first) - 1)
                begin = min(stop, seen.first)
            self.reading.report_gaps(name, begin, stop)
            ranges.append(OffsetRange(name, place, begin, stop, created))
        tasks = split(self.reading.target, ranges, self.min_partitions)
        starts = {span.stream: span.start for span in ranges}
        stops = {span.stream: span.stop for span in ranges}
        note = ReadNote(self._beat.run, starts, stops, self.checkpoint)
        if asking is not None and self._holds and is_small(tasks):
            held = held_rows(self.reading, tasks)
            if held is not None:
                self._beat.note_later(note, asking)
                return held
            # Messages are large: each would be read twice, by this process and by a task.
            self._holds = False
        return [replace(task, note=note) if task is tasks[0] else task for task in tasks]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one task."""
        if isinstance(partition, OffsetRange):
            if partition.note is not None:
                partition.note.write(self.reading.target, AskingQuery.of_task())
            yield from self.reading.read(partition)

    # ── What is known ────────────────────────────────────────────────────────────────────────

    def _look(self) -> dict[int, Extent]:
        """Return the extent of each partition; a topic that is not there yet has none."""
        target = self.reading.target
        self._streams = self._streams or target.streams()
        extents = target.extents(self._streams.values())
        self._seen = dict(zip(self._streams, extents, strict=True))
        return self._seen

    def _stream(self, place: int) -> Any:
        target = self.reading.target
        self._streams = self._streams or target.streams()
        return target.hw.stream(self._streams.get(place, f"{target.name}/{place}"))

    def _known(self, start: dict[str, Any], extents: dict[int, Extent]) -> QueryPosition:
        """Return the position of the query, also in partitions that were made since."""
        places = _load(start)
        return {place: places.get(place, PartitionPosition(1, 0)) for place in (*extents, *places)}

    def _settle(self, places: QueryPosition, extents: dict[int, Extent]) -> QueryPosition:
        """Return where the query goes on: before what was lost after it was read.

        Raises StreamReplaced, LostFuture, OffsetOutOfRange or DataLost when the log is no longer
        the one that was read.
        """
        settled = dict(places)
        for partition, place in places.items():
            name = self._stream(partition).name
            extent = extents.get(partition, Extent(1, 0, 0))
            if place.created not in (0, extent.created):
                raise StreamReplaced(name)
            if lost := place.first_lost(extent.history, extent.last):
                self.reading.lost_future(name, lost, place.next - 1)
                settled[partition] = PartitionPosition(lost, extent.created, extent.history)
            begin = settled[partition].next
            if begin > extent.last + 1:
                raise OffsetOutOfRange(name, "the position", begin, extent.last)
            if begin < extent.first and self.reading.fail_on_loss:
                self.reading.lost(name, begin, extent.first - 1)
        return settled

    def _is_too_early(
        self, places: QueryPosition, extents: dict[int, Extent], ends: dict[int, int]
    ) -> bool:
        """Return whether so few offsets wait that the next micro-batch waits for more."""
        if self.limits.least is None:
            return False
        waiting = sum(end - max(places[p].next, extents[p].first) for p, end in ends.items())
        now = time.monotonic()
        if waiting < self.limits.least and (now - self._triggered) * 1000 < self.limits.delay_ms:
            return True
        self._triggered = now
        return False

    def _register(self, places: QueryPosition) -> None:
        """Register what the query needs next with the log, when it has a ``groupId``."""
        if self.group is None:
            return
        for partition, place in places.items():
            if self._registered.get(partition) != place.next:
                self._stream(partition).register_reader(self.group, place.next)
                self._registered[partition] = place.next


def _moved(place: PartitionPosition, end: int, extent: Extent) -> PartitionPosition:
    """Return the position after a micro-batch; one that does not move stays as it is noted."""
    history = place.history if end == place.next else extent.history
    return PartitionPosition(end, extent.created, history)


def _share(
    places: QueryPosition, extents: dict[int, Extent], ends: dict[int, int], most: int
) -> dict[int, int]:
    """Cut what may be read to ``most`` offsets, each partition in proportion to what it has."""
    begins = {
        place: min(end, max(places[place].next, extents[place].first))
        for place, end in ends.items()
    }
    waiting = {place: end - begins[place] for place, end in ends.items()}
    total = sum(waiting.values())
    if total <= most:
        return ends
    shares = {place: most * size // total for place, size in waiting.items()}
    rest = most - sum(shares.values())
    for place in sorted(waiting, key=lambda place: -(most * waiting[place] % total)):
        if rest and shares[place] < waiting[place]:
            shares[place] += 1
            rest -= 1
    return {place: begins[place] + share for place, share in shares.items()}


# ── Refused reader ────────────────────────────────────────────────────────────────────────────────
# A streaming read whose options are refused: it raises the error with Spark's first question.
#
# PySpark's process of a streaming source calls ``stop`` of the reader in the end, also when there
# is none because ``streamReader`` has raised, and reports that fault in place of the error.


class RefusedReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Raises an error wherever a query would begin."""

    def __init__(self, error: HeadwaterError) -> None:
        self._error = error

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Return no limit: Spark asks for it before anything else."""
        return ReadAllAvailable()

    @one_line()
    def refuse(self, *_: Any, **__: Any) -> Any:
        """Raise the error: in a new query, in one that goes on, and in one that ends by itself."""
        raise self._error

    initialOffset = latestOffset = partitions = read = prepareForTriggerAvailableNow = refuse  # noqa: N815
