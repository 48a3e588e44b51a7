"""The log in Spark, in one warm session: reading, catching up, trickling, writing.

Each read goes to Spark's ``noop`` sink. A rate is that of the whole query, planning included.
"""

from __future__ import annotations

import contextlib
import statistics
import tempfile
import threading
from collections.abc import Iterator

import pyarrow as pa
import redis
from pyspark.sql import DataFrame, SparkSession

import headwater
from bench import spark_sinks
from bench.events import events
from bench.harness import Row, interleave, rate, server, socket_url
from bench.spark_peers import SameSource, TupleSource
from bench.spark_queries import Queries
from headwater.spark import session

PART = 100_000
NATIVE = 200_000
TRIGGER = "100 milliseconds"
TRICKLE_S = 15
# Small queries until the JVM has compiled what plans and runs them; it goes on with that for long,
# on a core that two tasks have no longer to spare.
WARM = 100
CAUGHT_UP = 10_000_000
WRITTEN = 5_000_000


class Bench:
    """The session, the store, and what is in it."""

    def __init__(self, spark: SparkSession, native: redis.Redis, rounds: int, rows: int) -> None:
        self.spark = spark
        self.native = native
        self.url = socket_url(native)
        self.rounds = rounds
        self.rows = max(PART, rows // PART * PART)
        self.hw = headwater.connect(self.url)
        tags, values = zip(*events(PART), strict=True)
        columns = [pa.array(tags), pa.array(values, pa.binary())]
        self.part = pa.RecordBatch.from_arrays(columns, names=["tag", "value"])

    def fill(self, name: str, rows: int) -> headwater.Stream:
        """Write a stream; already there means already filled."""
        stream = self.hw.stream(name)
        for _ in range((rows - stream.info().last) // PART):
            stream.append(self.part)
        return stream

    def read(self, name: str, rows: int, tasks: int = 1, columns: str = "") -> float:
        """Read a stream in so many tasks; returns rows a second."""
        reader = self.spark.read.format("headwater").option("url", self.url).option("stream", name)
        reader = reader.option("columns", columns)
        if tasks == 1:
            # The one way to have a single task over many nodes: bring it together afterwards.
            return consume(rows, reader.load().coalesce(1))
        return consume(rows, reader.option("minPartitions", tasks).load())


def consume(rows: int, frame: DataFrame) -> float:
    """Run a query for nothing but its time; returns rows a second."""
    return rate(rows, lambda: frame.write.format("noop").mode("overwrite").save())


def scan_rate(stream: headwater.Stream, rows: int) -> float:
    """Read with the library alone, in this process."""

    def work() -> None:
        assert sum(batch.num_rows for batch in stream.scan()) == rows

    return rate(rows, work)


def against(name: str, ours: float, peer: float, least: float = 0, aim: float = 0) -> Row:
    """Compare two rates; without a least it is shown, not judged."""
    return Row(f"Spark: {name}", "off", f"{ours:,.0f}/s", f"{peer:,.0f}/s", ours / peer, least, aim)


def reads(bench: Bench, warm: int) -> list[Row]:
    """Measure batch reads against all that one may hold beside them."""
    rows, rounds = bench.rows, bench.rounds
    stream = bench.fill("rows", rows)
    bench.spark.dataSource.register(TupleSource)
    bench.spark.dataSource.register(SameSource)

    def ours() -> float:
        return bench.read("rows", rows)

    def same() -> float:
        frame = bench.spark.read.format("bench_same").option("rows", rows).load()
        return consume(rows, frame)

    bench.fill("small", PART)
    for number in range(warm):
        bench.read("small", PART, 1 + number % 2)
    return [
        against(
            "read the columns of scan, one task / scan",
            *interleave(
                lambda: bench.read("rows", rows, columns="offset,tag,value,time"),
                lambda: scan_rate(stream, rows),
                rounds,
            ),
            least=0.7,
            aim=1,
        ),
        against(
            "read, two tasks / one",
            *interleave(lambda: bench.read("rows", rows, 2), ours, rounds),
            least=1.5,
            aim=1.8,
        ),
        against("read / one batch again and again", *interleave(ours, same, rounds)),
        tuples(bench),
    ]


def tuples(bench: Bench) -> Row:
    """Measure against a native stream, read as tuples."""
    with bench.native.pipeline(transaction=False) as pipe:
        for number, (tag, value) in enumerate(events(NATIVE), 1):
            pipe.xadd("native", {"k": tag, "v": value})
            if number % 1000 == 0:
                pipe.execute()
    path = bench.url.removeprefix("unix://")

    def peer() -> float:
        reader = bench.spark.read.format("bench_tuples").option("path", path)
        return consume(NATIVE, reader.option("key", "native").load())

    figures = interleave(lambda: bench.read("rows", bench.rows), peer, bench.rounds)
    bench.native.delete("native")
    return against("read / tuples from XRANGE", *figures, least=4, aim=8)


def catch_up(bench: Bench) -> list[Row]:
    """Measure a streaming query that begins far behind, against a batch read of the same."""
    rows = min(bench.rows, CAUGHT_UP)
    bench.fill("past", rows)

    def catching_up(most: int) -> float:
        with tempfile.TemporaryDirectory(prefix="hw-bench-") as folder:
            reader = bench.spark.readStream.format("headwater").option("url", bench.url)
            reader = reader.option("stream", "past").option("maxOffsetsPerTrigger", most)
            frame = reader.option("minPartitions", 2).load()
            writer = frame.writeStream.format("noop").option("checkpointLocation", folder)

            def work() -> None:
                writer.trigger(availableNow=True).start().awaitTermination()

            return rate(rows, work)

    def against_batch(most: int) -> tuple[float, float]:
        batch = lambda: bench.read("past", rows, 2)  # noqa: E731
        return interleave(lambda: catching_up(most), batch, min(bench.rounds, 3))

    small = max(PART, rows // 10)
    return [
        against(f"catch up {rows:,} / batch read", *against_batch(rows), least=0.8, aim=0.95),
        against(f"the same, {small:,} at a time / batch read", *against_batch(small)),
    ]


def growth(bench: Bench, long: int) -> Row:
    """Measure what a row costs in a long stream, against one a twentieth as long."""
    short = max(PART, long // 20 // PART * PART)
    bench.fill("long", long)
    bench.fill("short", short)
    ours = bench.read("long", long, 2)
    peer = statistics.median(bench.read("short", short, 2) for _ in range(3))
    name = f"cost of a row, {short:,} to {long:,}"
    figures = (f"{1e6 / ours:.3f} us", f"{1e6 / peer:.3f} us")
    return Row(f"Spark: {name}", "off", *figures, peer / ours, 1.2, 1.05, False)


def trickle(bench: Bench, seconds: int) -> Row:
    """Measure micro-batches of a few rows, against those of Spark's own rate source."""
    stream = bench.hw.stream("trickle")
    stream.write("first", b"")

    def durations(frame: DataFrame) -> float:
        with tempfile.TemporaryDirectory(prefix="hw-bench-") as folder:
            writer = frame.writeStream.format("noop").option("checkpointLocation", folder)
            query = writer.trigger(processingTime=TRIGGER).start()
            query.awaitTermination(seconds)
            while not (progress := [p for p in query.recentProgress if p["numInputRows"]]):
                query.awaitTermination(1)
            query.stop()
        # The first ones warm up: codecs, checkpoint files, the JVM's compiler.
        later = progress[len(progress) // 2 :]
        times: list[float] = [p["durationMs"]["triggerExecution"] for p in later]
        return statistics.median(times)

    def ours() -> float:
        reader = bench.spark.readStream.format("headwater").option("url", bench.url)
        with trickling(stream):
            return durations(reader.option("stream", "trickle").load())

    def peer() -> float:
        return durations(bench.spark.readStream.format("rate").option("rowsPerSecond", 100).load())

    ours()
    a, b = interleave(ours, peer, min(bench.rounds, 3))
    name = "Spark: micro-batch at a trickle / rate source"
    return Row(name, "off", f"{a:.0f} ms", f"{b:.0f} ms", a / b, 1.1, 1.0, False)


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


def run(rounds: int, rows: int, long: int) -> list[Row]:
    """Measure in a session of its own."""
    spark = session("local[2]", app_name="bench", **{"spark.driver.memory": "2g"})
    try:
        return measure(spark, rounds, rows, long, TRICKLE_S, WARM)
    finally:
        spark.stop()


def measure(
    spark: SparkSession, rounds: int, rows: int, long: int, trickle_s: int, warm: int
) -> list[Row]:
    """Measure with ``rows`` messages, and growth up to ``long``, after ``warm`` small queries."""
    with server("off") as native:
        bench = Bench(spark, native, rounds, rows)
        table = reads(bench, warm)
        table += Queries(spark, bench.url, "rows", bench.rows, rounds).run()
        table += [*catch_up(bench), growth(bench, long)]
        table += [trickle(bench, trickle_s)]
        bench.hw.close()
    return table + spark_sinks.run(spark, rounds, min(rows, WRITTEN))
