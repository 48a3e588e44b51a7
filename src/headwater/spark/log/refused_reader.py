"""A streaming read whose options are refused: it raises the error with Spark's first question.

PySpark's process of a streaming source calls ``stop`` of the reader in the end, also when there is
none because ``streamReader`` has raised, and reports that fault in place of the error.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    SupportsTriggerAvailableNow,
)

from headwater.errors import HeadwaterError
from headwater.spark.engine.failures import one_line


class RefusedReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Raises an error wherever a query would begin."""

    def __init__(self, error: HeadwaterError) -> None:
        self._error = error

    @one_line()
    def initialOffset(self) -> dict[str, Any]:  # noqa: N802  Spark's name
        """Raise the error, in a new query."""
        raise self._error

    @one_line()
    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802, ARG002
        """Raise the error, in a query that goes on."""
        raise self._error

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Return no limit: Spark asks for it before anything else."""
        return ReadAllAvailable()

    @one_line()
    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Raise the error, in a query that reads what is there and ends."""
        raise self._error

    @one_line()
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:  # noqa: ARG002
        """Raise the error, in a query that repeats a micro-batch."""
        raise self._error

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:  # noqa: ARG002
        """Raise the error; no task is planned."""
        raise self._error
