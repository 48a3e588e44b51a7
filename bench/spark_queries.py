"""Queries that need not read all of a stream, against what else would answer them.

The same rows as Parquet files, compressed as the log compresses them; the same query with its
filter left to Spark; a full read; and a session that somebody made without us.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from bench.harness import Row, interleave
from headwater.spark.engine.optimizer_rule import PUSHDOWN

LAST = 10_000
# One of the 20,000 rides of the events.
TAG = "ride-77"
_OURS = "from headwater.spark import session; spark = session('local[2]')"
_BARE = (
    "from pyspark.sql import SparkSession; "
    "spark = SparkSession.builder.master('local[2]').getOrCreate()"
)
_RANGE = "print(spark.range(1).first())"
_STREAM = (
    "print(spark.read.format('headwater').options(url={url!r}, stream={stream!r}).load().first())"
)


class Queries:
    """A stream of a store, and the same rows in files."""

    def __init__(self, spark: SparkSession, url: str, stream: str, rows: int, rounds: int) -> None:
        self.spark = spark
        self.url = url
        self.stream = stream
        self.rows = rows
        self.rounds = rounds

    def run(self) -> list[Row]:
        """Measure all of them."""
        with self.files() as path:
            table = [self.read_all(path), self.count(path)]
        return [*table, self.tag_filter(), *self.last_rows(), *self.first_row()]

    def frame(self) -> DataFrame:
        """Return the stream."""
        reader = self.spark.read.format("headwater").option("url", self.url)
        return reader.option("stream", self.stream).load()

    @contextmanager
    def files(self) -> Iterator[str]:
        """Write the rows of the stream as Parquet, for a while."""
        with tempfile.TemporaryDirectory(prefix="hw-bench-") as folder:
            path = str(Path(folder) / "rows")
            self.frame().write.option("compression", "zstd").parquet(path)
            yield path

    def read_all(self, path: str) -> Row:
        """Measure a read of all columns, each with as many tasks as it likes."""
        return self.faster(
            "read all columns / zstd Parquet",
            lambda: consume(self.frame()),
            lambda: consume(self.spark.read.parquet(path)),
            (1.5, 2),
        )

    def count(self, path: str) -> Row:
        """Measure a count of all rows."""

        def check(frame: DataFrame) -> None:
            assert frame.count() == self.rows

        return self.faster(
            "count(*) / zstd Parquet",
            lambda: check(self.frame()),
            lambda: check(self.spark.read.parquet(path)),
            (1, 5),
        )

    def tag_filter(self) -> Row:
        """Measure the rows of one tag, against the same with no filter pushed down."""

        def unpushed() -> None:
            self.spark.conf.set(PUSHDOWN, "false")
            try:
                consume(self.frame().where(f"tag = '{TAG}'"))
            finally:
                self.spark.conf.set(PUSHDOWN, "true")

        return self.faster(
            "filter by tag / filtered by Spark",
            lambda: consume(self.frame().where(f"tag = '{TAG}'")),
            unpushed,
            (1, 3),
        )

    def last_rows(self) -> list[Row]:
        """Measure a query for the end of the stream, against one for all of it."""
        start = self.rows - LAST + 1
        [row] = self.frame().where(f"offset = {start}").collect()
        by_time = f"time >= timestamp '{row.time.isoformat()}Z'"
        return [
            self.shorter(
                f"the last {LAST:,} by {what} / full read, time",
                lambda: consume(self.frame().where(condition)),  # noqa: B023  called at once
                lambda: consume(self.frame()),
                self.rounds,
                (0.05, 0.02),
            )
            for what, condition in (("offset", f"offset >= {start}"), ("time", by_time))
        ]

    def first_row(self) -> list[Row]:
        """Measure a program from its start to the first row that it prints."""
        stream = _STREAM.format(url=self.url, stream=self.stream)
        return [
            self.shorter(
                f"session() to the first row of {what} / bare SparkSession, time",
                lambda: program(_OURS, last),  # noqa: B023  called at once
                lambda: program(_BARE, last),  # noqa: B023
                min(self.rounds, 3),
                (1.3, 1.1),
            )
            for what, last in (("a range", _RANGE), ("a stream", stream))
        ]

    def faster(
        self,
        name: str,
        ours: Callable[[], None],
        peer: Callable[[], None],
        goals: tuple[float, float],
    ) -> Row:
        """Compare rates of two ways to the same rows."""
        a, b = interleave(seconds(ours), seconds(peer), self.rounds)
        shown = f"{self.rows / a:,.0f}/s", f"{self.rows / b:,.0f}/s"
        return Row(f"Spark: {name}", "off", *shown, b / a, *goals)

    def shorter(
        self,
        name: str,
        ours: Callable[[], None],
        peer: Callable[[], None],
        rounds: int,
        goals: tuple[float, float],
    ) -> Row:
        """Compare times of two queries or programs."""
        a, b = interleave(seconds(ours), seconds(peer), rounds)
        shown = f"{a * 1000:,.0f} ms", f"{b * 1000:,.0f} ms"
        return Row(f"Spark: {name}", "off", *shown, a / b, *goals, False)


def consume(frame: DataFrame) -> None:
    """Run a query for nothing but its time."""
    frame.write.format("noop").mode("overwrite").save()


def seconds(work: Callable[[], None]) -> Callable[[], float]:
    """Return what measures how long some work takes."""

    def measure() -> float:
        began = time.perf_counter()
        work()
        return time.perf_counter() - began

    return measure


def program(*lines: str) -> None:
    """Run lines as a program of its own."""
    words = [sys.executable, "-c", "\n".join(lines)]
    subprocess.run(words, check=True, capture_output=True)
