"""A dirty list as rows: each member where it lies, none of them reserved.

A task reads one set of an Ick, or one shard of a channel, page by page. As with ``scan``, a member
that stays where it is is returned at least once; one that moves meanwhile may be returned twice, or
not at all.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition

from headwater.errors import UnknownIck
from headwater.ick import channels, single
from headwater.ick.channels import LEASE_MS, ChannelHandle
from headwater.ick.keys import encode
from headwater.ick.single import IckHandle
from headwater.ick.types import Listed, Place
from headwater.spark.engine.arrow_rows import BATCH_ROWS, spark_schema, to_batch
from headwater.spark.engine.failures import one_line
from headwater.spark.icks.target import DirtyList
from headwater.store.call import Operation

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
