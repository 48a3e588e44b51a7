"""The log in Spark, in one warm session: reading, catching up, trickling, writing.

Each read goes to Spark's ``noop`` sink. A rate is that of the whole query, planning included. All
ratios are by time; beside each stands the same one by processor time.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

from pyspark.sql import SparkSession

from bench.efforts import Planned
from bench.harness import Row, server
from bench.spark_queries import Queries
from bench.spark_reads import Reads
from bench.spark_rows import SparkRows
from bench.spark_sinks import Sinks
from bench.spark_streams import StreamQueries
from headwater.spark import session

# What a row takes on the machine of docs/discussion/speed.md; more rounds would hardly change it.
MOST_ROUNDS = 5
TRICKLE_S = 15
# Small queries until the JVM has compiled what plans and runs them; it goes on with that for long,
# on a core that two tasks have no longer to spare.
WARM = 60
WRITTEN = 5_000_000


def run(rounds: int, rows: int, long: int, only: str) -> list[Row]:
    """Measure in a session of its own: all rows, or those whose name contains ``only``."""
    spark = session("local[2]", app_name="bench", **{"spark.driver.memory": "2g"})
    try:
        return measure(spark, min(rounds, MOST_ROUNDS), rows, long, TRICKLE_S, WARM, only)
    finally:
        spark.stop()


def measure(
    spark: SparkSession,
    rounds: int,
    rows: int,
    long: int,
    trickle_s: int,
    warm: int,
    only: str = "",
) -> list[Row]:
    """Measure with ``rows`` messages, and growth up to ``long``, after ``warm`` small queries."""
    with server("off") as native:
        streams = SparkRows(spark, native, rounds, rows, warm)
        try:
            planned = [*plan(streams, long, trickle_s, min(rows, WRITTEN))]
            return [told(one.measure()) for one in planned if only.lower() in one.name.lower()]
        finally:
            streams.close()


def told(row: Row) -> Row:
    """Print a row as soon as it is there: all of them take minutes."""
    figures = f"{row.ours} / {row.peer} = {row.ratio:.3f}, by processor time {row.by_processor:.3f}"
    print(f"{row.name}: {figures}", file=sys.stderr, flush=True)
    return row


def plan(streams: SparkRows, long: int, trickle_s: int, written: int) -> Iterator[Planned]:
    """Yield all rows, in the order in which they are measured."""
    yield from Reads(streams, long).rows()
    yield from Queries(streams).rows()
    yield from StreamQueries(streams, trickle_s).rows()
    yield from Sinks(streams, written).rows()
