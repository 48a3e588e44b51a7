"""``format("headwater_queue")`` itself: its options, and what is refused before anything runs."""

from __future__ import annotations

from typing import get_args

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import StructType

from headwater.errors import InvalidInput
from headwater.kernel.inputs import check_name
from headwater.queue.types import State
from headwater.spark.engine.accepted_columns import refuse_other_schema, refuse_overwrite
from headwater.spark.engine.connections import absolute_url
from headwater.spark.engine.failures import one_line
from headwater.spark.engine.options import SourceOptions
from headwater.spark.engine.table_options import LostReader, are_lost
from headwater.spark.engine.write_identity import (
    SAMPLE_QUERY,
    producer_of,
    refuse_producer,
)
from headwater.spark.queries.notes import NotedQuery
from headwater.spark.queues.intake import intake_name
from headwater.spark.queues.reader import QueueReader, columns_of
from headwater.spark.queues.sink import ACCEPTED, QueueStreamWriter, QueueWriter
from headwater.spark.queues.target import QueueAddress

READ_OPTIONS = ("url", "queue", "state", "minPartitions", "includeHeaders")
WRITE_OPTIONS = ("url", "queue", "producer", "sequence")


class QueueSource(DataSource):
    """The queue that the option ``queue`` names, of the store ``url``."""

    @classmethod
    def name(cls) -> str:
        """Return the name for ``format``."""
        return "headwater_queue"

    @one_line()
    def schema(self) -> StructType:
        """Return the columns of the messages."""
        options = SourceOptions(self.options, READ_OPTIONS, "queue")
        _address(options)
        return columns_of(options.flag("includeHeaders", False))

    @one_line()
    def reader(self, schema: StructType) -> DataSourceReader:
        """Plan a read of the queue; nothing of it is changed or taken."""
        if are_lost(self.options):
            return LostReader()
        options = SourceOptions(self.options, READ_OPTIONS, "queue")
        headers = options.flag("includeHeaders", False)
        refuse_other_schema(schema, columns_of(headers), "a queue")
        least = options.number("minPartitions") or 1
        return QueueReader(_address(options), _states(options), least, headers)

    @one_line()
    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Plan a batch write."""
        options = SourceOptions(self.options, WRITE_OPTIONS, "queue")
        address, names = _write_to(options, schema, overwrite)
        producer = producer_of(options)
        intake_name(address.queue, SAMPLE_QUERY if producer is None else producer[0])
        return QueueWriter(address, producer, names)

    @one_line()
    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802  Spark's name
        """Plan the writes of a streaming query."""
        options = SourceOptions(self.options, WRITE_OPTIONS, "queue")
        refuse_producer(options)
        address, names = _write_to(options, schema, overwrite)
        intake_name(address.queue, SAMPLE_QUERY)
        about = NotedQuery(
            options.text("queryName") or "", checkpoint=options.text("checkpointLocation") or ""
        )
        return QueueStreamWriter(address, about, names)


def _address(options: SourceOptions) -> QueueAddress:
    queue = check_name(options.required("queue"), "queue")
    return QueueAddress(absolute_url(options.text("url")), queue)


def _write_to(
    options: SourceOptions, schema: StructType, overwrite: bool
) -> tuple[QueueAddress, list[str]]:
    """Return where rows go, and the names of their columns. Raises InvalidInput."""
    refuse_overwrite(overwrite, "a queue")
    names = ACCEPTED.accept(schema, options).names
    return _address(options), names


def _states(options: SourceOptions) -> tuple[State, ...]:
    known: tuple[State, ...] = get_args(State)
    words = [word.lower() for word in options.words("state")]
    for word in words:
        if word not in known:
            raise InvalidInput(f"option 'state' must name some of {', '.join(known)}, not {word!r}")
    return tuple(state for state in known if state in words)
