"""Writing to the log from Spark, against sinks that keep nothing of the same rows.

A sink in Python that throws rows away shows what they cost on their way from Spark to Python, which
every such sink pays. Spark's own noop stays in the JVM and moves them nowhere.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from bench.efforts import SHOWN, Effort, Goals, Planned, effort, interleave_efforts, row_of_rates
from bench.harness import Row
from bench.spark_rows import SparkRows, read

_EVENT = """
concat('{"id": ', id, ', "ride": ', id % 20000, ', "pilot": "pilot-', id * 7919 % 3000,
       '", "distance_mm": ', id * 104729 % 90000000, ', "at": ', 1790000000000 + id * 7,
       ', "state": "', elt(1 + id % 5, 'requested', 'accepted', 'started', 'finished', 'cancelled'),
       '"}')
"""


class Thrown(WriterCommitMessage):
    """Nothing is left to say of rows that were thrown away."""


class ThrowingWriter(DataSourceArrowWriter):
    """Takes Arrow batches as our sinks do, and drops them."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        for _ in iterator:
            pass
        return Thrown()


class ThrowingSink(DataSource):
    """The least that a sink in Python can do."""

    @classmethod
    def name(cls) -> str:
        return "bench_throwing"

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:  # noqa: ARG002
        return ThrowingWriter()


class Sinks:
    """Rows about writes of rows that Spark has in memory."""

    def __init__(self, streams: SparkRows, count: int) -> None:
        self.streams = streams
        self.count = count

    def rows(self) -> list[Planned]:
        """Return the rows that can be measured."""
        thrown = f"Spark: write {self.count:,} / thrown away by a sink in Python"
        noop = f"Spark: write {self.count:,} / noop, in the JVM"
        return [
            Planned(thrown, lambda: self.write(thrown, self._throw, Goals(0.5, 0.7))),
            Planned(noop, lambda: self.write(noop, read, SHOWN)),
        ]

    def write(self, name: str, peer: Callable[[DataFrame], None], goals: Goals) -> Row:
        """Measure a write into a stream against a peer that keeps nothing of the same rows."""
        spark = self.streams.spark
        spark.dataSource.register(ThrowingSink)
        columns = ("concat('ride-', id % 20000) AS tag", f"{_EVENT} AS value")
        rows = spark.range(0, self.count).selectExpr(*columns).cache()
        rows.count()
        stream = self.streams.hw.stream("written")

        def ours() -> Effort:
            writer = rows.write.format("headwater").mode("append")
            took = effort(writer.options(url=self.streams.url, stream=stream.name).save)
            stream.delete()
            return took

        def theirs() -> Effort:
            return effort(lambda: peer(rows))

        ours()
        theirs()
        a, b = interleave_efforts(ours, theirs, self.streams.rounds)
        rows.unpersist()
        return row_of_rates(name, self.count, a, self.count, b, goals)

    def _throw(self, rows: DataFrame) -> None:
        rows.write.format("bench_throwing").mode("append").save()
