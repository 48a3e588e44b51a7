"""The format itself: its options, and what is refused before anything runs."""

from __future__ import annotations

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import StructType

from headwater.spark.engine.accepted_columns import check_append, check_source
from headwater.spark.engine.failures import one_line
from headwater.spark.engine.options import Options
from headwater.spark.engine.write_identity import SPARKS_OWN
from headwater.spark.timelines.reader import COLUMNS, TimelineReader
from headwater.spark.timelines.sink import TAKEN, TimelineStreamWriter, TimelineWriter
from headwater.spark.timelines.target import OPTIONS, FarmPlan, plan_of

READ_OPTIONS = (*OPTIONS, "deleted")
WRITE_OPTIONS = (*OPTIONS, "quorum")


class TimelineSource(DataSource):
    """All timelines of the farm that the option ``instances`` names."""

    @classmethod
    def name(cls) -> str:
        """Give the name for ``format``."""
        return "headwater_timeline"

    @one_line()
    def schema(self) -> StructType:
        """Give the columns of the elements."""
        plan_of(Options(self.options, READ_OPTIONS))
        return COLUMNS

    @one_line()
    def reader(self, schema: StructType) -> DataSourceReader:
        """Plan a look at all timelines; nothing is changed or repaired."""
        check_source(schema, COLUMNS, "a farm of timelines")
        options = Options(self.options, READ_OPTIONS)
        return TimelineReader(plan_of(options), options.flag("deleted", False))

    @one_line()
    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Plan a batch write."""
        return TimelineWriter(_write_to(Options(self.options, WRITE_OPTIONS), schema, overwrite))

    @one_line()
    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802  Spark's name
        """Plan the writes of a streaming query."""
        options = Options(self.options, (*WRITE_OPTIONS, *SPARKS_OWN))
        return TimelineStreamWriter(_write_to(options, schema, overwrite))


def _write_to(options: Options, schema: StructType, overwrite: bool) -> FarmPlan:
    check_append(overwrite, "a farm of timelines")
    TAKEN.check(schema)
    return plan_of(options)
