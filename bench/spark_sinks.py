"""Writing to the log from Spark, against a writer that throws the same rows away."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

import headwater
from bench.harness import Row, interleave, rate, server, socket_url

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


def run(spark: SparkSession, rounds: int, count: int) -> list[Row]:
    """Measure with a warm session and rows that Spark has in memory."""
    spark.dataSource.register(ThrowingSink)
    columns = ("concat('ride-', id % 20000) AS tag", f"{_EVENT} AS value")
    rows = spark.range(0, count).selectExpr(*columns).cache()
    rows.count()
    try:
        ours, peer = _measure(rows, rounds, count)
    finally:
        rows.unpersist()
    figures = (f"{ours:,.0f}/s", f"{peer:,.0f}/s")
    name = f"Spark: write {count:,} / rows thrown away"
    return [Row(name, "off", *figures, ours / peer, least=0.5, aim=0.7)]


def _measure(rows: DataFrame, rounds: int, count: int) -> tuple[float, float]:
    with server("off") as native, headwater.connect(socket_url(native)) as hw:
        stream = hw.stream("written")

        def ours() -> float:
            writer = rows.write.format("headwater").mode("append")
            found = rate(count, writer.options(url=socket_url(native), stream=stream.name).save)
            stream.delete()
            return found

        def peer() -> float:
            return rate(count, rows.write.format("bench_throwing").mode("append").save)

        ours()
        peer()
        return interleave(ours, peer, rounds)
