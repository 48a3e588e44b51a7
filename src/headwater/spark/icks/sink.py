"""A dirty list as a sink: each row says that a member is dirty.

Tasks add as they go. Adding twice is adding once: a member is in the list once, under the lowest
score it was given. A repeated task or write can make dirty again what was cleaned in between, and a
write that fails has added what its tasks had come to. Either way a member is looked at once more
than needed, and none is missed.

The columns are ``member`` (string or binary), ``score`` (a number) and, into a channel,
``not_before`` (timestamp, or ms since 1970; null is now).
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import DataType, LongType, TimestampType

from headwater.spark.engine.accepted_columns import BYTES, SCORE, AcceptedColumns
from headwater.spark.icks.target import DirtyList

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
