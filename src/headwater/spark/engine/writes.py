"""Writes that may be repeated: what identifies one, what it holds, and those that need no more."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from hashlib import blake2b
from itertools import repeat
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote, urlsplit
from zlib import crc32

import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)

from headwater.errors import (
    CheckpointWentBack,
    InvalidInput,
    ReusedSequence,
    SparkFailed,
    StaleSequence,
)
from headwater.kernel.inputs import check_name
from headwater.spark.engine.columns import renamed
from headwater.spark.engine.failures import one_line
from headwater.spark.engine.options import SourceOptions

# ── Contents ──────────────────────────────────────────────────────────────────────────────────────
# What a write holds, in a few bytes: by them a repeat is told from new rows under an old number.
#
# Spark promises neither how the rows of a retry are spread over tasks, nor their order. So a
# content is the number of rows and the sum of a checksum of each. Where a query is not
# deterministic, a retry has other rows. It is known by its plan then: what Spark wrote into the
# checkpoint before it ran the epoch, and finds there again. A checkpoint that went back, or a copy
# of one, gets another plan for the same epoch.
#
# The checksum of a row, modulo 2^64, is ``mix(crc + 1st part * K + 2nd part * K^2 + ...)``. The
# CRC-32 is of all texts and bytes of the row, one behind the other. The part of such a column is
# the length, that of any other column the number in it. ``jvm/NodePacker.java`` makes the same of
# a message.


_MODULUS = 1 << 64
_K = 0x9E3779B97F4A7C15
_MIXED_BY = ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB))
_LAST_SHIFT = 31
# The part of a null: no length, and no number that is likely.
_NULL = 0xD6E8FEB86659FD93


class Content(NamedTuple):
    """How many rows, and the sum of their checksums."""

    rows: int = 0
    total: int = 0

    def joined(self, other: Content) -> Content:
        """Return the content of both."""
        return Content(self.rows + other.rows, (self.total + other.total) % _MODULUS)

    @classmethod
    def of_all(cls, contents: Iterable[Content]) -> Content:
        """Return the content of several parts."""
        return reduce(cls.joined, contents, cls())

    def digest(self, plan: str = "") -> str:
        """Return it as the store compares it: equal parts show a repeat. ``plan`` may be empty."""
        return f"{self.rows:x}{self.total:016x}{plan and '.'}{plan}"


def content_of(batch: pa.RecordBatch) -> Content:
    """Return the content of rows; the order of columns counts, their names do not."""
    crcs: Iterable[int] = repeat(0, batch.num_rows)
    parts: pa.Array | None = None
    factor = 1
    for column in batch.columns:
        factor = factor * _K % _MODULUS
        numbers, texts = _parts(column)
        if texts is not None:
            crcs = map(crc32, texts, crcs)
        part = pc.multiply(numbers, _number(factor))
        parts = part if parts is None else pc.add(parts, part)
    sums = pa.array(crcs, pa.uint64(), size=batch.num_rows)
    total = pc.sum(_mixed(sums if parts is None else pc.add(sums, parts))).as_py()
    return Content(batch.num_rows, total or 0)


def plan_of(checkpoint: str, epoch: int) -> str:
    """Return a digest of what Spark planned for an epoch; empty when it cannot be read from here.

    So it is with a checkpoint that is not in a directory, or is not named by the query's options.
    """
    place = urlsplit(checkpoint)
    if not checkpoint or place.scheme not in ("", "file"):
        return ""
    try:
        planned = (Path(unquote(place.path)) / "offsets" / str(epoch)).read_bytes()
    except OSError:
        return ""
    return blake2b(planned, digest_size=16).hexdigest()


def _parts(column: pa.Array) -> tuple[pa.Array, list[bytes] | None]:
    """Return the part of each row, and its bytes if it is a column of texts or bytes."""
    kind = column.type
    if pa.types.is_boolean(kind) or pa.types.is_date32(kind):
        numbers = column.cast(pa.int32()).cast(pa.int64())
    elif pa.types.is_integer(kind) or pa.types.is_timestamp(kind):
        numbers = column.cast(pa.int64())
    elif pa.types.is_float32(kind) or pa.types.is_float64(kind):
        numbers = column.cast(pa.float64()).view(pa.int64())
    else:
        is_text = pa.types.is_string(kind) or pa.types.is_large_string(kind)
        is_bytes = pa.types.is_binary(kind) or pa.types.is_large_binary(kind)
        texts = (column if is_text or is_bytes else column.cast(pa.string())).cast(pa.binary())
        numbers = pc.binary_length(texts).cast(pa.int64())
        return _filled(numbers), texts.fill_null(b"").to_pylist()
    return _filled(numbers), None


def _filled(numbers: pa.Array) -> pa.Array:
    found = numbers.view(pa.uint64())
    return found.fill_null(_number(_NULL)) if found.null_count else found


def _mixed(numbers: pa.Array) -> pa.Array:
    """Return numbers of which a small change changes every bit: their sum then tells rows apart."""
    for shift, factor in _MIXED_BY:
        numbers = pc.bit_wise_xor(numbers, pc.shift_right(numbers, _number(shift)))
        numbers = pc.multiply(numbers, _number(factor))
    return pc.bit_wise_xor(numbers, pc.shift_right(numbers, _number(_LAST_SHIFT)))


def _number(value: int) -> pa.Scalar:
    return pa.scalar(value, pa.uint64())


# ── Write identity ────────────────────────────────────────────────────────────────────────────────
# What identifies a write, so that a repeat of it is deduplicated: a producer and a sequence.
#
# A batch write gets them by the options ``producer`` and ``sequence``. A streaming query is its
# own producer, by the id in its checkpoint, and its epochs are the sequence. A repeat has the
# content of the first time (see ``contents``): anything else under the same sequence is refused.


# The producers of all queries are as long as this one.
SAMPLE_QUERY = "spark-00000000-0000-0000-0000-000000000000"


@dataclass(frozen=True)
class FromTask(WriterCommitMessage):
    """What a task reports to the commit: the query that is its producer, and what it wrote.

    The query is None in a batch write.
    """

    query: str | None
    content: Content


def query_of_task() -> str:
    """Return the streaming query that this task belongs to, as a producer. Raises SparkFailed."""
    context = TaskContext.get()
    found = context.getLocalProperty("sql.streaming.queryId") if context else None
    if not found:
        raise SparkFailed(
            "a task of a streaming query does not know the id of its query, by which a repeated "
            "epoch is recognised"
        )
    return f"spark-{found}"


def queries_of(messages: Iterable[WriterCommitMessage | None]) -> set[str]:
    """Return the query whose tasks sent the messages; an empty set when there were no tasks."""
    found = {message.query for message in messages if isinstance(message, FromTask)}
    assert None not in found, "tasks of a streaming query know it"
    return {query for query in found if query is not None}


def content_of_tasks(messages: Iterable[WriterCommitMessage | None]) -> Content:
    """Return what all tasks wrote."""
    return Content.of_all(one.content for one in messages if isinstance(one, FromTask))


def producer_of(options: SourceOptions) -> tuple[str, int] | None:
    """Return the producer and the sequence of a batch write; None when it cannot be repeated."""
    producer, sequence = options.text("producer"), options.number("sequence", 0)
    if (producer is None) != (sequence is None):
        raise InvalidInput("options 'producer' and 'sequence' go together; give both or neither")
    if producer is None or sequence is None:
        return None
    return check_name(producer, "producer"), sequence


def refuse_producer(options: SourceOptions) -> None:
    """Refuse the options of a producer in a streaming query, which is its own producer."""
    for name in ("producer", "sequence"):
        if name in options:
            raise InvalidInput(
                f"option {name!r} means nothing in a streaming query, whose writes are known by "
                "its checkpoint; leave it out"
            )


# ── Writers ───────────────────────────────────────────────────────────────────────────────────────


class SparkWrite:
    """A write of one kind of data: where its rows go; sent to tasks, so it holds names only.

    Tasks stage rows where nobody sees them, and the driver's commit makes all of them visible, or
    nothing. A streaming query is its own producer.
    """

    __slots__ = ()

    @property
    def name(self) -> str:
        """What is written to, for people."""
        raise NotImplementedError

    @property
    def checkpoint(self) -> str:
        """Where the checkpoint of the query is; empty when that is not known."""
        return ""

    def stage(
        self, batches: Iterator[pa.RecordBatch], query: str | None, producer: str, repeatable: bool
    ) -> FromTask:
        """Stage the rows of a task; what a write that nobody can repeat holds need not be known."""
        raise NotImplementedError

    def commit(
        self,
        messages: Sequence[WriterCommitMessage | None],
        producer: str,
        sequence: int,
        repeatable: bool,
        plan: str = "",
    ) -> None:
        """Make what tasks have staged visible, in their order; a repeat changes nothing.

        Raises ReusedSequence when the sequence was written with other content, and not by the same
        ``plan``, and StaleSequence; then nothing is written.
        """

    def abort(self, messages: Sequence[WriterCommitMessage | None], producer: str) -> None:
        """Drop what tasks have staged."""

    def begin(self, query: str) -> None:
        """Note in a task that a query writes."""

    def end(self, query: str, epoch: int) -> None:
        """Note that an epoch of a query is written."""


class BatchWriter(DataSourceArrowWriter):
    """A batch write: all rows are there when it succeeds, and none when a task fails.

    It may be repeated when its producer and sequence are ``given``.
    """

    def __init__(self, write: SparkWrite, given: tuple[str, int] | None = None) -> None:
        self.to = write
        self._repeatable = given is not None
        # Without a producer, a name of its own identifies the write for all its tasks.
        self._identity = given or (f"spark-{secrets.token_hex(12)}", 0)

    @one_line()
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Stage the rows of a task."""
        return self.to.stage(iterator, None, self._identity[0], self._repeatable)

    @one_line()
    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Make the rows of all tasks visible."""
        self.to.commit(messages, *self._identity, self._repeatable)

    @one_line()
    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Drop what was staged."""
        self.to.abort(messages, self._identity[0])


class QueryWriter(DataSourceStreamArrowWriter):
    """The writes of a streaming query: each epoch is there once."""

    def __init__(self, write: SparkWrite) -> None:
        self.to = write

    @one_line()
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Stage the rows of a task."""
        query = query_of_task()
        self.to.begin(query)
        return self.to.stage(iterator, query, query, repeatable=True)

    @one_line()
    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Write an epoch; a repeat changes nothing. Raises CheckpointWentBack for other rows."""
        plan = plan_of(self.to.checkpoint, batchId)
        for query in queries_of(messages):
            try:
                self.to.commit(messages, query, batchId, repeatable=True, plan=plan)
            except (ReusedSequence, StaleSequence):
                id_ = query.removeprefix("spark-")
                raise CheckpointWentBack(id_, batchId, self.to.name) from None
            self.to.end(query, batchId)

    @one_line()
    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803, ARG002
        """Drop what was staged."""
        for query in queries_of(messages):
            self.to.abort(messages, query)


@dataclass(frozen=True, slots=True)
class IdempotentWrite(SparkWrite):
    """A write whose tasks write at once: writing a row twice is writing it once.

    Nothing has to be staged or remembered there, whoever dies and is repeated. No row is dropped
    either, whatever its epoch: a checkpoint that went back brings rows once more. ``names`` are
    those under which the rows are written, in the order of their columns.
    """

    write_rows: Callable[[Iterator[pa.RecordBatch]], None]
    names: Sequence[str]

    def stage(
        self,
        batches: Iterator[pa.RecordBatch],
        query: str | None,
        producer: str,  # noqa: ARG002  not needed
        repeatable: bool,  # noqa: ARG002
    ) -> FromTask:
        """Write the rows of a task."""
        self.write_rows(renamed(batches, self.names))
        return FromTask(query, Content())
