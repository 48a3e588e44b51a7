"""A dirty list as rows: each member where it lies, none of them reserved.

A task reads one set of an Ick, or one shard of a channel, page by page. As with ``scan``, what
stays where it is comes at least once; what moves meanwhile may come twice, or not at all.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import (
    BinaryType,
    DoubleType,
    IntegerType,
    StringType,
    StructField,
    StructType,
)

from headwater.errors import UnknownIck
from headwater.ick import channels, single
from headwater.ick.layout import LEASE_MS, ChannelHandle
from headwater.ick.limits import encode
from headwater.ick.single import IckHandle
from headwater.ick.types import Listed, Place
from headwater.spark.engine.failures import one_line
from headwater.spark.icks.target import DirtyList
from headwater.store.call import Operation

BATCH_ROWS = 32_000
COLUMNS = StructType(
    [
        StructField("member", BinaryType(), nullable=False),
        StructField("score", DoubleType(), nullable=False),
        StructField("place", StringType(), nullable=False),
        StructField("shard", IntegerType()),
    ]
)
_ARROW = pa.schema(
    [
        pa.field("member", pa.binary(), nullable=False),
        pa.field("score", pa.float64(), nullable=False),
        pa.field("place", pa.string(), nullable=False),
        pa.field("shard", pa.int32()),
    ]
)


@dataclass(frozen=True)
class IckPart(InputPartition):
    """What one task looks at: some sets of an Ick, or of a shard in a layout of a channel."""

    places: tuple[Place, ...]
    epoch: int = 0
    shard: int = 0


class DirtyReader(DataSourceReader):
    """Plans a look at a dirty list, and is sent to every task of it."""

    def __init__(self, dirty: DirtyList) -> None:
        self._dirty = dirty

    @one_line()
    def partitions(self) -> list[InputPartition]:
        """Give a task for each set, or each shard. Raises UnknownIck, NotAnIck."""
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
        """Hand over the rows of one task."""
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
                        yield to_batch(held)
                        held = []
            if held:
                yield to_batch(held)

    def _page(
        self, part: IckPart, place: Place, cursor: str
    ) -> Operation[tuple[list[Listed], str]]:
        if self._dirty.is_channel:
            return channels.scan_page(self._channel(), part.epoch, part.shard, place, cursor)
        one_server = self._dirty.hw.store.kind != "cluster"
        return single.scan_page(IckHandle(self._dirty.name, one_server), place, cursor)

    def _channel(self) -> ChannelHandle:
        return ChannelHandle(self._dirty.name, None, "spark", LEASE_MS, set())


def to_batch(listed: list[Listed]) -> pa.RecordBatch:
    """Give members as the columns of the source."""
    columns = [
        [encode(one.member) for one in listed],
        [one.score for one in listed],
        [one.place for one in listed],
        [one.shard for one in listed],
    ]
    arrays = [pa.array(found, field.type) for found, field in zip(columns, _ARROW, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=_ARROW)
