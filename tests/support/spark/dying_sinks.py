"""Sinks that end processes at named steps of a write, once; and a program that uses them.

``sink_that_dies`` gives a format to register. Where a step is reached for the first time, the
victims are killed, and the process that reached it: a task's worker while it is "writing" or has
"written", or whoever commits on behalf of the driver. Run as a program, it copies a stream to a
topic and to another stream, whose nodes the JVM packs, and adds it up in a table. Its driver is
among the victims.
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
from headwater.spark import queues, session
from headwater.spark.engine.formats import WriteFormat
from headwater.spark.engine.writes import QueryWriter
from headwater.spark.icks import IckSource
from headwater.spark.log.source import HeadwaterSource
from headwater.spark.sql_sink import database
from headwater.spark.sql_sink.source import SqlSink
from headwater.store.call import Call
from headwater.store.store import Store
from tests.spark.conftest import SMALL
from tests.support.spark.queries import finish, following

PUBLISHED = "hw_stream_publish 1"
LOG_STEPS = ["writing", "staged", PUBLISHED, "hw_stream_publish 2", "committed"]
SQL_STEPS = ["writing", "staged", "applied", "committed"]
# The JVM packs nodes for the format of the log only, under its own name.
FORMATS = {
    "log": "headwater_dying",
    "nodes": "headwater",
    "sql": "headwater_sql_dying",
    "queue": "headwater_queue_dying",
    "ick": "headwater_ick_dying",
}
_SOURCES: dict[str, type[WriteFormat]] = {
    "log": HeadwaterSource,
    "nodes": HeadwaterSource,
    "sql": SqlSink,
    "queue": queues.QueueSource,
    "ick": IckSource,
}


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


class DyingWriter(QueryWriter):
    """Writes small nodes and small pushes, so that a commit takes several steps.

    Each call of a server function is a step, by the name of the function and which call it was.
    """

    def __init__(self, writer: QueryWriter, death: Death) -> None:
        super().__init__(writer.to)
        self._death = death

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        with mock.patch.object(node, "NODE_MESSAGES", 2):
            done = super().write(self._death.within(iterator))
        self._death.at("written")
        return done

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        self._death.at("staged")
        ask, beside, calls = Store.ask, database.beside, dict[str, int]()

        def dying(store: Store, request: Any, patience_s: float | None = None) -> Any:
            reply = ask(store, request, patience_s)
            if isinstance(request, Call):
                calls[request.function] = calls.get(request.function, 0) + 1
                self._death.at(f"{request.function} {calls[request.function]}")
            return reply

        def applied(*words: Any) -> str:
            # Asked for by the statement that drops what was staged: it is applied by now.
            self._death.at("applied")
            return beside(*words)

        with (
            mock.patch.object(Store, "ask", dying),
            mock.patch.object(queues, "PUSH_ROWS", 100),
            mock.patch.object(database, "beside", applied),
        ):
            super().commit(messages, batchId)
        self._death.at("committed")


def sink_that_dies(sink: str, death: Death) -> type[DataSource]:
    """Return the format of one of the sinks."""
    source: Any = _SOURCES[sink]

    class Dying(source):  # type: ignore[misc]
        CALLED = FORMATS[sink]

        def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802
            writer = super().streamWriter(schema, overwrite)
            assert isinstance(writer, QueryWriter)
            assert getattr(writer.to, "packed", False) == (sink == "nodes")
            return DyingWriter(writer, death)

    return Dying


def run_query(spark: SparkSession, sink: str, order: dict[str, str]) -> None:
    """Bring all that is in the stream now to a sink, from where its checkpoint says."""
    rows = following(spark, order["store"], order["stream"], maxOffsetsPerTrigger=2000)
    if sink == "log":
        rows = rows.select("tag", "value")
        options = {"url": order["store"], "topic": order["topic"]}
    elif sink == "nodes":
        rows = rows.select("tag", "value")
        options = {"url": order["store"], "stream": order["copy"]}
    else:
        rows = rows.selectExpr("tag AS ride", "CAST(CAST(value AS string) AS bigint) AS distance")
        options = {"url": order["db"], "table": "totals", "mode": "add"}
    finish(rows, FORMATS[sink], Path(order["place"]) / sink, **options)


def _main(order: dict[str, str]) -> None:
    spark = session("local[2]", **SMALL)
    java = spark.sparkContext._jvm.java.lang.ProcessHandle.current().pid()  # type: ignore[union-attr]
    victims = (os.getpid(), int(java))
    for sink in ("log", "nodes", "sql"):
        step = order["step"] if order["sink"] == sink else ""
        spark.dataSource.register(sink_that_dies(sink, Death(step, order["marker"], victims)))
        run_query(spark, sink, order)


if __name__ == "__main__":
    _main(json.loads(sys.argv[1]))
