"""``format("headwater_ick")``: a dirty list to look at, and to add to, from Spark."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import DataType, LongType, StructType, TimestampType

from headwater.client import Headwater
from headwater.errors import InvalidInput, UnknownIck
from headwater.ick import channels, single
from headwater.ick.channels import LEASE_MS, ChannelHandle
from headwater.ick.ick import Ick, IckChannel
from headwater.ick.keys import MAX_SHARDS, encode
from headwater.ick.single import IckHandle
from headwater.ick.types import Listed, Place
from headwater.spark.engine.columns import (
    BATCH_ROWS,
    BYTES,
    SCORE,
    AcceptedColumns,
    refuse_other_schema,
    spark_schema,
    to_batch,
)
from headwater.spark.engine.connections import absolute_url, client
from headwater.spark.engine.failures import one_line
from headwater.spark.engine.formats import ReadFormat, WriteFormat
from headwater.spark.engine.options import SourceOptions
from headwater.spark.engine.writes import IdempotentWrite
from headwater.store.call import Operation

# ── Target ────────────────────────────────────────────────────────────────────────────────────────
# Which dirty list is meant: an Ick or a channel of a store.


@dataclass(frozen=True, slots=True)
class DirtyList:
    """An Ick or a channel; goes to tasks, so it holds names only."""

    url: str = field(repr=False)
    name: str
    is_channel: bool
    # Of a channel that may be new.
    shards: int | None = None

    @property
    def hw(self) -> Headwater:
        """This process's client of the store."""
        return client(self.url)

    @property
    def ick(self) -> Ick:
        """The Ick."""
        return self.hw.ick(self.name)

    @property
    def channel(self) -> IckChannel:
        """The channel, as a consumer that reserves nothing sees it."""
        return self.hw.ick_channel(self.name, self.shards)

    def exists(self) -> bool:
        """Return whether it is there. Raises InvalidInput for what is no name, and NotAnIck."""
        found = self.channel.stats() if self.is_channel else self.ick.stats()
        return found is not None


# ── Reader ────────────────────────────────────────────────────────────────────────────────────────
# A dirty list as rows: each member where it lies, none of them reserved.
#
# A task reads one set of an Ick, or one shard of a channel, page by page. As with ``scan``, a
# member that stays where it is is returned at least once; one that moves meanwhile may be returned
# twice, or not at all.


_COLUMNS = pa.schema(
    [
        pa.field("member", pa.binary(), nullable=False),
        pa.field("score", pa.float64(), nullable=False),
        pa.field("place", pa.string(), nullable=False),
        pa.field("shard", pa.int32()),
    ]
)
COLUMNS = spark_schema(_COLUMNS)


@dataclass(frozen=True)
class IckPart(InputPartition):
    """What one task reads: some sets of an Ick, or of a shard in a layout of a channel."""

    places: tuple[Place, ...]
    epoch: int = 0
    shard: int = 0


class DirtyReader(DataSourceReader):
    """Plans a read of a dirty list, and is sent to every task of it."""

    def __init__(self, dirty: DirtyList) -> None:
        self._dirty = dirty

    @one_line()
    def partitions(self) -> list[InputPartition]:
        """Return a task for each set, or each shard. Raises UnknownIck, NotAnIck."""
        if not self._dirty.exists():
            raise UnknownIck(self._dirty.name)
        if not self._dirty.is_channel:
            return [IckPart((place,)) for place in single.PLACES]
        found = self._dirty.hw.store.run(channels.parts(self._channel(), None))
        return [
            IckPart(channels.PLACES, epoch, shard)
            for epoch, shard in dict.fromkeys((epoch, shard) for epoch, shard, _ in found)
        ]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one task."""
        assert isinstance(partition, IckPart)
        held: list[Listed] = []
        with one_line():
            for place in partition.places:
                cursor = ""
                while cursor != "0":
                    page = self._page(partition, place, cursor or "0")
                    listed, cursor = self._dirty.hw.store.run(page)
                    held += listed
                    if len(held) >= BATCH_ROWS:
                        yield batch_of(held)
                        held = []
            if held:
                yield batch_of(held)

    def _page(
        self, part: IckPart, place: Place, cursor: str
    ) -> Operation[tuple[list[Listed], str]]:
        if self._dirty.is_channel:
            return channels.scan_page(self._channel(), part.epoch, part.shard, place, cursor)
        one_server = self._dirty.hw.store.kind != "cluster"
        return single.scan_page(IckHandle(self._dirty.name, one_server), place, cursor)

    def _channel(self) -> ChannelHandle:
        return ChannelHandle(self._dirty.name, None, "spark", LEASE_MS, set())


def batch_of(listed: list[Listed]) -> pa.RecordBatch:
    """Return members as the columns of the source."""
    columns = [
        [encode(one.member) for one in listed],
        [one.score for one in listed],
        [one.place for one in listed],
        [one.shard for one in listed],
    ]
    return to_batch(columns, _COLUMNS)


# ── Sink ──────────────────────────────────────────────────────────────────────────────────────────
# A dirty list as a sink: each row says that a member is dirty.
#
# Tasks add as they go. Adding twice is adding once: a member is in the list once, under the lowest
# score it was given. A repeated task or write can make dirty again what was cleaned in between,
# and a write that fails has added what its tasks had come to. Either way a member is looked at
# once more than needed, and none is missed.
#
# The columns are ``member`` (string or binary), ``score`` (a number) and, into a channel,
# ``not_before`` (timestamp, or ms since 1970; null is now).


_TYPES: dict[str, tuple[type[DataType], ...]] = {
    "member": BYTES,
    "score": SCORE,
}
ACCEPTED = AcceptedColumns("an Ick", _TYPES, ["member", "score"])
ACCEPTED_BY_CHANNEL = AcceptedColumns(
    "a channel", {**_TYPES, "not_before": (TimestampType, LongType)}, ["member", "score"]
)


def add_rows(dirty: DirtyList, batches: Iterable[pa.RecordBatch]) -> None:
    """Add all rows of a task."""
    # One object for all batches: a channel looks at its layout when it is first used.
    channel, ick = (dirty.channel, None) if dirty.is_channel else (None, dirty.ick)
    for batch in batches:
        for not_before, scores in by_time(batch).items():
            if channel is not None:
                channel.add(scores, not_before=not_before)
            elif ick is not None:
                ick.add(scores)


def by_time(batch: pa.RecordBatch) -> dict[int | None, dict[bytes, float]]:
    """Return members with their lowest scores, for each time before which they are not due."""
    ACCEPTED.refuse_nulls(batch)
    members = batch.column("member").cast(pa.binary()).to_pylist()
    found: dict[int | None, dict[bytes, float]] = {}
    for member, score, time in zip(
        members, batch.column("score").to_pylist(), _times(batch), strict=True
    ):
        scores = found.setdefault(time, {})
        known = scores.get(member)
        # NaN is lower than nothing, but must reach the add, which refuses it.
        if known is None or score < known or math.isnan(score):
            scores[member] = score
    return found


def _times(batch: pa.RecordBatch) -> list[int | None]:
    """Return the time of each row in ms, rounded up, so that no member is due too early."""
    if "not_before" not in batch.schema.names:
        return [None] * batch.num_rows
    column = batch.column("not_before")
    if pa.types.is_timestamp(column.type):
        column = column.cast(pa.timestamp("us", column.type.tz)).cast(pa.int64())
        column = pc.divide(pc.add(column, 999), 1000)
    times: list[int | None] = column.to_pylist()
    return times


# ── Source ────────────────────────────────────────────────────────────────────────────────────────
# ``format("headwater_ick")`` itself: its options, and what is refused before anything runs.


READ_OPTIONS = ("url", "ick", "channel")
WRITE_OPTIONS = (*READ_OPTIONS, "shards")


class IckSource(ReadFormat, WriteFormat):
    """The dirty list that the option ``ick`` or ``channel`` names, of the store ``url``."""

    CALLED = "headwater_ick"
    WHAT = "a dirty list"
    PATHS = ("ick", "channel")
    READ_OPTIONS = READ_OPTIONS
    WRITE_OPTIONS = WRITE_OPTIONS

    def columns(self, options: SourceOptions) -> StructType:
        """Return the columns of the members."""
        _dirty_list(options)
        return COLUMNS

    def plan_read(self, options: SourceOptions, schema: StructType) -> DataSourceReader:
        """Plan a read of the list; nothing of it is reserved."""
        refuse_other_schema(schema, COLUMNS, self.WHAT)
        return DirtyReader(_dirty_list(options))

    def plan_write(self, options: SourceOptions, schema: StructType) -> IdempotentWrite:
        """Plan a write. Raises InvalidInput, and NotAnIck when something else lies there."""
        dirty = _dirty_list(options)
        accepted = ACCEPTED_BY_CHANNEL if dirty.is_channel else ACCEPTED
        names = accepted.accept(schema, options).names
        dirty.exists()
        return IdempotentWrite(partial(add_rows, dirty), names)


def _dirty_list(options: SourceOptions) -> DirtyList:
    ick, channel = options.text("ick"), options.text("channel")
    if (ick is None) == (channel is None):
        raise InvalidInput("name a dirty list by one of the options 'ick' and 'channel'")
    shards = options.number("shards", 1, MAX_SHARDS) if "shards" in options else None
    if shards is not None and channel is None:
        raise InvalidInput("option 'shards' is for a channel; leave it out for an Ick")
    url = absolute_url(options.text("url"))
    return DirtyList(url, ick or channel or "", channel is not None, shards)
