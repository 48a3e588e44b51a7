"""Timelines as a sink: each row is an insert, or a delete.

Tasks write as they go. Operations commute, and to write one again changes nothing: so nothing has
to be staged or remembered, whoever dies and is repeated, and rows may come in any order.

The columns are ``key`` and ``member`` (string or binary), ``score`` (a number) and, if there,
``deleted`` (boolean; null is not).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import (
    BinaryType,
    BooleanType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    ShortType,
    StringType,
)

from headwater.errors import InvalidInput
from headwater.spark.engine.accepted_columns import AcceptedColumns
from headwater.spark.engine.failures import one_line
from headwater.spark.timelines.target import FarmPlan
from headwater.timeline import Operation, apply

ACCEPTED = AcceptedColumns(
    "timelines",
    {
        "key": (StringType, BinaryType),
        "score": (DoubleType, FloatType, LongType, IntegerType, ShortType),
        "member": (StringType, BinaryType),
        "deleted": (BooleanType,),
    },
    ["key", "score", "member"],
)


def write_rows(plan: FarmPlan, batches: Iterable[pa.RecordBatch]) -> WriterCommitMessage:
    """Write all rows of a task; raises QuorumFailed."""
    with one_line():
        farm = plan.farm()
        for batch in batches:
            apply(farm, operations_of(batch))
        farm.settle()
    return WriterCommitMessage()


def operations_of(batch: pa.RecordBatch) -> Iterator[Operation]:
    """Give the operations that rows stand for. Raises InvalidInput."""
    for name in ACCEPTED.needed:
        if nulls := batch.column(name).null_count:
            raise InvalidInput(
                f"{nulls} of the rows have a {name} that is null; drop them by "
                f".where('{name} IS NOT NULL')"
            )
    keys, members = (batch.column(n).cast(pa.binary()).to_pylist() for n in ("key", "member"))
    deleted = [False] * batch.num_rows
    if "deleted" in batch.schema.names:
        deleted = batch.column("deleted").fill_null(False).to_pylist()
    return map(Operation, keys, batch.column("score").to_pylist(), members, deleted)


class TimelineWriter(DataSourceArrowWriter):
    """A batch write."""

    def __init__(self, plan: FarmPlan) -> None:
        self._plan = plan

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Write the rows of a task."""
        return write_rows(self._plan, iterator)


class TimelineStreamWriter(DataSourceStreamArrowWriter):
    """The writes of a streaming query."""

    def __init__(self, plan: FarmPlan) -> None:
        self._plan = plan

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Write the rows of a task."""
        return write_rows(self._plan, iterator)
