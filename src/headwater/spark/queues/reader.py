"""A queue as rows: each message as it lies there, none of them taken.

A task reads one part of the queue, page by page: what is ready, delayed, unacknowledged, to be
redelivered or dead, each priority for itself. Lists of ready messages are cut by the time at which
they were pushed. As with ``Queue.scan``, a message that stays where it is is returned once; one
that moves meanwhile may be returned twice, or not at all.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from headwater.errors import UnknownQueue
from headwater.kernel.headers import Headers
from headwater.log.node import STRUCTS
from headwater.queue.handles import QueueHandle
from headwater.queue.inspecting import Spot, page, read_stats, spots_of
from headwater.queue.types import QueueItem, State
from headwater.spark.engine.arrow_rows import BATCH_ROWS, TIME, spark_schema, to_batch
from headwater.spark.engine.failures import one_line
from headwater.spark.queues.target import QueueAddress
from headwater.store.call import Operation

# So many messages of a list are a task's share, and so many bytes a batch.
TASK_MESSAGES = 100_000
BATCH_BYTES = 16 * 1024 * 1024
_EVER = 10**16 - 1

_COLUMNS = pa.schema(
    [
        pa.field("id", pa.string(), nullable=False),
        pa.field("value", pa.binary(), nullable=False),
        pa.field("state", pa.string(), nullable=False),
        pa.field("priority", pa.int32(), nullable=False),
        pa.field("attempt", pa.int32(), nullable=False),
        pa.field("pushed", TIME),
        pa.field("due", TIME),
        pa.field("expires", TIME),
    ]
)
# As the log's source has them; when they are asked for.
_WITH_HEADERS = _COLUMNS.append(pa.field("headers", STRUCTS))


def columns_of(headers: bool) -> StructType:
    """Return the columns of the source, with headers or without."""
    return spark_schema(_WITH_HEADERS if headers else _COLUMNS)


@dataclass(frozen=True)
class QueuePart(InputPartition):
    """What one task reads: a spot, up to the message of that number."""

    spot: Spot
    upto: int = _EVER


class QueueReader(DataSourceReader):
    """Plans a read of a queue, and is sent to every task of it."""

    def __init__(
        self, address: QueueAddress, states: tuple[State, ...], least: int, headers: bool
    ) -> None:
        self._headers = headers
        self._address = address
        self._states = states
        self._least = least

    @one_line()
    def partitions(self) -> list[InputPartition]:
        """Find out what there is to read, and cut it into tasks. Raises UnknownQueue."""
        return self._address.hw.store.run(parts_of(self._handle(), self._states, self._least))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one task."""
        assert isinstance(partition, QueuePart)
        held: list[QueueItem] = []
        size = 0
        with one_line():
            for item in self._items(partition):
                if self._states and item.state not in self._states:
                    continue
                held.append(item)
                size += len(item.value) + len(item.headers.encoded)
                if len(held) >= BATCH_ROWS or size >= BATCH_BYTES:
                    yield batch_of(held, self._headers)
                    held, size = [], 0
            if held:
                yield batch_of(held, self._headers)

    def _items(self, part: QueuePart) -> Iterator[QueueItem]:
        run, handle = self._address.hw.store.run, self._handle()
        rest = [part.spot]
        while rest:
            items, rest = run(page(handle, rest))
            for item in items:
                if item.id and int(item.id) > part.upto:
                    return
                yield item

    def _handle(self) -> QueueHandle:
        return QueueHandle(self._address.queue, set(), "spark")


def parts_of(
    queue: QueueHandle, states: tuple[State, ...], least: int
) -> Operation[list[InputPartition]]:
    """Cut a queue into parts for tasks: at least so many, where there are as many messages."""
    facts = yield from read_stats(queue)
    listed, newest = facts["listed"], facts["last"]
    if not facts["exists"]:
        raise UnknownQueue(queue.name)
    spots = yield from spots_of(queue, states)
    lists = [spot for spot in spots if spot.part == "ready"]
    shares = max(-(-least // max(len(lists), 1)), listed // TASK_MESSAGES)
    parts: list[InputPartition] = []
    for spot in spots:
        if spot.part != "ready" or shares < 2:
            parts.append(QueuePart(spot))
            continue
        items, _ = yield from page(queue, [spot], 1)
        oldest = int(items[0].id or newest) if items else newest
        # Numbers are times: cut into equal spans, the last of which has no end.
        borders = [oldest + (newest - oldest) * i // shares for i in range(1, shares)]
        ends = sorted({-1, *(border for border in borders if border < newest), _EVER})
        for after, upto in pairwise(ends):
            parts.append(
                QueuePart(spot._replace(after=b"" if after < 0 else b"%016d" % after), upto)
            )
    return parts


def batch_of(items: list[QueueItem], headers: bool) -> pa.RecordBatch:
    """Return messages as the columns of the source; of a damaged one only the value is known."""
    columns: list[Any] = [
        [item.id for item in items],
        [item.value for item in items],
        [item.state for item in items],
        [item.priority for item in items],
        [item.attempt for item in items],
        [_us(item.pushed_ms or None) for item in items],
        [_us(item.due_ms) for item in items],
        [_us(item.expires_ms) for item in items],
    ]
    if not headers:
        return to_batch(columns, _COLUMNS)
    columns.append([_structs(item.headers) for item in items])
    return to_batch(columns, _WITH_HEADERS)


def _structs(headers: Headers) -> list[dict[str, str | bytes]]:
    return [{"key": name, "value": value} for name, value in headers.items()]


def _us(ms: int | None) -> int | None:
    return None if ms is None else ms * 1000
