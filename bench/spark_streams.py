"""Streaming queries: catching up against a batch read, and a trickle against the rate source."""

from __future__ import annotations

import contextlib
import statistics
import tempfile
import threading
from collections.abc import Iterator

from pyspark.sql import DataFrame

import headwater
from bench.efforts import (
    SHOWN,
    Effort,
    Goals,
    Planned,
    compare_rates,
    compare_times,
    processor_seconds,
)
from bench.harness import Row
from bench.spark_rows import PART, SparkRows, read

TRIGGER = "100 milliseconds"
# A streaming query is many small ones for the JVM.
_QUERIES = 0.2
_TRICKLE = "Spark: micro-batch at a trickle / rate source in the same session, time"
_AS_IT_COMES = "Spark: the same / rate source as Spark writes checkpoints, time"
# Which class writes the files of checkpoints: ours is set for all queries of a session.
_FILES = "fs.AbstractFileSystem.file.impl"
_HADOOPS_FILES = "org.apache.hadoop.fs.local.LocalFs"


class StreamQueries:
    """Rows about streaming queries."""

    def __init__(self, streams: SparkRows, trickle_s: int) -> None:
        self.streams = streams
        self.trickle_s = trickle_s

    def rows(self) -> list[Planned]:
        """Return the rows that can be measured."""
        count = self.streams.count
        part = max(PART, count // 10)
        return [
            self._catch_up(f"Spark: catch up {count:,} / batch read", count, Goals(0.8, 0.95)),
            self._catch_up(f"Spark: the same, {part:,} at a time / batch read", part, SHOWN),
            Planned(_TRICKLE, lambda: self.trickle(_TRICKLE, None, Goals(1.1, 1.0))),
            Planned(_AS_IT_COMES, lambda: self.trickle(_AS_IT_COMES, _HADOOPS_FILES, SHOWN)),
        ]

    def _catch_up(self, name: str, most: int, goals: Goals) -> Planned:
        """Measure a streaming query that begins far behind, against a batch read of the same."""

        def catching_up(stream: str = "rows") -> None:
            with tempfile.TemporaryDirectory(prefix="hw-bench-") as folder:
                reader = self.streams.spark.readStream.format("headwater")
                reader = reader.options(url=self.streams.url, stream=stream, minPartitions="2")
                frame = reader.option("maxOffsetsPerTrigger", most).load()
                writer = frame.writeStream.format("noop").option("checkpointLocation", folder)
                writer.trigger(availableNow=True).start().awaitTermination()

        def measure() -> Row:
            self.streams.all_rows()
            self.streams.fill("small", PART)
            self.streams.warm_up(lambda: catching_up("small"), share=_QUERIES)
            return compare_rates(
                name,
                self.streams.count,
                catching_up,
                lambda: read(self.streams.frame("rows", minPartitions=2)),
                self.streams.rounds,
                goals,
            )

        return Planned(name, measure)

    def trickle(self, name: str, peers_files: str | None, goals: Goals) -> Row:
        """Measure micro-batches of a few rows, against those of Spark's own rate source.

        That is the one with rows for every trigger: the other has some each second, and a JVM that
        rests between micro-batches is slower.
        """
        stream = self.streams.hw.stream("trickle")
        stream.write("first", b"")
        settings = self.streams.spark.conf
        before = settings.get(_FILES) or _HADOOPS_FILES

        def ours() -> Effort:
            reader = self.streams.spark.readStream.format("headwater")
            with trickling(stream):
                return self.batches(reader.options(url=self.streams.url, stream="trickle").load())

        def peer() -> Effort:
            reader = self.streams.spark.readStream.format("rate-micro-batch")
            settings.set(_FILES, peers_files or before)
            try:
                # The store has the same work.
                with trickling(stream):
                    return self.batches(reader.option("rowsPerBatch", 10).load())
            finally:
                settings.set(_FILES, before)

        ours()
        peer()
        return compare_times(name, ours, peer, min(self.streams.rounds, 3), goals)

    def batches(self, frame: DataFrame) -> Effort:
        """Return what a micro-batch takes, by the median, and in Spark's processes by the mean."""
        with tempfile.TemporaryDirectory(prefix="hw-bench-") as folder:
            writer = frame.writeStream.format("noop").option("checkpointLocation", folder)
            query = writer.trigger(processingTime=TRIGGER).start()
            used = processor_seconds("java")
            query.awaitTermination(self.trickle_s)
            while not (progress := [p for p in query.recentProgress if p["numInputRows"]]):
                query.awaitTermination(1)
            used = (processor_seconds("java") - used) / len(progress)
            query.stop()
        # The first ones warm up: codecs, checkpoint files, the JVM's compiler.
        later = progress[len(progress) // 2 :]
        times: list[float] = [p["durationMs"]["triggerExecution"] for p in later]
        return Effort(statistics.median(times) / 1000, used)


@contextlib.contextmanager
def trickling(stream: headwater.Stream) -> Iterator[None]:
    """Write a hundred messages a second."""
    over = threading.Event()

    def write() -> None:
        while not over.wait(0.01):
            stream.write("t", b"{}")

    thread = threading.Thread(target=write)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
