"""A queue sink that ends its process at named steps of a write, once."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any
from unittest import mock

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceStreamWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from headwater.spark import queues
from headwater.spark.queues import QueueSource, QueueStreamWriter
from headwater.store.call import Call
from headwater.store.store import Store

# After which call of its kind a commit of 300 rows dies, and how many rows are pushed by then when
# 300 were before: the second push of the one that goes on is the third of the epoch.
STEPS_OF_A_COMMIT = {
    "hw_stream_publish 1": 300,
    "hw_queue_push 1": 400,
    "hw_queue_push 2": 600,
    "committed": 600,
}
FORMAT = "headwater_queue_dying"


@dataclass
class DyingWriter(QueueStreamWriter):
    """Pushes few rows at a time; ``marker`` is a file that says that it has died."""

    step: str = ""
    marker: str = ""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        def dying() -> Iterator[pa.RecordBatch]:
            for batch in iterator:
                yield batch
                self.come_to("writing")

        return super().write(dying())

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        ask, calls = Store.ask, dict[str, int]()

        def dying(store: Store, request: Any, patience_s: float | None = None) -> Any:
            reply = ask(store, request, patience_s)
            if isinstance(request, Call):
                calls[request.function] = calls.get(request.function, 0) + 1
                self.come_to(f"{request.function} {calls[request.function]}")
            return reply

        with mock.patch.object(Store, "ask", dying), mock.patch.object(queues, "PUSH_ROWS", 100):
            super().commit(messages, batchId)
        self.come_to("committed")

    def come_to(self, step: str) -> None:
        if step == self.step:
            try:
                os.close(os.open(self.marker, os.O_CREAT | os.O_EXCL))
            except FileExistsError:
                return
            os.kill(os.getpid(), signal.SIGKILL)


def queue_sink_that_dies(step: str, marker: str) -> type[DataSource]:
    class Dying(QueueSource):
        @classmethod
        def name(cls) -> str:
            return FORMAT

        def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802
            writer = super().streamWriter(schema, overwrite)
            assert isinstance(writer, QueueStreamWriter)
            return DyingWriter(writer.address, writer.about, writer.names, step, marker)

    return Dying
