"""Batch reads of a stream, against all that one may hold beside them."""

from __future__ import annotations

import statistics

from bench.efforts import Goals, Planned, compare_rates, effort, medians, row_of_rates
from bench.events import events
from bench.harness import Row
from bench.spark_peers import SameSource, TupleSource
from bench.spark_rows import PART, SparkRows, read

NATIVE = 200_000
_SCAN = "Spark: read the columns of scan, one task / scan"
_TASKS = "Spark: read, two tasks / one"
_SAME = "Spark: read / one batch again and again"
_TUPLES = "Spark: read / tuples from XRANGE"


class Reads:
    """Rows about reads of whole streams."""

    def __init__(self, streams: SparkRows, long: int) -> None:
        self.streams = streams
        self.long = long
        self.short = max(PART, long // 20 // PART * PART)

    def rows(self) -> list[Planned]:
        """Return the rows that can be measured."""
        return [
            Planned(_SCAN, self.columns_of_scan),
            Planned(_TASKS, self.two_tasks),
            Planned(_SAME, self.same_batch),
            Planned(_TUPLES, self.tuples),
            Planned(self._growth(), self.growth),
        ]

    def columns_of_scan(self) -> Row:
        """Measure against a read with the library alone, in this process."""
        count = self.streams.count
        stream = self.streams.fill("rows", count)
        self.streams.warm_up_reads()

        def scan() -> None:
            assert sum(batch.num_rows for batch in stream.scan()) == count

        return compare_rates(
            _SCAN,
            count,
            lambda: self.one_task("offset,tag,value,time"),
            scan,
            self.streams.rounds,
            Goals(0.7, 1),
        )

    def two_tasks(self) -> Row:
        """Measure two tasks against one."""
        name = self.streams.all_rows()
        self.streams.warm_up_reads()
        return compare_rates(
            _TASKS,
            self.streams.count,
            lambda: read(self.streams.frame(name, minPartitions=2)),
            self.one_task,
            self.streams.rounds,
            Goals(1.5, 1.8),
        )

    def same_batch(self) -> Row:
        """Measure against a source in Python that has no store and no work."""
        self.streams.all_rows()
        self.streams.spark.dataSource.register(SameSource)
        count = self.streams.count

        def same() -> None:
            source = self.streams.spark.read.format("bench_same").option("rows", count)
            read(source.load())

        return compare_rates(_SAME, count, self.one_task, same, self.streams.rounds)

    def tuples(self) -> Row:
        """Measure against a native stream, read as tuples."""
        self.streams.all_rows()
        self.streams.spark.dataSource.register(TupleSource)
        native, url = self.streams.native, self.streams.url
        with native.pipeline(transaction=False) as pipe:
            for number, (tag, value) in enumerate(events(NATIVE), 1):
                pipe.xadd("native", {"k": tag, "v": value})
                if number % 1000 == 0:
                    pipe.execute()
        path = url.removeprefix("unix://")
        reader = self.streams.spark.read.format("bench_tuples").option("path", path)
        ours, peers = [], []
        for _ in range(self.streams.rounds):
            ours.append(effort(self.one_task))
            peers.append(effort(lambda: read(reader.option("key", "native").load())))
        native.delete("native")
        figures = self.streams.count, medians(ours), NATIVE, medians(peers)
        return row_of_rates(_TUPLES, *figures, Goals(4, 8))

    def growth(self) -> Row:
        """Measure what a row costs in a long stream, against one a twentieth as long."""
        for name, rows in (("long", self.long), ("short", self.short)):
            self.streams.fill(name, rows)
        self.streams.warm_up_reads()
        ours = effort(lambda: read(self.streams.frame("long", minPartitions=2)))
        short = [
            effort(lambda: read(self.streams.frame("short", minPartitions=2))) for _ in range(3)
        ]
        a = ours.seconds / self.long
        b = statistics.median(one.seconds for one in short) / self.short
        processor = (ours.processor / self.long) / (medians(short).processor / self.short)
        shown = f"{1e6 * a:.3f} us", f"{1e6 * b:.3f} us"
        return Row(self._growth(), "off", *shown, a / b, 1.2, 1.05, False, processor)

    def one_task(self, columns: str = "") -> None:
        """Read all rows in one task, which many nodes allow only if it is brought together."""
        read(self.streams.frame("rows", columns=columns).coalesce(1))

    def _growth(self) -> str:
        return f"Spark: cost of a row, {self.short:,} to {self.long:,}"
