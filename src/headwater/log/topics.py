"""Topics without I/O: n streams behind one name, each message placed by its tag.

Partition i of topic ``rides`` is the stream ``rides/i``. The partition of a tag is the CRC-32 of
its UTF-8 bytes modulo n, so that any client in any language can compute it. All messages of a tag
are in one partition, in order; no order is promised between partitions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeVar, cast
from zlib import crc32

import pyarrow as pa

from headwater.codecs import Coder
from headwater.errors import HeadwaterError, InvalidInput, PartitionMismatch
from headwater.headers import GivenHeaders
from headwater.inputs import refuse_own_name
from headwater.log import arrow_compute as pc
from headwater.log import node, reading, retention, writing
from headwater.log.entries import encoded_entries
from headwater.log.handles import StreamHandle
from headwater.log.keys import TOPICS, topic_key
from headwater.log.limits import MAX_NAME_BYTES, MAX_PARTITIONS, check_count
from headwater.log.types import (
    DecodedTopicMessage,
    HeadedTopicMessage,
    Message,
    Placed,
    StreamInfo,
    TopicMessage,
)
from headwater.store.call import Call, Operation
from headwater.store.many import together

T = TypeVar("T")
R = TypeVar("R")

DEFAULT_PARTITIONS = 8
PARTITION = pa.field("partition", pa.int32(), nullable=False)


class TopicHandle:
    """A topic as its operations see it; its partitions are agreed on with the first use."""

    def __init__(
        self,
        name: str,
        wanted: int | None,
        registered: set[str],
        coder: Coder[Any] | None = None,
    ) -> None:
        if wanted is not None:
            check_count(wanted, "partitions", MAX_PARTITIONS)
            if not wanted:
                raise InvalidInput("a topic needs at least 1 partition")
        self.key = topic_key(name)
        # Before the topic exists: its partitions are streams, which have longer names.
        count = wanted or DEFAULT_PARTITIONS
        size, most = len(name.encode()), MAX_NAME_BYTES - len(f"/{count - 1}")
        if size > most:
            raise InvalidInput(
                f"the name of a topic of {count} partitions must have 1 to {most} bytes, "
                f"not {size}; choose another"
            )
        self.name = name
        self.wanted = wanted
        self.registered = registered
        self.coder = coder
        self._streams: list[StreamHandle] = []

    def open(self) -> Operation[list[StreamHandle]]:
        """Return the streams; the first to open a topic decides how many there are.

        Raises PartitionMismatch when another number is wanted.
        """
        if not self._streams:
            refuse_own_name(self.name, "topic")
            args = (self.wanted or 0, DEFAULT_PARTITIONS)
            has = yield Call("hw_topic_open", self.key, args, repeatable=True)
            if self.wanted is not None and self.wanted != has:
                raise PartitionMismatch(self.name, self.wanted, has)
            yield Call("hw_registry_add", TOPICS, (self.name,), repeatable=True)
            self._streams = [
                StreamHandle(f"{self.name}/{place}", self.registered, self.coder)
                for place in range(has)
            ]
        return self._streams

    def encoded(self, value: Any) -> bytes | str:
        """Return a value as it is written."""
        return cast("bytes | str", value) if self.coder is None else self.coder.encode(value)

    def encoded_entries(self, entries: Iterable[Any]) -> Iterable[Any]:
        """Return entries as they are written; see entries.py for their forms."""
        return entries if self.coder is None else encoded_entries(self.coder, entries)

    def decoded(self, messages: list[TopicMessage]) -> list[Any]:
        """Return messages with their values decoded."""
        coder = self.coder
        if coder is None:
            return messages
        made: Callable[..., TopicMessage[Any]] = DecodedTopicMessage
        return [
            made(
                message.partition,
                message.offset,
                message.tag,
                message.value,
                message.time_ms,
                message.attempt,
                coder.decode(
                    message.value,
                    "message",
                    message.offset,
                    "of topic",
                    self.name,
                    "partition",
                    message.partition,
                ),
                message.headers,
            )
            for message in messages
        ]

    def forget(self) -> None:
        """Ask again at the next use."""
        self._streams = []


def in_each(
    parts: Iterable[tuple[int, T]], act: Callable[[T], Operation[R]]
) -> Operation[dict[int, R]]:
    """Do something in one partition after the other; returns what that returned in each.

    An error says in which partition it happened, and what was done in others before.
    """
    done: dict[int, R] = {}
    for place, part in parts:
        try:
            done[place] = yield from act(part)
        except HeadwaterError as error:
            error.partition, error.partitions_done = place, done
            raise
    return done


def in_partition(place: int, messages: Iterable[Message]) -> list[TopicMessage]:
    """Return messages of the stream of a partition as messages of the topic."""
    return [
        TopicMessage(place, m.offset, m.tag, m.value, m.time_ms, m.attempt)
        if type(m) is Message
        else HeadedTopicMessage(place, m.offset, m.tag, m.value, m.time_ms, m.attempt, m.headers)
        for m in messages
    ]


def check_partition(place: int, partitions: int) -> None:
    """Refuse a partition that is not there."""
    if isinstance(place, bool) or not isinstance(place, int) or not 0 <= place < partitions:
        raise InvalidInput(f"partition {place!r} is not one of 0 to {partitions - 1}")


def partition_of(tag: str, partitions: int) -> int:
    """Return the partition of a tag."""
    return crc32(tag.encode()) % partitions


def places_of(tags: pa.Array, partitions: int) -> pa.Array:
    """Return the partition of each tag; each distinct one is hashed once."""
    encoded = tags.dictionary_encode()
    distinct = encoded.dictionary.to_pylist()
    places = pa.array([partition_of(tag, partitions) for tag in distinct], pa.int32())
    return places.take(encoded.indices)


def spread(batch: pa.RecordBatch, places: pa.Array) -> dict[int, pa.RecordBatch]:
    """Return the rows of each partition, in their order."""
    return {
        place: batch.filter(pc.equal(places, place))
        for place in sorted(places.unique().to_pylist())
    }


def write(
    topic: TopicHandle,
    tag: str,
    value: bytes | str,
    backlog: int | None,
    headers: GivenHeaders | None = None,
    producer: str | None = None,
    sequence: int | None = None,
) -> Operation[Placed]:
    """Append one message to the partition of its tag."""
    if not isinstance(tag, str):
        raise InvalidInput(f"a tag must be a str, not {type(tag).__name__}")
    streams = yield from topic.open()
    place = partition_of(tag, len(streams))
    offset = yield from writing.write(
        streams[place], tag, value, backlog, headers, producer, sequence
    )
    return Placed(place, offset)


def append(
    topic: TopicHandle,
    batch: pa.RecordBatch,
    backlog: int | None,
    producer: str | None,
    sequence: int | None,
) -> Operation[dict[int, range]]:
    """Append a batch, each part to its partition; atomic within each partition."""
    node.check_batch(batch)
    streams = yield from topic.open()
    places = places_of(batch.column("tag"), len(streams))
    parts = [(place, (streams[place], part)) for place, part in spread(batch, places).items()]
    return (
        yield from in_each(parts, lambda part: writing.append(*part, backlog, producer, sequence))
    )


def info(topic: TopicHandle) -> Operation[list[StreamInfo]]:
    """Return the state of each partition."""
    return (yield from together(map(reading.info, (yield from topic.open()))))


def delete(topic: TopicHandle) -> Operation[bool]:
    """Remove a topic with all its streams; returns whether it existed."""
    yield from in_each(enumerate((yield from topic.open())), retention.delete)
    topic.forget()
    existed = yield Call("hw_topic_delete", topic.key, repeatable=True)
    yield Call("hw_registry_remove", TOPICS, (topic.name,), repeatable=True)
    return bool(existed)


def with_partition(batch: pa.RecordBatch, place: int) -> pa.RecordBatch:
    """Return a batch with a column for the partition before the others."""
    column = pa.repeat(pa.scalar(place, pa.int32()), batch.num_rows)
    return batch.add_column(0, PARTITION, column)
