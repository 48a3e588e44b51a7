"""Writers whose tasks write at once: for formats in which writing a row twice is writing it once.

Nothing has to be staged or remembered there, whoever dies and is repeated. No row is dropped
either, whatever its epoch: a checkpoint that went back brings rows once more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TypeAlias

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)

from headwater.spark.engine.column_names import renamed
from headwater.spark.engine.failures import one_line

# Writes all rows of a task; Spark pickles it to send it to tasks.
WriteRows: TypeAlias = "Callable[[Iterator[pa.RecordBatch]], None]"


class _WritesAtOnce:
    """``names`` are those under which the rows are written, in the order of their columns."""

    def __init__(self, write_rows: WriteRows, names: Sequence[str]) -> None:
        self._write_rows = write_rows
        self._names = [*names]

    @one_line()
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Write the rows of a task."""
        self._write_rows(renamed(iterator, self._names))
        return WriterCommitMessage()


class IdempotentWriter(_WritesAtOnce, DataSourceArrowWriter):
    """A batch write."""


class IdempotentStreamWriter(_WritesAtOnce, DataSourceStreamArrowWriter):
    """The writes of a streaming query."""
