"""A queue as rows: each message as it lies there, none of them taken.

A task reads one part of the queue, page by page: what is ready, delayed, held, to come again or
dead, each priority for itself. Lists of ready messages are cut by the time at which they were
pushed. As with ``Queue.scan``, what stays where it is comes once; what moves meanwhile may come
twice, or not at all.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import (
    BinaryType,
    IntegerType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from headwater.errors import UnknownQueue
from headwater.queue.handles import QueueHandle
from headwater.queue.inspecting import Spot, page, spots_of
from headwater.queue.types import QueueItem, State
from headwater.spark.engine.failures import one_line
from headwater.spark.log.columns import TIME
from headwater.spark.queues.sink import QueueAddress
from headwater.store.call import Call, Operation

# So many messages of a list are a task's share, and so many rows a batch.
TASK_MESSAGES = 100_000
BATCH_ROWS = 32_000
BATCH_BYTES = 16 * 1024 * 1024
_EVER = 10**16 - 1

COLUMNS = StructType(
    [
        StructField("id", StringType(), nullable=False),
        StructField("value", BinaryType(), nullable=False),
        StructField("state", StringType(), nullable=False),
        StructField("priority", IntegerType(), nullable=False),
        StructField("attempt", IntegerType(), nullable=False),
        StructField("pushed", TimestampType()),
        StructField("due", TimestampType()),
        StructField("expires", TimestampType()),
    ]
)
_ARROW = pa.schema(
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


@dataclass(frozen=True)
class QueuePart(InputPartition):
    """What one task looks at: a spot, up to the message of that number."""

    spot: Spot
    upto: int = _EVER


class QueueReader(DataSourceReader):
    """Plans a look at a queue, and is sent to every task of it."""

    def __init__(self, place: QueueAddress, states: tuple[State, ...], least: int) -> None:
        self._place = place
        self._states = states
        self._least = least

    @one_line()
    def partitions(self) -> list[InputPartition]:
        """Find out what there is to look at, and cut it into tasks. Raises UnknownQueue."""
        return self._place.hw.store.run(parts_of(self._handle(), self._states, self._least))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Hand over the rows of one task."""
        assert isinstance(partition, QueuePart)
        held: list[QueueItem] = []
        size = 0
        with one_line():
            for item in self._items(partition):
                if self._states and item.state not in self._states:
                    continue
                held.append(item)
                size += len(item.value)
                if len(held) >= BATCH_ROWS or size >= BATCH_BYTES:
                    yield to_batch(held)
                    held, size = [], 0
            if held:
                yield to_batch(held)

    def _items(self, part: QueuePart) -> Iterator[QueueItem]:
        run, handle = self._place.hw.store.run, self._handle()
        rest = [part.spot]
        while rest:
            items, rest = run(page(handle, rest))
            for item in items:
                if item.id and int(item.id) > part.upto:
                    return
                yield item

    def _handle(self) -> QueueHandle:
        return QueueHandle(self._place.queue, set(), "spark")


def parts_of(
    queue: QueueHandle, states: tuple[State, ...], least: int
) -> Operation[list[InputPartition]]:
    """Cut a queue into what tasks look at, at least so many where there are that many messages."""
    reply = yield Call("hw_queue_stats", queue.key, read_only=True)
    exists, listed, newest = reply[4], int(reply[7]), int(reply[8][0])
    if not exists:
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
        # Numbers are times: cut into spans that are alike, the last of which has no end.
        borders = [oldest + (newest - oldest) * i // shares for i in range(1, shares)]
        ends = sorted({-1, *(border for border in borders if border < newest), _EVER})
        for after, upto in pairwise(ends):
            parts.append(
                QueuePart(spot._replace(after=b"" if after < 0 else b"%016d" % after), upto)
            )
    return parts


def to_batch(items: list[QueueItem]) -> pa.RecordBatch:
    """Give messages as the columns of the source; of a damaged one only the value is known."""
    columns = [
        [item.id for item in items],
        [item.value for item in items],
        [item.state for item in items],
        [item.priority for item in items],
        [item.attempt for item in items],
        [_us(item.pushed_ms or None) for item in items],
        [_us(item.due_ms) for item in items],
        [_us(item.expires_ms) for item in items],
    ]
    arrays = [pa.array(found, field.type) for found, field in zip(columns, _ARROW, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=_ARROW)


def _us(ms: int | None) -> int | None:
    return None if ms is None else ms * 1000
