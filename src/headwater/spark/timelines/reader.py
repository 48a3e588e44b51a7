"""All timelines of a farm as rows: what is true of each member, by all clusters together.

A task scans one instance. Copies of a timeline lie on several instances; the timeline is read by
the task of the first of them, in the order of clusters, as a whole and merged from all clusters, so
each element is returned once. What is written meanwhile may be returned or not.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition

from headwater.spark.engine.arrow_rows import BATCH_ROWS, spark_schema, to_batch
from headwater.spark.engine.failures import one_line
from headwater.spark.timelines.target import FarmPlan
from headwater.timeline.records import Key, State
from headwater.timeline.walker import AT_ONCE, Scan, WalkPositions

_COLUMNS = pa.schema(
    [
        pa.field("key", pa.binary(), nullable=False),
        pa.field("score", pa.float64(), nullable=False),
        pa.field("member", pa.binary(), nullable=False),
        pa.field("deleted", pa.bool_(), nullable=False),
    ]
)
COLUMNS = spark_schema(_COLUMNS)


@dataclass(frozen=True)
class Share(InputPartition):
    """What one task scans: an instance, by the places of its cluster and of itself."""

    cluster: int
    instance: int


def shares(plan: FarmPlan) -> list[Share]:
    """Return a share for every instance of a farm, as it lies now."""

    async def find() -> list[Share]:
        async with plan.open() as farm:
            await farm.follow()
            return [
                Share(number, place)
                for number, cluster in enumerate(farm.source)
                for place in range(len(cluster.pool.instances))
            ]

    return asyncio.run(find())


class TimelineReader(DataSourceReader):
    """Plans a read of a farm, and is sent to every task of it."""

    def __init__(self, plan: FarmPlan, deleted: bool) -> None:
        self._plan = plan
        self._deleted = deleted

    @one_line()
    def partitions(self) -> list[InputPartition]:
        """Return a task for each instance."""
        return list(shares(self._plan))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one task; raises StoreError when its instance does not serve."""
        assert isinstance(partition, Share)
        with one_line(), asyncio.Runner() as runner:
            batches = self._batches(partition)
            while (batch := runner.run(_next(batches))) is not None:
                yield batch

    async def _batches(self, share: Share) -> AsyncIterator[pa.RecordBatch]:
        rows: list[tuple[Key, float, bytes, bool]] = []
        async with self._plan.open() as farm:
            await farm.follow()
            only = (share.cluster, share.instance)
            scan = Scan(farm.source, WalkPositions(), random.Random(), only)
            async for met in scan.batches():
                for at in range(0, len(met.keys), AT_ONCE):
                    found = await farm.states(met.keys[at : at + AT_ONCE])
                    rows += self._rows(found)
                    if len(rows) >= BATCH_ROWS:
                        yield to_batch(zip(*rows, strict=True), _COLUMNS)
                        rows = []
            for error in scan.failed.values():
                raise error
        if rows:
            yield to_batch(zip(*rows, strict=True), _COLUMNS)

    def _rows(
        self, found: dict[Key, dict[bytes, State]]
    ) -> Iterator[tuple[Key, float, bytes, bool]]:
        for key, states in found.items():
            for member, state in states.items():
                if self._deleted or not state.deleted:
                    yield key, state.score, member, state.deleted


async def _next(batches: AsyncIterator[pa.RecordBatch]) -> pa.RecordBatch | None:
    return await anext(batches, None)
