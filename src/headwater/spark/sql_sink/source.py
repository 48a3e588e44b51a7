"""The sink itself: what Spark calls, on the driver and in its tasks."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    DataSourceStreamWriter,
    DataSourceWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from headwater.spark.engine.column_names import renamed
from headwater.spark.engine.contents import Content, content_of, plan_of
from headwater.spark.engine.failures import one_line
from headwater.spark.engine.write_identity import (
    FromTask,
    content_of_tasks,
    queries_of,
    query_of_task,
    writing_epoch,
)
from headwater.spark.sql_sink import database
from headwater.spark.sql_sink.plan import Epoch, SinkPlan, plan_write


@dataclass(frozen=True)
class StagedTable(FromTask):
    """What a task has staged: its table, if it had rows."""

    table: str | None


class SqlSink(DataSource):
    """A table of SQLite or Postgres, to write to."""

    @classmethod
    def name(cls) -> str:
        """Return the name for ``format``."""
        return "headwater_sql"

    @one_line()
    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Plan a batch write."""
        return SqlWriter(plan_write(self.options, schema, overwrite, streaming=False))

    @one_line()
    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802  Spark's name
        """Plan the writes of a streaming query."""
        return SqlStreamWriter(plan_write(self.options, schema, overwrite, streaming=True))


def stage(
    plan: SinkPlan, batches: Iterator[pa.RecordBatch], query: str | None = None
) -> StagedTable:
    """Stage the rows of a task in a table of its own."""
    contents: list[Content] = []
    repeatable = query is not None or plan.epoch is not None

    def filled() -> Iterator[pa.RecordBatch]:
        for batch in renamed(batches, [*plan.columns]):
            if batch.num_rows:
                if repeatable:
                    contents.append(content_of(batch))
                yield batch

    rows = filled()
    first = next(rows, None)
    if first is None:
        return StagedTable(query, Content(), None)
    table = database.fresh_staged()
    plan.database.stage(plan.relation, table, itertools.chain([first], rows))
    return StagedTable(query, Content.of_all(contents), table)


def tables(messages: Iterable[WriterCommitMessage | None]) -> list[str]:
    """Return the tables that tasks have staged, in their order."""
    return [m.table for m in messages if isinstance(m, StagedTable) and m.table is not None]


class SqlWriter(DataSourceArrowWriter):
    """A batch write: all rows are in the table when it succeeds, and none when it fails."""

    def __init__(self, plan: SinkPlan) -> None:
        self._plan = plan

    @one_line()
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Stage the rows of a task."""
        return stage(self._plan, iterator)

    @one_line()
    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Apply the rows of all tasks in one transaction."""
        epoch = self._plan.epoch
        if epoch is not None:
            epoch = replace(epoch, content=content_of_tasks(messages).digest())
        database.commit(self._plan, epoch, tables(messages))

    @one_line()
    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Drop what was staged."""
        database.drop(self._plan, tables(messages))


class SqlStreamWriter(DataSourceStreamArrowWriter):
    """The writes of a streaming query: each epoch is applied once."""

    def __init__(self, plan: SinkPlan) -> None:
        self._plan = plan

    @one_line()
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Stage the rows of a task."""
        return stage(self._plan, iterator, query_of_task())

    @one_line()
    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Apply an epoch and note it, in one transaction; a repeat changes nothing.

        Raises CheckpointWentBack for other rows under an epoch that was applied.
        """
        content = content_of_tasks(messages).digest(plan_of(self._plan.checkpoint, batchId))
        for query in queries_of(messages):
            epoch = Epoch(query, batchId, self._plan.state, content)
            with writing_epoch(query, batchId, str(self._plan.relation)):
                database.commit(self._plan, epoch, tables(messages))

    @one_line()
    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803, ARG002
        """Drop what was staged."""
        database.drop(self._plan, tables(messages))
