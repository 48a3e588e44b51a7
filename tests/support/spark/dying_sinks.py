"""Sinks that end processes at named steps of a write, once; and a program that uses them.

``log_sink_that_dies`` and ``sql_sink_that_dies`` give formats to register. Where a step is reached
for the first time, the victims are killed, and the process that reached it: a task's worker while
it is "writing", or whoever commits on behalf of the driver. Run as a program, it copies a stream
to a topic and to another stream, whose nodes the JVM packs, and adds it up in a table. Its driver
is among the victims.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceStreamWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from headwater.log import node
from headwater.spark import session
from headwater.spark.log.sink import LogStreamWriter
from headwater.spark.log.source import HeadwaterSource
from headwater.spark.sql_sink import database
from headwater.spark.sql_sink.source import SqlSink, SqlStreamWriter
from headwater.store.call import Call
from headwater.store.store import Store
from tests.spark.conftest import SMALL

LOG_STEPS = ["writing", "staged", "begun", "stepped", "published"]
SQL_STEPS = ["writing", "staged", "applied", "committed"]
# The JVM packs nodes for the format of the log only, under its own name.
FORMATS = {"log": "headwater_dying", "nodes": "headwater", "sql": "headwater_sql_dying"}


@dataclass(frozen=True)
class Death:
    """At which step to end whom; ``marker`` is a file that says that it has happened."""

    step: str
    marker: str
    victims: tuple[int, ...] = ()

    def at(self, step: str) -> None:
        """Come to a step."""
        if step != self.step:
            return
        try:
            os.close(os.open(self.marker, os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return
        for victim in (*self.victims, os.getpid()):
            os.kill(victim, signal.SIGKILL)

    def within(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Pass batches on, and come to "writing" after the first."""
        for batch in batches:
            yield batch
            self.at("writing")


class DyingLogWriter(LogStreamWriter):
    """Writes small nodes, so that a publish takes several steps."""

    def __init__(self, writer: LogStreamWriter, death: Death) -> None:
        super().__init__(writer._sink, writer._rows, writer._about)
        self._death = death

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        with mock.patch.object(node, "NODE_MESSAGES", 2):
            return super().write(self._death.within(iterator))

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        self._death.at("staged")
        ask, steps = Store.ask, iter(("begun", "stepped"))

        def dying(store: Store, request: Any, patience_s: float | None = None) -> Any:
            reply = ask(store, request, patience_s)
            if isinstance(request, Call) and request.function == "hw_stream_publish":
                self._death.at(next(steps, "stepped again"))
            return reply

        with mock.patch.object(Store, "ask", dying):
            super().commit(messages, batchId)
        self._death.at("published")


class DyingSqlWriter(SqlStreamWriter):
    """Dies in the middle of its transaction, among others."""

    def __init__(self, writer: SqlStreamWriter, death: Death) -> None:
        super().__init__(writer._plan)
        self._death = death

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return super().write(self._death.within(iterator))

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        self._death.at("staged")
        beside = database.beside

        def dying(*words: Any) -> str:
            # Asked for by the statement that drops what was staged: it is applied by now.
            self._death.at("applied")
            return beside(*words)

        with mock.patch.object(database, "beside", dying):
            super().commit(messages, batchId)
        self._death.at("committed")


def log_sink_that_dies(death: Death, called: str = FORMATS["log"]) -> type[DataSource]:
    class Dying(HeadwaterSource):
        @classmethod
        def name(cls) -> str:
            return called

        def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802
            writer = super().streamWriter(schema, overwrite)
            assert isinstance(writer, LogStreamWriter)
            assert writer._rows.packed == (called == FORMATS["nodes"])
            return DyingLogWriter(writer, death)

    return Dying


def sql_sink_that_dies(death: Death) -> type[DataSource]:
    class Dying(SqlSink):
        @classmethod
        def name(cls) -> str:
            return FORMATS["sql"]

        def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802
            writer = super().streamWriter(schema, overwrite)
            assert isinstance(writer, SqlStreamWriter)
            return DyingSqlWriter(writer, death)

    return Dying


def sink_that_dies(sink: str, death: Death) -> type[DataSource]:
    """Return the format of one of the sinks."""
    return sql_sink_that_dies(death) if sink == "sql" else log_sink_that_dies(death, FORMATS[sink])


def run_query(spark: SparkSession, sink: str, order: dict[str, str]) -> None:
    """Bring all that is in the stream now to a sink, from where its checkpoint says."""
    rows = (
        spark.readStream.format("headwater")
        .options(url=order["store"], stream=order["stream"])
        .option("maxOffsetsPerTrigger", 2000)
        .load()
    )
    if sink == "log":
        rows = rows.select("tag", "value")
        options = {"url": order["store"], "topic": order["topic"]}
    elif sink == "nodes":
        rows = rows.select("tag", "value")
        options = {"url": order["store"], "stream": order["copy"]}
    else:
        rows = rows.selectExpr("tag AS ride", "CAST(CAST(value AS string) AS bigint) AS distance")
        options = {"url": order["db"], "table": "totals", "mode": "add"}
    query = (
        rows.writeStream.format(FORMATS[sink])
        .options(checkpointLocation=str(Path(order["place"]) / sink), **options)
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(240)


def _main(order: dict[str, str]) -> None:
    spark = session("local[2]", **SMALL)
    java = spark.sparkContext._jvm.java.lang.ProcessHandle.current().pid()  # type: ignore[union-attr]
    victims = (os.getpid(), int(java))
    for sink in FORMATS:
        step = order["step"] if order["sink"] == sink else ""
        spark.dataSource.register(sink_that_dies(sink, Death(step, order["marker"], victims)))
        run_query(spark, sink, order)


if __name__ == "__main__":
    _main(json.loads(sys.argv[1]))
