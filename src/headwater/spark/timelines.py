"""``format("headwater_timeline")``: all timelines of a farm as rows, and rows as operations."""

from __future__ import annotations

import asyncio
import os
import random
import threading
from collections.abc import AsyncIterator, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import BooleanType, DecimalType, StringType, StructType

from headwater.errors import InvalidInput
from headwater.spark.engine.columns import (
    BATCH_ROWS,
    BYTES,
    SCORE,
    AcceptedColumns,
    refuse_other_schema,
    spark_schema,
    to_batch,
)
from headwater.spark.engine.connections import absolute_url
from headwater.spark.engine.failures import one_line
from headwater.spark.engine.formats import ReadFormat, WriteFormat
from headwater.spark.engine.options import SourceOptions
from headwater.spark.engine.writes import IdempotentWrite
from headwater.timeline import AsyncFarm, Farm, Operation, apply
from headwater.timeline.farm.options import (
    DEFAULT_QUORUM,
    DEFAULT_TIMEOUT_MS,
    MAX_TIMEOUT_MS,
    parse_farm,
)
from headwater.timeline.layout import WRITE_ONLY, safe_farm
from headwater.timeline.records import DEFAULT_SIZE, MAX_KEEP, MAX_SIZE, Key, State, read_score
from headwater.timeline.walker import AT_ONCE, Scan, WalkPositions, count_sets

# ── Target ────────────────────────────────────────────────────────────────────────────────────────
# Which farm is meant, and one client of it per process, kept as long as the process lives.


INSTANCES_VARIABLE = "HEADWATER_INSTANCES"
OPTIONS = ("instances", "maxSize", "keep", "horizon", "hash", "timeoutMs")

_farms: dict[tuple[int, FarmPlan], Farm] = {}
_opening = threading.Lock()


@dataclass(frozen=True, slots=True)
class FarmPlan:
    """A farm, and how to use it; goes to tasks, so it holds words only."""

    instances: str
    max_size: int = DEFAULT_SIZE
    horizon: float | None = None
    hash: str = "murmur3"
    timeout_ms: int = DEFAULT_TIMEOUT_MS
    quorum: str = DEFAULT_QUORUM
    keep: int | None = None

    def __repr__(self) -> str:
        return f"FarmPlan({safe_farm(self.instances)!r})"

    def _words(self) -> dict[str, Any]:
        return {
            "write_quorum": self.quorum,
            "max_size": self.max_size,
            "keep": self.keep,
            "horizon": self.horizon,
            "hash": self.hash,
            "timeout_ms": self.timeout_ms,
        }

    def open(self) -> AsyncFarm:
        """Open a farm for one event loop. Raises InvalidInput."""
        return AsyncFarm.open(self.instances, **self._words())

    def require(self) -> None:
        """Raise FarmUnreachable when no instance of the farm serves."""

        async def look() -> None:
            async with self.open() as farm:
                await farm.follow()
                await count_sets(farm.source)

        asyncio.run(look())

    def farm(self) -> Farm:
        """Return this process's farm; a forked child gets its own. Raises InvalidInput."""
        with _opening:
            key = (os.getpid(), self)
            if key not in _farms:
                _farms[key] = Farm.open(self.instances, **self._words())
            return _farms[key]


def absolute_farm(instances: str | None) -> str:
    """Return a spelling of a farm that means the same in every process of this machine.

    None is ``$HEADWATER_INSTANCES``. Raises InvalidInput.
    """
    instances = instances or os.environ.get(INSTANCES_VARIABLE)
    if not instances:
        raise InvalidInput(
            "no farm is named; add .option('instances', 'host:port,host:port;host:port'), or set "
            f"${INSTANCES_VARIABLE}"
        )
    clusters = [
        [absolute_url(url) if url.startswith("embedded:") else url for url in plan.urls]
        + [WRITE_ONLY] * plan.write_only
        for plan in parse_farm(instances)
    ]
    return ";".join(",".join(cluster) for cluster in clusters)


def plan_of(options: SourceOptions) -> FarmPlan:
    """Find out which farm the options name. Raises InvalidInput."""
    plan = FarmPlan(
        absolute_farm(options.text("instances")),
        options.number("maxSize", 1, MAX_SIZE) or DEFAULT_SIZE,
        _horizon(options.text("horizon")),
        options.text("hash", "murmur3") or "",
        options.number("timeoutMs", 1, MAX_TIMEOUT_MS) or DEFAULT_TIMEOUT_MS,
        options.text("quorum") or DEFAULT_QUORUM,
        options.number("keep", 1, MAX_KEEP),
    )
    # Raises now if anything is wrong with it; nothing is sent yet.
    plan.open()
    return plan


def _horizon(text: str | None) -> float | None:
    try:
        return None if text is None else read_score(text)
    except InvalidInput as error:
        raise InvalidInput(f"option 'horizon': {error}") from None


# ── Reader ────────────────────────────────────────────────────────────────────────────────────────
# All timelines of a farm as rows: what is true of each member, by all clusters together.
#
# A task scans one instance. Copies of a timeline lie on several instances; the timeline is read by
# the task of the first of them, in the order of clusters, as a whole and merged from all clusters,
# so each element is returned once. What is written meanwhile may be returned or not.


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


# ── Sink ──────────────────────────────────────────────────────────────────────────────────────────
# Timelines as a sink: each row is an insert, or a delete.
#
# Tasks write as they go. Operations commute, and writing one twice changes nothing: rows may come
# in any order, and any number of times.
#
# The columns are ``key`` and ``member`` (string or binary), ``score`` (a number, also a decimal or
# as text) and, if there, ``deleted`` (boolean; null is false). A score that would be rounded is
# refused.


ACCEPTED = AcceptedColumns(
    "timelines",
    {
        "key": BYTES,
        "score": (*SCORE, DecimalType, StringType),
        "member": BYTES,
        "deleted": (BooleanType,),
    },
    ["key", "score", "member"],
)


def apply_rows(plan: FarmPlan, batches: Iterable[pa.RecordBatch]) -> None:
    """Write all rows of a task; raises QuorumFailed."""
    farm = plan.farm()
    for batch in batches:
        apply(farm, operations_of(batch))
    farm.settle()


def operations_of(batch: pa.RecordBatch) -> Iterator[Operation]:
    """Return the operations that rows stand for. Raises InvalidInput."""
    ACCEPTED.refuse_nulls(batch)
    keys, members = (batch.column(n).cast(pa.binary()).to_pylist() for n in ("key", "member"))
    deleted = [False] * batch.num_rows
    if "deleted" in batch.schema.names:
        deleted = batch.column("deleted").fill_null(False).to_pylist()
    return map(Operation, keys, _scores(batch.column("score")), members, deleted)


def _scores(column: pa.Array) -> list[float]:
    """Return scores as they are, decimals and text as the numbers that they spell."""
    scores: list[Any] = column.to_pylist()
    if pa.types.is_integer(column.type) or pa.types.is_floating(column.type):
        return scores
    return [read_score(str(score)) for score in scores]


# ── Source ────────────────────────────────────────────────────────────────────────────────────────
# ``format("headwater_timeline")`` itself: its options, and what is refused at once.


READ_OPTIONS = (*OPTIONS, "deleted")
WRITE_OPTIONS = (*OPTIONS, "quorum")


class TimelineSource(ReadFormat, WriteFormat):
    """All timelines of the farm that the option ``instances`` names."""

    CALLED = "headwater_timeline"
    WHAT = "a farm of timelines"
    READ_OPTIONS = READ_OPTIONS
    WRITE_OPTIONS = WRITE_OPTIONS

    def is_lost(self) -> bool:
        """Return whether no farm is named at all."""
        return super().is_lost() and INSTANCES_VARIABLE not in os.environ

    def columns(self, options: SourceOptions) -> StructType:
        """Return the columns of the elements."""
        plan_of(options)
        return COLUMNS

    def plan_read(self, options: SourceOptions, schema: StructType) -> DataSourceReader:
        """Plan a read of all timelines; nothing is repaired."""
        refuse_other_schema(schema, COLUMNS, self.WHAT)
        return TimelineReader(plan_of(options), options.flag("deleted", False))

    def plan_write(self, options: SourceOptions, schema: StructType) -> IdempotentWrite:
        """Plan a write. Raises InvalidInput."""
        names = ACCEPTED.accept(schema, options).names
        return IdempotentWrite(partial(apply_rows, plan_of(options)), names)
