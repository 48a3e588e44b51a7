"""A queue as a sink: each row is one message in it, once, whoever dies and is repeated.

How rows get there is in ``intake``. The columns are ``value`` (binary or string) and, if they are
there, ``priority``, ``delay_ms``, ``ttl_ms`` and ``headers``. Rows of a task are ordered by
priority, delay and life, and otherwise stay as they are, which no consumer can see: a queue has an
order within a priority only.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import msgspec
import pyarrow as pa
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import ArrayType, BinaryType, IntegerType, LongType, MapType, StringType

from headwater.spark.engine.accepted_columns import AcceptedColumns
from headwater.spark.engine.column_names import renamed
from headwater.spark.engine.contents import plan_of
from headwater.spark.engine.failures import one_line
from headwater.spark.engine.write_identity import queries_of, query_of_task, writing_epoch
from headwater.spark.log.noting import note_first_epoch, note_query
from headwater.spark.queries.notes import NotedQuery
from headwater.spark.queues import intake
from headwater.spark.queues.target import QueueAddress

ACCEPTED = AcceptedColumns(
    "a queue",
    {
        "value": (BinaryType, StringType),
        "priority": (IntegerType, LongType),
        "delay_ms": (IntegerType, LongType),
        "ttl_ms": (IntegerType, LongType),
        "headers": (ArrayType, MapType),
    },
    ["value"],
)


@dataclass
class QueueWriter(DataSourceArrowWriter):
    """A batch write; with a producer it may be repeated.

    ``names`` are those under which the rows are written, in the order of their columns; None: as
    they are.
    """

    address: QueueAddress
    given: tuple[str, int] | None
    names: Sequence[str] | None = None
    # Identifies the write for all its tasks when no producer is given.
    own: str = field(default_factory=lambda: f"spark-{secrets.token_hex(12)}")

    @property
    def producer(self) -> str:
        """Whose write it is."""
        return self.given[0] if self.given else self.own

    @one_line()
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Stage the rows of a task."""
        rows, repeatable = renamed(iterator, self.names), self.given is not None
        return intake.stage(self.address, self.producer, rows, repeatable=repeatable)

    @one_line()
    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Push the rows of all tasks."""
        sequence = self.given[1] if self.given else 0
        intake.commit(self.address, messages, self.producer, sequence)
        if self.given is None:
            intake.delete(self.address, self.producer)

    @one_line()
    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Drop what was staged."""
        intake.abort(self.address, messages, self.producer)


@dataclass
class QueueStreamWriter(DataSourceStreamArrowWriter):
    """The writes of a streaming query: each epoch is in the queue once.

    ``about`` is what is known of the query, to be noted in the store: so what it has staged beside
    its intake is counted as that of a query that writes to a stream.
    """

    address: QueueAddress
    about: NotedQuery = field(default_factory=NotedQuery)
    names: Sequence[str] | None = None

    @one_line()
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Stage the rows of a task."""
        query = query_of_task()
        note_first_epoch(intake.target_of(self.address, query), query, self.about)
        return intake.stage(self.address, query, renamed(iterator, self.names), query)

    @one_line()
    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Push an epoch; a repeat changes nothing. Raises CheckpointWentBack for other rows."""
        plan = plan_of(self.about.checkpoint, batchId)
        for query in queries_of(messages):
            with writing_epoch(query, batchId, self.address.queue):
                intake.commit(self.address, messages, query, batchId, plan)
            about = msgspec.structs.replace(self.about, epoch=batchId)
            target = intake.target_of(self.address, query)
            note_query(target, query.removeprefix("spark-"), "write", about)

    @one_line()
    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803, ARG002
        """Drop what was staged."""
        for query in queries_of(messages):
            intake.abort(self.address, messages, query)
