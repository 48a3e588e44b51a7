"""An epoch that was written is skipped when its rows come again, and refused when others come.

So a checkpoint that went back, or one that two queries use, never makes a sink drop new rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa
import pytest
import sqlalchemy as sa
from pyspark.sql.datasource import DataSourceStreamArrowWriter

import headwater
from headwater import CheckpointWentBack, Headwater
from headwater.spark import queues as queue_sink
from headwater.spark.log import sink as log_sink
from headwater.spark.log.sink import LogStreamWriter
from headwater.spark.log.staging import LogSink
from headwater.spark.log.target import StreamOrTopic
from headwater.spark.queries.notes import NotedQuery
from headwater.spark.queues import QueueAddress, QueueStreamWriter
from headwater.spark.sql_sink import source as sql_sink
from headwater.spark.sql_sink.source import SqlStreamWriter
from tests.support.spark.queues import intakes, popped
from tests.support.spark.sql_sinks import Table

CURE = "start the query with a new checkpointLocation, and with startingOffsets"


class Target(Protocol):
    """What a streaming query writes to, and what has come there."""

    def writer(self) -> DataSourceStreamArrowWriter:
        """Return what writes an epoch."""

    def batch(self, numbers: Sequence[int]) -> pa.RecordBatch:
        """Return rows."""

    def rows(self) -> list[int]:
        """Return what has come, sorted."""


class LogTarget:
    def __init__(self, hw: Headwater, url: str, name: str, checkpoint: str, partitions: int):
        self.hw, self.name, self.partitions = hw, name, partitions
        if partitions:
            hw.topic(name, partitions)
        target = StreamOrTopic(url, name, bool(partitions))
        self.sink, self.about = LogSink(target, partitions), NotedQuery(checkpoint=checkpoint)

    def writer(self) -> DataSourceStreamArrowWriter:
        return LogStreamWriter(self.sink, about=self.about)

    def batch(self, numbers: Sequence[int]) -> pa.RecordBatch:
        tags, values = [f"t{n % 7}" for n in numbers], [b"%d" % n for n in numbers]
        return pa.record_batch({"tag": tags, "value": values})

    def rows(self) -> list[int]:
        names = [self.sink.stream_of(place) for place in range(self.partitions or 1)]
        found = [m for name in names for m in self.hw.stream(name).read(1, 10_000)]
        return sorted(int(m.value) for m in found if m)


class QueueTarget:
    def __init__(self, hw: Headwater, url: str, name: str, checkpoint: str) -> None:
        self.queue, self.seen = hw.queue(name), list[int]()
        self.address, self.about = QueueAddress(url, name), NotedQuery(checkpoint=checkpoint)

    def writer(self) -> DataSourceStreamArrowWriter:
        return QueueStreamWriter(self.address, self.about)

    def batch(self, numbers: Sequence[int]) -> pa.RecordBatch:
        return pa.record_batch({"value": [b"%d" % n for n in numbers]})

    def rows(self) -> list[int]:
        self.seen += popped(self.queue)
        return sorted(self.seen)


class SqlTarget:
    def __init__(self, table: Table, checkpoint: str) -> None:
        self.table, self.checkpoint = table, checkpoint

    def writer(self) -> DataSourceStreamArrowWriter:
        options: dict[str, Any] = {"mode": "add", "checkpointLocation": self.checkpoint}
        return SqlStreamWriter(self.table.plan(streaming=True, **options))

    def batch(self, numbers: Sequence[int]) -> pa.RecordBatch:
        rides = [f"r{n}" for n in numbers]
        return pa.record_batch({"ride": rides, "distance": pa.array(numbers, pa.int64())})

    def rows(self) -> list[int]:
        return [int(distance) for _, distance in sorted(self.table.rows(), key=lambda row: row[1])]


@pytest.fixture
def embedded(embedded_url: str) -> Iterator[Headwater]:
    with headwater.connect(embedded_url) as hw:
        yield hw


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    (tmp_path / "checkpoint" / "offsets").mkdir(parents=True)
    return tmp_path / "checkpoint"


@pytest.fixture(params=["stream", "topic", "queue", "sqlite", "postgres"])
def target(
    request: pytest.FixtureRequest,
    embedded: Headwater,
    embedded_url: str,
    name: str,
    checkpoint: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Target]:
    for module in (log_sink, queue_sink, sql_sink):
        monkeypatch.setattr(module, "query_of_task", lambda: "spark-query")
    kind, place = request.param, str(checkpoint)
    if kind == "queue":
        yield QueueTarget(embedded, embedded_url, name, place)
        for intake in intakes(embedded, name):
            embedded.stream(intake).delete()
    elif kind in ("stream", "topic"):
        yield LogTarget(embedded, embedded_url, name, place, 3 * (kind == "topic"))
    elif kind == "sqlite":
        yield from sql_target(f"sqlite:///{checkpoint.parent / 'app.db'}", place)
    else:
        server = request.getfixturevalue("postgres")
        url = server.database()
        yield from sql_target(url, place)
        server.drop(url)


def sql_target(url: str, checkpoint: str) -> Iterator[Target]:
    engine = sa.create_engine(url, poolclass=sa.NullPool)
    table = Table(url, engine)
    table.make("CREATE TABLE totals (ride varchar(20) PRIMARY KEY, distance bigint)")
    yield SqlTarget(table, checkpoint)


def bring(target: Target, epoch: int, *tasks: Sequence[int]) -> None:
    """Do what Spark does with an epoch: its tasks, the commit, and an abort if that fails."""
    writer = target.writer()
    messages = [writer.write(iter([target.batch(numbers)])) for numbers in tasks]
    try:
        writer.commit([*messages], epoch)
    except CheckpointWentBack:
        writer.abort([*messages], epoch)
        raise


def test_the_same_rows_are_skipped_in_whatever_tasks_and_order(target: Target) -> None:
    bring(target, 0, range(100), range(100, 150))
    bring(target, 1, range(200, 260))
    bring(target, 0, range(149, 80, -1), range(60, 81), range(60))
    assert target.rows() == [*range(150), *range(200, 260)]
    bring(target, 2, range(300, 310))
    assert target.rows() == [*range(150), *range(200, 260), *range(300, 310)]


@pytest.mark.parametrize(
    "others",
    [range(100, 150), range(99), range(101), [*range(99), 98]],
    ids=["new", "fewer", "more", "one-twice"],
)
def test_other_rows_under_a_written_epoch_are_refused(
    target: Target, others: Sequence[int]
) -> None:
    bring(target, 0, range(100))
    bring(target, 1, range(200, 260))
    with pytest.raises(CheckpointWentBack, match=CURE) as caught:
        bring(target, 0, others)
    assert (caught.value.query, caught.value.epoch) == ("query", 0)
    assert target.rows() == [*range(100), *range(200, 260)]


def test_an_epoch_that_is_no_longer_remembered_is_refused(target: Target) -> None:
    bring(target, 72, range(7))
    bring(target, 200, range(100, 107))
    with pytest.raises(CheckpointWentBack, match=CURE):
        bring(target, 72, range(7))
    # Nobody knows what it wrote, or whether it did.
    with pytest.raises(CheckpointWentBack, match=CURE):
        bring(target, 150, range(7))
    assert target.rows() == [*range(7), *range(100, 107)]


def test_what_spark_planned_once_is_one_epoch_whatever_rows_a_retry_has(
    target: Target, checkpoint: Path
) -> None:
    plan = checkpoint / "offsets" / "0"
    plan.write_text('v1\n{"batchTimestampMs":1}\n{"next":{"0":100}}')
    bring(target, 0, range(100))
    bring(target, 0, range(500, 600))
    assert target.rows() == [*range(100)]
    plan.write_text('v1\n{"batchTimestampMs":2}\n{"next":{"0":100}}')
    bring(target, 0, range(100))
    with pytest.raises(CheckpointWentBack, match=CURE):
        bring(target, 0, range(500, 600))
    assert target.rows() == [*range(100)]
