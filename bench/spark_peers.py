"""What the Spark source is compared with: sources in Python that do it otherwise, or do nothing."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import redis
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from headwater.spark.log import columns
from headwater.spark.log.range_reader import BATCH_ROWS

SCHEMA = columns.spark_schema(columns.ALL)
PAGE = 1000


class TupleReader(DataSourceReader):
    """Reads a native stream page by page, and yields a tuple for each entry."""

    def __init__(self, path: str, key: str) -> None:
        self.path = path
        self.key = key

    def partitions(self) -> list[InputPartition]:
        return [InputPartition(0)]

    def read(self, partition: InputPartition) -> Iterator[tuple[Any, ...]]:  # noqa: ARG002
        import datetime as dt

        client: Any = redis.Redis(unix_socket_path=self.path)
        at, offset = "-", 0
        while page := client.xrange(self.key, at, "+", PAGE):
            for entry_id, fields in page:
                offset += 1
                ms = int(entry_id.partition(b"-")[0])
                time = dt.datetime.fromtimestamp(ms / 1000, dt.UTC)
                yield self.key, 0, offset, fields[b"k"].decode(), fields[b"v"], time
            at = "(" + page[-1][0].decode()


class TupleSource(DataSource):
    """A native stream as most people would read it into Spark."""

    @classmethod
    def name(cls) -> str:
        return "bench_tuples"

    def schema(self) -> StructType:
        return SCHEMA

    def reader(self, schema: StructType) -> DataSourceReader:  # noqa: ARG002
        return TupleReader(self.options["path"], self.options["key"])


class SameReader(DataSourceReader):
    """Hands over one batch of our columns again and again: what Spark takes at most as rows."""

    def __init__(self, rows: int, size: int) -> None:
        self.rows = rows
        self.size = size

    def partitions(self) -> list[InputPartition]:
        return [InputPartition(0)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:  # noqa: ARG002
        from bench.events import events

        made = events(1000)
        repeat = self.size // 1000
        log = pa.table(
            {
                "offset": pa.array(range(1, self.size + 1), pa.int64()),
                "tag": pa.array([tag for tag, _ in made] * repeat),
                "value": pa.array([value for _, value in made] * repeat, pa.binary()),
                "time": pa.array([1_790_000_000_000] * self.size, pa.timestamp("ms", "UTC")),
            }
        )
        [batch] = columns.batches_for_spark(log, "same", 0, columns.arrow_schema(SCHEMA))
        for _ in range(self.rows // self.size):
            yield batch


class SameSource(DataSource):
    """No store, no work: only what Spark does to rows that come from Python."""

    @classmethod
    def name(cls) -> str:
        return "bench_same"

    def schema(self) -> StructType:
        return SCHEMA

    def reader(self, schema: StructType) -> DataSourceReader:  # noqa: ARG002
        return SameReader(int(self.options["rows"]), BATCH_ROWS)
