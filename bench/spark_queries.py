"""Queries that need not read all of a stream, against what else would answer them.

The same rows as Parquet files, compressed as the log compresses them; the same query with its
filter left to Spark; a full read; and a session that somebody made without us.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pyspark.sql import DataFrame

from bench.efforts import Effort, Goals, Planned, compare_rates, compare_times, effort
from bench.harness import Row
from bench.spark_rows import SparkRows, read
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
_PROCESSOR = "from bench.efforts import processor_seconds; print(processor_seconds())"


class Queries:
    """Rows about single queries over all rows of a stream."""

    def __init__(self, streams: SparkRows) -> None:
        self.streams = streams

    def rows(self) -> list[Planned]:
        """Return the rows that can be measured."""
        count = f"{self.streams.count:,}"
        read_all = f"Spark: read all columns of {count} / zstd Parquet"
        counting = f"Spark: count(*) of {count} / zstd Parquet"
        by_tag = f"Spark: filter {count} by tag / filtered by Spark"
        return [
            Planned(read_all, lambda: self.read_all(read_all)),
            Planned(counting, lambda: self.count(counting)),
            Planned(by_tag, lambda: self.tag_filter(by_tag)),
            *(self._last_rows(what) for what in ("offset", "time")),
            *(self._first_row(what) for what in ("range", "stream")),
        ]

    def frame(self) -> DataFrame:
        """Return the stream of all rows."""
        return self.streams.frame("rows")

    @contextmanager
    def files(self) -> Iterator[str]:
        """Write the rows of the stream as Parquet, for a while."""
        self.streams.all_rows()
        with tempfile.TemporaryDirectory(prefix="hw-bench-") as folder:
            path = str(Path(folder) / "rows")
            self.frame().write.option("compression", "zstd").parquet(path)
            yield path

    def read_all(self, name: str) -> Row:
        """Measure a read of all columns, each with as many tasks as it likes."""
        with self.files() as path:
            return compare_rates(
                name,
                self.streams.count,
                lambda: read(self.frame()),
                lambda: read(self.streams.spark.read.parquet(path)),
                self.streams.rounds,
                Goals(1.5, 2),
            )

    def count(self, name: str) -> Row:
        """Measure a count of all rows."""

        def check(frame: DataFrame) -> None:
            assert frame.count() == self.streams.count

        with self.files() as path:
            self.streams.warm_up(lambda: check(self.frame()))
            return compare_rates(
                name,
                self.streams.count,
                lambda: check(self.frame()),
                lambda: check(self.streams.spark.read.parquet(path)),
                self.streams.rounds,
                Goals(1, 5),
            )

    def tag_filter(self, name: str) -> Row:
        """Measure the rows of one tag, against the same with no filter pushed down."""
        self.streams.all_rows()
        conf = self.streams.spark.conf

        def pushed() -> None:
            read(self.frame().where(f"tag = '{TAG}'"))

        def unpushed() -> None:
            conf.set(PUSHDOWN, "false")
            try:
                pushed()
            finally:
                conf.set(PUSHDOWN, "true")

        return compare_rates(
            name, self.streams.count, pushed, unpushed, self.streams.rounds, Goals(1, 3)
        )

    def _last_rows(self, what: str) -> Planned:
        """Measure a query for the end of the stream, against one for all of it."""
        name = f"Spark: the last {LAST:,} of {self.streams.count:,} by {what} / full read, time"

        def measure() -> Row:
            self.streams.all_rows()
            start = self.streams.count - LAST + 1
            [row] = self.frame().where(f"offset = {start}").collect()
            conditions = {
                "offset": f"offset >= {start}",
                "time": f"time >= timestamp '{row.time.isoformat()}Z'",
            }

            def last() -> None:
                read(self.frame().where(conditions[what]))

            self.streams.warm_up(last)
            return compare_times(
                name,
                lambda: effort(last),
                lambda: effort(lambda: read(self.frame())),
                self.streams.rounds,
                Goals(0.05, 0.02),
            )

        return Planned(name, measure)

    def _first_row(self, what: str) -> Planned:
        """Measure a program from its start to the first row that it prints."""
        name = f"Spark: session() to the first row of a {what} / bare SparkSession, time"

        def measure() -> Row:
            stream = _STREAM.format(url=self.streams.url, stream=self.streams.all_rows())
            last = {"range": _RANGE, "stream": stream}[what]
            return compare_times(
                name,
                lambda: program(_OURS, last),
                lambda: program(_BARE, last),
                min(self.streams.rounds, 3),
                Goals(1.3, 1.1),
            )

        return Planned(name, measure)


def program(*lines: str) -> Effort:
    """Run lines as a program of its own; it reports its processor time at its end."""
    words = [sys.executable, "-c", "\n".join((*lines, _PROCESSOR))]
    began = time.perf_counter()
    done = subprocess.run(words, check=True, capture_output=True, text=True)
    seconds = time.perf_counter() - began
    return Effort(seconds, float(done.stdout.splitlines()[-1]))
