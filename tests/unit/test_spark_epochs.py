"""A streaming query is known by its id: without one nothing is written, and nothing is mistaken."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql.datasource import DataSourceStreamArrowWriter
from pyspark.sql.types import LongType, StructField, StructType

from headwater.errors import SparkFailed
from headwater.spark.log.sink import LogStreamWriter
from headwater.spark.log.staging import LogSink
from headwater.spark.log.target import StreamOrTopic
from headwater.spark.queues import QueueAddress, QueueStreamWriter
from headwater.spark.sql_sink.source import SqlStreamWriter, plan_write
from tests.support.spark.tables import small_table


def writers(directory: Path, database: str) -> Iterator[DataSourceStreamArrowWriter]:
    url = f"embedded://{directory}"
    yield LogStreamWriter(LogSink(StreamOrTopic(url, "stream", False), 0))
    yield QueueStreamWriter(QueueAddress(url, "queue"))
    ids = StructType([StructField("id", LongType())])
    yield SqlStreamWriter(plan_write({"url": database, "table": "t"}, ids, False, streaming=True))


@pytest.mark.parametrize("place", range(3), ids=["log", "queue", "sql"])
def test_a_task_that_does_not_know_its_query_fails(tmp_path: Path, place: int) -> None:
    writer = list(writers(tmp_path, small_table(tmp_path)))[place]
    with pytest.raises(SparkFailed, match="does not know the id of its query"):
        writer.write(iter([pa.record_batch({"id": [99], "value": [b"v"]})]))
