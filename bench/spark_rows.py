"""What all measurements of Spark share: the session, the store, the rows in it, and a warm JVM."""

from __future__ import annotations

import pyarrow as pa
import redis
from pyspark.sql import DataFrame, SparkSession

import headwater
from bench.efforts import Work
from bench.events import events
from bench.harness import socket_url

PART = 100_000


class SparkRows:
    """A session, and streams that are filled when a row first needs them."""

    def __init__(
        self, spark: SparkSession, native: redis.Redis, rounds: int, rows: int, warm: int
    ) -> None:
        self.spark = spark
        self.native = native
        self.url = socket_url(native)
        self.rounds = rounds
        self.count = max(PART, rows // PART * PART)
        self.hw = headwater.connect(self.url)
        self._warm = warm
        self._is_warm = False
        tags, values = zip(*events(PART), strict=True)
        columns = [pa.array(tags), pa.array(values, pa.binary())]
        self._part = pa.RecordBatch.from_arrays(columns, names=["tag", "value"])

    def close(self) -> None:
        """Close the client of the store."""
        self.hw.close()

    def fill(self, name: str, rows: int) -> headwater.Stream:
        """Write a stream; already there means already filled."""
        stream = self.hw.stream(name)
        for _ in range((rows - stream.info().last) // PART):
            stream.append(self._part)
        return stream

    def frame(self, name: str, **options: object) -> DataFrame:
        """Return a stream."""
        reader = self.spark.read.format("headwater").option("url", self.url).option("stream", name)
        return reader.options(**{key: str(value) for key, value in options.items()}).load()

    def all_rows(self) -> str:
        """Return the stream of all rows, filled."""
        self.fill("rows", self.count)
        return "rows"

    def warm_up(self, work: Work, share: float = 1) -> None:
        """Run small work until it is compiled, or for a share of that; what ran before helps."""
        for _ in range(max(1, round(share * self._warm))):
            work()

    def warm_up_reads(self) -> None:
        """Run reads of a small stream, in one task and in two, before the first row of reads."""
        if self._is_warm:
            return
        self._is_warm = True
        self.fill("small", PART)
        self.warm_up(lambda: read(self.frame("small").coalesce(1)))
        self.warm_up(lambda: read(self.frame("small", minPartitions=2)))


def read(frame: DataFrame) -> None:
    """Run a query for nothing but its time."""
    frame.write.format("noop").mode("overwrite").save()
