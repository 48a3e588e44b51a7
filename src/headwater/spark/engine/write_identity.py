"""What identifies a write, so that a repeat of it is deduplicated: a producer and a sequence.

A batch write gets them by the options ``producer`` and ``sequence``. A streaming query is its own
producer, by the id in its checkpoint, and its epochs are the sequence. A repeat has the content of
the first time (see ``contents``): anything else under the same sequence is refused.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from pyspark import TaskContext
from pyspark.sql.datasource import WriterCommitMessage

from headwater.errors import (
    CheckpointWentBack,
    InvalidInput,
    ReusedSequence,
    SparkFailed,
    StaleSequence,
)
from headwater.kernel.inputs import check_name
from headwater.spark.engine.contents import Content
from headwater.spark.engine.options import SourceOptions

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


@contextmanager
def writing_epoch(query: str, epoch: int, target: str) -> Iterator[None]:
    """Raise CheckpointWentBack where an epoch was written before, with other rows or long ago."""
    try:
        yield
    except (ReusedSequence, StaleSequence):
        raise CheckpointWentBack(query.removeprefix("spark-"), epoch, target) from None


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
