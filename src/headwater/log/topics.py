"""Topics without I/O: n streams behind one name, each message placed by its tag.

Partition i of topic ``rides`` is the stream ``rides/i``. The partition of a tag is the CRC-32 of
its UTF-8 bytes modulo n, so that any client in any language can compute it. All messages of a tag
are in one partition, in order; no order is promised between partitions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, cast
from zlib import crc32

import pyarrow as pa
import pyarrow.compute as pc
from msgspec.structs import astuple

from headwater.codecs import Coder
from headwater.errors import InvalidInput, PartitionMismatch
from headwater.log import acks, grouping, node, reading, retention, writing
from headwater.log.ack_arguments import InTopic, Span, ranges_by_partition
from headwater.log.handles import GroupHandle, GroupOptions, StreamHandle
from headwater.log.keys import TOPICS, tail_key, topic_key
from headwater.log.limits import MAX_PARTITIONS, check_block, check_count, check_ms, check_name
from headwater.log.types import DecodedTopicMessage, GroupInfo, Placed, StreamInfo, TopicMessage
from headwater.store.call import Call, Clock, Operation, Wait

DEFAULT_PARTITIONS = 8
# On a cluster a blocked reader looks at one partition at a time, for this long.
TURN_MS = 20


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
        self.name = name
        self.wanted = wanted
        self.registered = registered
        self.coder = coder
        self._streams: list[StreamHandle] = []

    def open(self) -> Operation[list[StreamHandle]]:
        """Return the streams; the first to open a topic decides how many there are.

        Raises PartitionMismatch when that is not what is wanted.
        """
        if not self._streams:
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
        """Return what is written of a value."""
        return cast("bytes | str", value) if self.coder is None else self.coder.encode(value)

    def encoded_entries(self, entries: Iterable[tuple[str, Any]]) -> Iterable[tuple[str, Any]]:
        """Return what is written of (tag, value) pairs."""
        if self.coder is None:
            return entries
        encode = self.coder.encode
        return [(tag, encode(value)) for tag, value in entries]

    def decoded(self, messages: list[TopicMessage]) -> list[Any]:
        """Return messages with their values decoded."""
        coder = self.coder
        if coder is None:
            return messages
        made: Callable[..., TopicMessage[Any]] = DecodedTopicMessage
        return [
            made(
                *astuple(message),
                coder.decode(
                    message.value,
                    "message",
                    message.offset,
                    "of topic",
                    self.name,
                    "partition",
                    message.partition,
                ),
            )
            for message in messages
        ]

    def forget(self) -> None:
        """Ask again at the next use."""
        self._streams = []


@dataclass(slots=True)
class TopicGroupHandle:
    """A group over all partitions of a topic, as its operations see it."""

    topic: TopicHandle
    name: str
    member: str
    options: GroupOptions
    one_server: bool
    turn: int = field(default=-1, init=False)
    begun: bool = field(default=False, init=False)
    _members: list[GroupHandle] = field(default_factory=list, init=False)

    def __post_init__(self) -> None:
        check_name(self.name, "group")
        check_name(self.member, "member")

    def open(self) -> Operation[list[GroupHandle]]:
        """Return the group's part in each partition."""
        if not self._members:
            self._members = [
                GroupHandle(stream, self.name, self.member, self.options)
                for stream in (yield from self.topic.open())
            ]
        return self._members


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
    topic: TopicHandle, tag: str, value: bytes | str, backlog: int | None
) -> Operation[Placed]:
    """Append one message to the partition of its tag."""
    if not isinstance(tag, str):
        raise InvalidInput(f"a tag must be a str, not {type(tag).__name__}")
    streams = yield from topic.open()
    place = partition_of(tag, len(streams))
    return Placed(place, (yield from writing.write(streams[place], tag, value, backlog)))


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
    offsets = {}
    places = places_of(batch.column("tag"), len(streams))
    for place, part in spread(batch, places).items():
        stream = streams[place]
        offsets[place] = yield from writing.append(stream, part, backlog, producer, sequence)
    return offsets


def read_group(
    group: TopicGroupHandle,
    count: int,
    block_ms: float | None,
    retry_ms: int | None,
    expire_ms: int | None,
) -> Operation[list[TopicMessage]]:
    """Take up to ``count`` messages from all partitions, beginning with another one each time."""
    check_count(count)
    terms = grouping.Terms.of(retry_ms, expire_ms)
    patience = check_block(block_ms) if count else 0
    deadline = (yield Clock()) + patience
    woken: list[Any] | None = None
    while True:
        messages, news, due_ms = yield from _read_partitions(group, count, terms)
        left = deadline - (yield Clock())
        if messages or left <= 0:
            return messages
        if woken:
            yield from _complete(news, woken)
        wait_ms = min(left, grouping.WAIT_SLICE_MS, retry_ms or left)
        if due_ms >= 0:
            wait_ms = min(wait_ms, due_ms)
        if not group.one_server:
            # Streams in different slots cannot be waited for together: take turns.
            news, wait_ms = news[:1], min(wait_ms, TURN_MS)
        woken = yield _wait_for(news, max(1, int(wait_ms)))


def _complete(news: list[tuple[StreamHandle, int]], woken: list[Any]) -> Operation[None]:
    """Complete writes that stopped half-way: they wake readers who then find nothing."""
    ends = {tail_key(stream.key): (stream, last) for stream, last in news}
    for tail, entries in woken:
        stream, last = ends.get(tail.decode(), (None, 0))
        if stream is not None and int(entries[0][0][2:]) > last:
            yield reading.complete(stream.key)


def _read_partitions(
    group: TopicGroupHandle, count: int, terms: grouping.Terms
) -> Operation[tuple[list[TopicMessage], list[tuple[StreamHandle, int]], int]]:
    members = yield from group.open()
    group.turn = (group.turn + 1) % len(members)
    messages: list[TopicMessage] = []
    news: list[tuple[StreamHandle, int]] = []
    due_ms = -1
    for place in (*range(group.turn, len(members)), *range(group.turn)):
        taken = yield from grouping.read_now(members[place], count - len(messages), terms)
        messages += [
            TopicMessage(place, m.offset, m.tag, m.value, m.time_ms, m.attempt)
            for m in taken.messages
        ]
        news.append((members[place].stream, taken.last))
        if taken.due_ms >= 0:
            due_ms = taken.due_ms if due_ms < 0 else min(due_ms, taken.due_ms)
        if len(messages) >= count and group.begun:
            break
    # The first read has gone to every partition: from now on the group stands in all of them.
    group.begun = True
    return messages, news, due_ms


def _wait_for(news: list[tuple[StreamHandle, int]], ms: int) -> Wait:
    keys = [tail_key(stream.key) for stream, _ in news]
    ids = [f"0-{last}" for _, last in news]
    return Wait(keys[0], ("XREAD", "COUNT", 1, "BLOCK", ms, "STREAMS", *keys, *ids), ms)


def _in_partitions(
    group: TopicGroupHandle,
    messages: Iterable[InTopic],
    act: Callable[[GroupHandle, list[Span]], Operation[int]],
) -> Operation[int]:
    """Do something to the messages of each partition; returns the sum of what that returns."""
    places = ranges_by_partition(messages)
    members = yield from group.open()
    if places and max(places) >= len(members):
        raise InvalidInput(f"partition {max(places)} is not one of 0 to {len(members) - 1}")
    total = 0
    for place, ranges in places.items():
        total += yield from act(members[place], ranges)
    return total


def ack(group: TopicGroupHandle, messages: Iterable[InTopic]) -> Operation[int]:
    """Acknowledge messages; returns how many were pending until now."""
    return (yield from _in_partitions(group, messages, acks.ack))


def nack(group: TopicGroupHandle, messages: Iterable[InTopic], delay_ms: int) -> Operation[int]:
    """Reject messages: they are redelivered after ``delay_ms``. Returns how many were pending."""
    check_ms(delay_ms, "delay_ms")
    return (yield from _in_partitions(group, messages, partial(acks.nack, delay_ms=delay_ms)))


def extend(group: TopicGroupHandle, messages: Iterable[InTopic], retry_ms: int) -> Operation[int]:
    """Put the redelivery of pending messages off to ``retry_ms`` from now; returns how many."""
    check_ms(retry_ms, "retry_ms", 1)
    return (yield from _in_partitions(group, messages, partial(acks.extend, retry_ms=retry_ms)))


def group_info(group: TopicGroupHandle) -> Operation[list[GroupInfo]]:
    """Return where the group stands in each partition."""
    facts: list[GroupInfo] = []
    for member in (yield from group.open()):
        facts += [(yield from grouping.info(member))]
    return facts


def info(topic: TopicHandle) -> Operation[list[StreamInfo]]:
    """Return where each partition stands."""
    facts: list[StreamInfo] = []
    for stream in (yield from topic.open()):
        facts += [(yield from reading.info(stream))]
    return facts


def delete(topic: TopicHandle) -> Operation[bool]:
    """Remove a topic with all its streams; returns whether it existed."""
    for stream in (yield from topic.open()):
        yield from retention.delete(stream)
    topic.forget()
    existed = yield Call("hw_topic_delete", topic.key, repeatable=True)
    yield Call("hw_registry_remove", TOPICS, (topic.name,), repeatable=True)
    return bool(existed)


def with_partition(batch: pa.RecordBatch, place: int) -> pa.RecordBatch:
    """Return a batch with a column for the partition before the others."""
    column = pa.repeat(pa.scalar(place, pa.int32()), batch.num_rows)
    return pa.RecordBatch.from_arrays(
        [column, *batch.columns], names=["partition", *batch.schema.names]
    )
