"""Timelines as a sink: each row is an insert, or a delete.

Tasks write as they go. Operations commute, and writing one twice changes nothing: rows may come in
any order, and any number of times.

The columns are ``key`` and ``member`` (string or binary), ``score`` (a number, also a decimal or as
text) and, if there, ``deleted`` (boolean; null is false). A score that would be rounded is refused.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import pyarrow as pa
from pyspark.sql.types import BooleanType, DecimalType, StringType

from headwater.spark.engine.accepted_columns import BYTES, SCORE, AcceptedColumns
from headwater.spark.timelines.target import FarmPlan
from headwater.timeline import Operation, apply
from headwater.timeline.records import read_score

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
