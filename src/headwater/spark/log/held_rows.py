"""Small micro-batches, whose rows go to the JVM with their plan, without a task in Python.

To start a task in Python takes longer than to read a few messages. The process that plans a
micro-batch has a connection to the store, so it reads them itself; ``jvm/HeldReader.java`` takes
them out of the plan. What is wrong with the log is raised from there as it is from a task.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from headwater.spark.log.range_reader import RangeReader
from headwater.spark.log.task_ranges import OffsetRange

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
