"""``format("headwater_queue")``: a queue to look at, and to push to, from Spark."""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, NamedTuple, get_args

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    DataSourceStreamWriter,
    DataSourceWriter,
    InputPartition,
    WriterCommitMessage,
)
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
    refuse_overwrite,
    renamed,
    spark_schema,
    to_batch,
)
from headwater.spark.engine.connections import absolute_url, client
from headwater.spark.engine.failures import one_line
from headwater.spark.engine.options import LostReader, SourceOptions, are_lost
from headwater.spark.engine.writes import (
    SAMPLE_QUERY,
    content_of_tasks,
    plan_of,
    producer_of,
    queries_of,
    query_of_task,
    refuse_producer,
    writing_epoch,
)
from headwater.spark.log.noting import note_first_epoch, note_query
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


def target_of(address: QueueAddress, producer: str) -> StreamOrTopic:
    """Return the intake of a queue and a producer as what is written to."""
    return StreamOrTopic(address.url, intake_name(address.queue, producer), False)


def _intake_of(address: QueueAddress, producer: str) -> LogSink:
    return LogSink(target_of(address, producer), 0)


# ── In tasks ─────────────────────────────────────────────────────────────────────────────────


def stage(
    address: QueueAddress,
    producer: str,
    batches: Iterable[pa.RecordBatch],
    query: str | None = None,
    *,
    repeatable: bool = True,
) -> StagedRows:
    """Stage the rows of a task beside the intake."""
    rows = (to_messages(batch) for batch in batches if batch.num_rows)
    intake = _intake_of(address, producer)
    return stage_rows(intake, rows, new_staging(query), query, repeatable=repeatable)


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


def commit(
    address: QueueAddress,
    messages: Iterable[WriterCommitMessage | None],
    producer: str,
    sequence: int,
    plan: str = "",
) -> None:
    """Bring what tasks have staged into the queue; a repeat goes on with the first commit.

    Raises ReusedSequence when the first one had other content, and not the same ``plan``, and
    StaleSequence.
    """
    messages = [*messages]
    staged = [m.staging for m in messages if isinstance(m, StagedRows) and m.places]
    if not staged:
        return
    intake = address.hw.stream(intake_name(address.queue, producer))
    content = content_of_tasks(messages).digest(plan)
    found = intake.publish(*staged, producer=producer, sequence=sequence, content=content)
    # Nobody repeats what is older than the memory of producers.
    intake.retain(max_age_ms=PRODUCER_MS)
    # What an earlier commit has left goes first, and is cut as that one would have cut it.
    bring_over(address, intake, found.first)
    bring_over(address, intake, found.last + 1)
    intake.evict(found.last)


def abort(
    address: QueueAddress, messages: Iterable[WriterCommitMessage | None], producer: str
) -> None:
    """Drop what tasks have staged."""
    unstage_rows(_intake_of(address, producer), messages)


def delete(address: QueueAddress, producer: str) -> None:
    """Delete the intake of a producer whose write nobody can repeat."""
    address.hw.stream(intake_name(address.queue, producer)).delete()


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
        return stage(self.address, self.producer, rows, repeatable=repeatable)

    @one_line()
    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Push the rows of all tasks."""
        sequence = self.given[1] if self.given else 0
        commit(self.address, messages, self.producer, sequence)
        if self.given is None:
            delete(self.address, self.producer)

    @one_line()
    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Drop what was staged."""
        abort(self.address, messages, self.producer)


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
        note_first_epoch(target_of(self.address, query), query, self.about)
        return stage(self.address, query, renamed(iterator, self.names), query)

    @one_line()
    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Push an epoch; a repeat changes nothing. Raises CheckpointWentBack for other rows."""
        plan = plan_of(self.about.checkpoint, batchId)
        for query in queries_of(messages):
            with writing_epoch(query, batchId, self.address.queue):
                commit(self.address, messages, query, batchId, plan)
            about = msgspec.structs.replace(self.about, epoch=batchId)
            target = target_of(self.address, query)
            note_query(target, query.removeprefix("spark-"), "write", about)

    @one_line()
    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803, ARG002
        """Drop what was staged."""
        for query in queries_of(messages):
            abort(self.address, messages, query)


# ── Source ────────────────────────────────────────────────────────────────────────────────────────
# ``format("headwater_queue")`` itself: its options, and what is refused before anything runs.


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
