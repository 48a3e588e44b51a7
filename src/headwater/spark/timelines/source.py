"""``format("headwater_timeline")`` itself: its options, and what is refused at once."""

from __future__ import annotations

import os
from functools import partial

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import StructType

from headwater.spark.engine.accepted_columns import refuse_other_schema, refuse_overwrite
from headwater.spark.engine.failures import one_line
from headwater.spark.engine.idempotent_writers import IdempotentStreamWriter, IdempotentWriter
from headwater.spark.engine.options import SourceOptions
from headwater.spark.engine.table_options import LostReader, are_lost
from headwater.spark.timelines.reader import COLUMNS, TimelineReader
from headwater.spark.timelines.sink import ACCEPTED, apply_rows
from headwater.spark.timelines.target import INSTANCES_VARIABLE, OPTIONS, FarmPlan, plan_of

READ_OPTIONS = (*OPTIONS, "deleted")
WRITE_OPTIONS = (*OPTIONS, "quorum")


class TimelineSource(DataSource):
    """All timelines of the farm that the option ``instances`` names."""

    @classmethod
    def name(cls) -> str:
        """Return the name for ``format``."""
        return "headwater_timeline"

    @one_line()
    def schema(self) -> StructType:
        """Return the columns of the elements."""
        plan_of(SourceOptions(self.options, READ_OPTIONS))
        return COLUMNS

    @one_line()
    def reader(self, schema: StructType) -> DataSourceReader:
        """Plan a read of all timelines; nothing is changed or repaired."""
        if are_lost(self.options) and INSTANCES_VARIABLE not in os.environ:
            return LostReader()
        refuse_other_schema(schema, COLUMNS, "a farm of timelines")
        options = SourceOptions(self.options, READ_OPTIONS)
        return TimelineReader(plan_of(options), options.flag("deleted", False))

    @one_line()
    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Plan a batch write."""
        options = SourceOptions(self.options, WRITE_OPTIONS)
        target, names = _write_to(options, schema, overwrite)
        return IdempotentWriter(partial(apply_rows, target), names)

    @one_line()
    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802  Spark's name
        """Plan the writes of a streaming query."""
        options = SourceOptions(self.options, WRITE_OPTIONS)
        target, names = _write_to(options, schema, overwrite)
        return IdempotentStreamWriter(partial(apply_rows, target), names)


def _write_to(
    options: SourceOptions, schema: StructType, overwrite: bool
) -> tuple[FarmPlan, list[str]]:
    """Return where rows go, and the names of their columns. Raises InvalidInput."""
    refuse_overwrite(overwrite, "a farm of timelines")
    names = ACCEPTED.accept(schema, options).names
    return plan_of(options), names
