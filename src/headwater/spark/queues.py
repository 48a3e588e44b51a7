"""``format("headwater_queue")``: a queue to look at, and to push to, from Spark."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, NamedTuple, get_args

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import DataSourceReader, InputPartition, WriterCommitMessage
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructType,
)

from headwater.client import Headwater
from headwater.errors import InvalidInput, StaleSequence, UnknownQueue
from headwater.kernel.headers import NO_HEADERS, Headers
from headwater.kernel.inputs import MAX_MS, MAX_NAME_BYTES, check_name
from headwater.log.node import STRUCTS, encoded_column
from headwater.log.reading import extent, newest_sequence
from headwater.log.retention import PRODUCER_MS
from headwater.log.stream import Stream
from headwater.queue.handles import QueueHandle
from headwater.queue.inspecting import Spot, page, read_stats, spots_of
from headwater.queue.keys import MAX_PRIORITY, queue_key
from headwater.queue.types import QueueItem, State
from headwater.spark.engine.columns import (
    BATCH_ROWS,
    TIME,
    AcceptedColumns,
    refuse_other_schema,
    renamed,
    spark_schema,
    to_batch,
)
from headwater.spark.engine.connections import absolute_url, client
from headwater.spark.engine.failures import one_line
from headwater.spark.engine.formats import ReadFormat, WriteFormat
from headwater.spark.engine.options import SourceOptions
from headwater.spark.engine.writes import SAMPLE_QUERY, content_of_tasks
from headwater.spark.log.noting import NotedWrite
from headwater.spark.log.staging import LogSink, StagedRows, new_staging, stage_rows, unstage_rows
from headwater.spark.log.target import StreamOrTopic
from headwater.spark.queries.notes import NotedQuery
from headwater.store.call import Operation

# ── Target ────────────────────────────────────────────────────────────────────────────────────────
# Which queue is meant.


@dataclass(frozen=True, slots=True)
class QueueAddress:
    """A queue of a store; goes to tasks, so it holds names only."""

    url: str = field(repr=False)
    queue: str

    @property
    def hw(self) -> Headwater:
        """This process's client of the store."""
        return client(self.url)


# ── Reader ────────────────────────────────────────────────────────────────────────────────────────
# A queue as rows: each message as it lies there, none of them taken.
#
# A task reads one part of the queue, page by page: what is ready, delayed, unacknowledged, to be
# redelivered or dead, each priority for itself. Lists of ready messages are cut by the time at
# which they were pushed. As with ``Queue.scan``, a message that stays where it is is returned
# once; one that moves meanwhile may be returned twice, or not at all.


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


# ── Intake ────────────────────────────────────────────────────────────────────────────────────────
# The intake of a queue: a stream in which rows wait until the driver pushes them into the queue.
#
# There is one for each queue and producer. Tasks stage their rows beside it. The driver's commit
# publishes them there, once for each producer and sequence, and brings them from there into the
# queue in pushes of bounded size. Each push has the intake as its producer, and as its sequence
# the offset of its last row: so the queue itself knows, by the same call that took the rows, up to
# where it has the intake. A commit that is repeated goes on from there, with the rows of the first
# attempt.
#
# What was brought over is evicted from the intake, which is empty between two commits.


# What one push takes at most: enough to be quick, and milliseconds for the server.
PUSH_ROWS = 5000
PUSH_BYTES = 8 * 1024 * 1024
# What distinguishes an intake from another one of its name: a colon and microseconds.
_STAMP_BYTES = 17
_BOUNDS = {
    "priority": (-MAX_PRIORITY, MAX_PRIORITY),
    "delay_ms": (0, MAX_MS),
    "ttl_ms": (1, MAX_MS),
}


def intake_name(queue: str, producer: str) -> str:
    """Return the name of the intake of a queue and a producer. Raises InvalidInput."""
    # The length keeps two pairs of names apart.
    name = f"intake:{len(queue)}:{queue}:{producer}"
    if len(name.encode()) + _STAMP_BYTES > MAX_NAME_BYTES:
        raise InvalidInput(
            f"the names of queue {queue!r} and producer {producer!r} are too long together; "
            "choose a shorter one"
        )
    return name


# ── In tasks ─────────────────────────────────────────────────────────────────────────────────


def to_messages(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return rows as messages of the intake: the tag says how to push; equal tags are adjacent."""
    names = [name for name in _BOUNDS if name in batch.schema.names]
    for name in names:
        _check_bounds(batch.column(name), name)
    if names:
        order = pc.sort_indices(batch, [(name, "ascending") for name in names])
        batch = batch.take(order)
    words = [
        pc.coalesce(batch.column(name).cast(pa.string()), pa.scalar(""))
        if name in names
        else pa.repeat(pa.scalar(""), batch.num_rows)
        for name in _BOUNDS
    ]
    tags = pc.binary_join_element_wise(*words, ":")
    messages = pa.RecordBatch.from_arrays([tags, batch.column("value")], names=["tag", "value"])
    if "headers" not in batch.schema.names:
        return messages
    return messages.append_column("headers", batch.column("headers"))


def _check_bounds(values: pa.Array, name: str) -> None:
    least, most = _BOUNDS[name]
    found = pc.min_max(values).as_py()
    for value in (found["min"], found["max"]):
        if value is not None and not least <= value <= most:
            raise InvalidInput(f"{name} must be from {least} to {most}, not {value}; correct it")


# ── On the driver ────────────────────────────────────────────────────────────────────────────


class Push(NamedTuple):
    """Rows of the intake that are pushed by one call; ``last`` is the offset of the last."""

    tag: str
    values: list[bytes]
    headers: list[Headers]
    last: int


def bring_over(address: QueueAddress, intake: Stream, stop: int) -> None:
    """Push the rows of the intake before an offset, from where the queue has it on."""
    run, queue = address.hw.store.run, address.hw.queue(address.queue)
    # An intake that was deleted and made anew counts its offsets anew: it is another producer.
    producer = f"{intake.name}:{run(extent(intake.name)).created}"
    newest = run(newest_sequence(queue_key(address.queue), producer)) or 0
    for push in pushes(intake.scan(newest + 1, stop, headers=True)):
        priority, delay_ms, ttl_ms = push.tag.split(":")
        # What is older than the remembered answers is in the queue: an intake is pushed in order.
        with contextlib.suppress(StaleSequence):
            queue.push_many(
                push.values,
                priority=int(priority or 0),
                delay_ms=int(delay_ms or 0),
                ttl_ms=int(ttl_ms) if ttl_ms else None,
                headers=push.headers if any(push.headers) else None,
                producer=producer,
                sequence=push.last,
            )


def pushes(batches: Iterable[pa.RecordBatch]) -> Iterator[Push]:
    """Cut rows into pushes, in order; rows from one offset on are always cut in the same way."""
    tag, values, all_headers, size, last = "", list[bytes](), list[Headers](), 0, 0
    for batch in batches:
        columns = (batch.column(name).to_pylist() for name in ("offset", "tag", "value"))
        for offset, its_tag, value, headers in zip(*columns, _headers(batch), strict=True):
            its_size = len(value) + len(headers.encoded)
            full = len(values) >= PUSH_ROWS or size + its_size > PUSH_BYTES
            if values and (full or its_tag != tag):
                yield Push(tag, values, all_headers, last)
                values, all_headers, size = [], [], 0
            values.append(value)
            all_headers.append(headers)
            tag, size, last = its_tag, size + its_size, offset
    if values:
        yield Push(tag, values, all_headers, last)


def _headers(batch: pa.RecordBatch) -> list[Headers]:
    """Return the headers of each row of an intake."""
    column = batch.column("headers")
    encoded = encoded_column(column) if len(column.keys) else None
    if encoded is None:
        return [NO_HEADERS] * batch.num_rows
    return [Headers.stored(one) if one else NO_HEADERS for one in encoded.to_pylist()]


# ── Sink ──────────────────────────────────────────────────────────────────────────────────────────
# A queue as a sink: each row is one message in it, once, whoever dies and is repeated.
#
# How rows get there is in ``intake``. The columns are ``value`` (binary or string) and, if they
# are there, ``priority``, ``delay_ms``, ``ttl_ms`` and ``headers``. Rows of a task are ordered by
# priority, delay and life, and otherwise stay as they are, which no consumer can see: a queue has
# an order within a priority only.


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


@dataclass(frozen=True, slots=True)
class QueueWrite(NotedWrite):
    """A write to a queue; ``names`` are those under which its rows are written, in their order.

    ``about`` is what is known of the query, to be noted in the store: so what it has staged beside
    its intake is counted as that of a query that writes to a stream.
    """

    address: QueueAddress
    about: NotedQuery = field(default_factory=NotedQuery)
    names: Sequence[str] | None = None

    @property
    def name(self) -> str:
        """See SparkWrite."""
        return self.address.queue

    def noted(self, query: str) -> StreamOrTopic:
        """See NotedWrite."""
        return self._intake(query).target

    def stage(
        self, batches: Iterator[pa.RecordBatch], query: str | None, producer: str, repeatable: bool
    ) -> StagedRows:
        """See SparkWrite: beside the intake."""
        rows = (to_messages(batch) for batch in renamed(batches, self.names) if batch.num_rows)
        staging = new_staging(query)
        return stage_rows(self._intake(producer), rows, staging, query, repeatable=repeatable)

    def commit(
        self,
        messages: Sequence[WriterCommitMessage | None],
        producer: str,
        sequence: int,
        repeatable: bool,
        plan: str = "",
    ) -> None:
        """See SparkWrite: bring what tasks have staged into the queue; a repeat goes on with it."""
        staged = [m.staging for m in messages if isinstance(m, StagedRows) and m.places]
        if not staged:
            return
        intake = self.address.hw.stream(intake_name(self.address.queue, producer))
        content = content_of_tasks(messages).digest(plan)
        published = intake.publish(*staged, producer=producer, sequence=sequence, content=content)
        # Nobody repeats what is older than the memory of producers.
        intake.retain(max_age_ms=PRODUCER_MS)
        # What an earlier commit has left goes first, and is cut as that one would have cut it.
        bring_over(self.address, intake, published.first)
        bring_over(self.address, intake, published.last + 1)
        intake.evict(published.last)
        if not repeatable:
            intake.delete()

    def abort(self, messages: Sequence[WriterCommitMessage | None], producer: str) -> None:
        """See SparkWrite."""
        unstage_rows(self._intake(producer), messages)

    def _intake(self, producer: str) -> LogSink:
        name = intake_name(self.address.queue, producer)
        return LogSink(StreamOrTopic(self.address.url, name, False), 0)


# ── Source ────────────────────────────────────────────────────────────────────────────────────────
# ``format("headwater_queue")`` itself: its options, and what is refused before anything runs.


READ_OPTIONS = ("url", "queue", "state", "minPartitions", "includeHeaders")
WRITE_OPTIONS = ("url", "queue", "producer", "sequence")


class QueueSource(ReadFormat, WriteFormat):
    """The queue that the option ``queue`` names, of the store ``url``."""

    CALLED = "headwater_queue"
    WHAT = "a queue"
    PATHS = ("queue",)
    READ_OPTIONS = READ_OPTIONS
    WRITE_OPTIONS = WRITE_OPTIONS

    def columns(self, options: SourceOptions) -> StructType:
        """Return the columns of the messages."""
        _address(options)
        return columns_of(options.flag("includeHeaders", False))

    def plan_read(self, options: SourceOptions, schema: StructType) -> DataSourceReader:
        """Plan a read of the queue; nothing of it is taken."""
        headers = options.flag("includeHeaders", False)
        refuse_other_schema(schema, columns_of(headers), self.WHAT)
        least = options.number("minPartitions") or 1
        return QueueReader(_address(options), _states(options), least, headers)

    def plan_write(self, options: SourceOptions, schema: StructType) -> QueueWrite:
        """Plan a write. Raises InvalidInput."""
        names = ACCEPTED.accept(schema, options).names
        address = _address(options)
        intake_name(address.queue, options.text("producer") or SAMPLE_QUERY)
        about = NotedQuery(
            options.text("queryName") or "", checkpoint=options.text("checkpointLocation") or ""
        )
        return QueueWrite(address, about, names)


def _address(options: SourceOptions) -> QueueAddress:
    queue = check_name(options.required("queue"), "queue")
    return QueueAddress(absolute_url(options.text("url")), queue)


def _states(options: SourceOptions) -> tuple[State, ...]:
    known: tuple[State, ...] = get_args(State)
    words = [word.lower() for word in options.words("state")]
    for word in words:
        if word not in known:
            raise InvalidInput(f"option 'state' must name some of {', '.join(known)}, not {word!r}")
    return tuple(state for state in known if state in words)
