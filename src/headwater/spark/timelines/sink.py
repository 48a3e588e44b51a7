"""Timelines as a sink: each row is an insert, or a delete.

Tasks write as they go. Operations commute, and writing one twice changes nothing: rows may come in
any order, and any number of times.

The columns are ``key`` and ``member`` (string or binary), ``score`` (a number) and, if there,
``deleted`` (boolean; null is false).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pyarrow as pa
from pyspark.sql.types import BooleanType

from headwater.spark.engine.accepted_columns import BYTES, SCORE, AcceptedColumns
from headwater.spark.timelines.target import FarmPlan
from headwater.timeline import Operation, apply

ACCEPTED = AcceptedColumns(
    "timelines",
    {
        "key": BYTES,
        "score": SCORE,
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
    return map(Operation, keys, batch.column("score").to_pylist(), members, deleted)
