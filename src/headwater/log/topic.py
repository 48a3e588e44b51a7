# Generated from aio_topic.py by `make derived`, which renews it: change that file.
"""Topics and their groups for blocking code: thin shells over the operations."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Generic, Literal, Unpack, overload

import pyarrow as pa

from headwater.kernel.codecs import D
from headwater.kernel.declaring import across
from headwater.kernel.failures import Failure, GivenCause, LetterFilter
from headwater.kernel.headers import GivenHeaders
from headwater.kernel.inputs import AckMs, DelayMs, Duration, Limits, deadline
from headwater.log import grouping, node, topics
from headwater.log.group import Group
from headwater.log.handles import Entry, batch_of_entries
from headwater.log.keys import MAX_LETTERS, MAX_READ, check_count
from headwater.log.settling import GivenInTopic, LettersInTopic
from headwater.log.stream import Stream
from headwater.log.topics import TopicPosition, TopicStart
from headwater.log.types import (
    GroupInfo,
    Placed,
    Redriven,
    StreamInfo,
    TopicDeadLetter,
    TopicMessage,
    TopicWithInfo,
)
from headwater.store.call import Pace

if TYPE_CHECKING:
    from headwater.store.store import Store
    from headwater.workers.sources import GroupWorkerOptions
    from headwater.workers.worker import TopicHandler, Worker


class Topic(Generic[D]):
    """n streams behind one name; a message goes to the partition of its tag.

    All messages of a tag are in one partition, in order. On a cluster the partitions spread over
    its servers.
    """

    def __init__(self, store: Store, handle: topics.TopicHandle, member: str) -> None:
        self._store = store
        self._handle = handle
        self._member = member
        self.name = handle.name
        self.codec = handle.coder
        self.wanted = handle.wanted

    def __repr__(self) -> str:
        return f"Topic({self.name!r})"

    def partitions(self) -> int:
        """Return how many partitions the topic has."""
        return len(self._store.run(self._handle.open()))

    def partition_of(self, tag: str) -> int:
        """Return the partition of a tag."""
        return topics.partition_of(tag, self.partitions())

    def partition(self, place: int) -> Stream[D]:
        """Return the stream of one partition."""
        streams = self._store.run(self._handle.open())
        check_count(place, "partition", len(streams) - 1)
        return Stream(self._store, streams[place], self._member)

    def write(
        self,
        tag: str,
        value: D | str,
        *,
        backlog: int | None = None,
        headers: GivenHeaders | None = None,
        producer: str | None = None,
        sequence: int | None = None,
    ) -> Placed:
        """Append one message to the partition of its tag; see Stream.write."""
        return self._store.run(
            topics.write(
                self._handle,
                tag,
                self._handle.encoded(value),
                backlog,
                headers,
                producer,
                sequence,
            )
        )

    def write_many(
        self,
        entries: Iterable[Entry[D]],
        *,
        backlog: int | None = None,
        producer: str | None = None,
        sequence: int | None = None,
    ) -> dict[int, range]:
        """Append (tag, value) pairs, or entries with headers; returns the offsets by partition.

        Atomic within each partition. With ``producer`` and ``sequence`` the whole may be repeated
        after a failure: what was written is deduplicated.
        """
        encoded = self._handle.encoded_entries(entries)
        batch = batch_of_entries(encoded, carry=producer is None)
        return self._store.run(topics.append(self._handle, batch, backlog, producer, sequence))

    def append(
        self,
        arrow_batch: pa.RecordBatch | pa.Table,
        *,
        backlog: int | None = None,
        producer: str | None = None,
        sequence: int | None = None,
    ) -> dict[int, range]:
        """Append Arrow columns, as Stream.append takes them; see write_many."""
        batch = node.from_arrow(arrow_batch)
        return self._store.run(topics.append(self._handle, batch, backlog, producer, sequence))

    def scan(self, *, headers: bool = False) -> Iterator[pa.RecordBatch]:
        """Yield all messages, by partition: partition, and the columns of Stream.scan."""
        for place in range(self.partitions()):
            stream = self.partition(place)
            for batch in stream.scan(headers=headers):
                yield topics.with_partition(batch, place)

    def info(self) -> list[StreamInfo]:
        """Return the state of each partition."""
        return self._store.run(topics.info(self._handle))

    def delete(self) -> bool:
        """Remove the topic with all its streams; returns whether it existed."""
        return self._store.run(topics.delete(self._handle))

    def group(
        self,
        name: str,
        start: TopicStart = "first",
        *,
        member: str | None = None,
        max_pending: int | None = None,
        dead_letters: bool | str | None = None,
        ordered: bool = False,
    ) -> TopicGroup[D]:
        """Return a member's view of a group over all partitions; see Stream.group.

        ``start`` may also be a mapping from partitions to positions: a new group starts at "first"
        in those that it does not name. ``max_pending`` holds for each partition.
        """
        handle = topics.open_group(
            *(self._handle, name, member or self._member, start, max_pending, dead_letters),
            ordered=ordered,
            one_server=self._store.kind != "cluster",
        )
        return TopicGroup(self._store, handle)


class TopicGroup(Generic[D]):
    """One member's view of a group over all partitions of a topic."""

    def __init__(self, store: Store, handle: topics.TopicGroupHandle) -> None:
        self._store = store
        self._run = store.run
        self._handle = handle
        self.name = handle.name
        self.member = handle.member
        self.topic = handle.topic.name

    def __repr__(self) -> str:
        return f"TopicGroup({self.name!r} of {self.topic!r})"

    @overload
    def read(
        self,
        count: int,
        *,
        block_ms: Duration | float | None = None,
        ack_ms: Duration | None = None,
        retry_ms: Duration | None = None,
        expire_ms: Duration | None = None,
        with_info: Literal[False] = False,
        max_bytes: int | None = None,
    ) -> list[TopicMessage[D]]: ...
    @overload
    def read(
        self,
        count: int,
        *,
        block_ms: Duration | float | None = None,
        ack_ms: Duration | None = None,
        retry_ms: Duration | None = None,
        expire_ms: Duration | None = None,
        with_info: Literal[True],
        max_bytes: int | None = None,
    ) -> TopicWithInfo[TopicMessage[D]]: ...
    def read(
        self,
        count: int,
        *,
        block_ms: Duration | float | None = None,
        ack_ms: Duration | None = None,
        retry_ms: Duration | None = None,
        expire_ms: Duration | None = None,
        with_info: bool = False,
        max_bytes: int | None = None,
    ) -> list[TopicMessage[D]] | TopicWithInfo[TopicMessage[D]]:
        """Take up to ``count`` messages that no other member has; see Group.read.

        ``with_info`` returns also the first and last offset that each partition holds.
        """
        asked = self._handle, count, block_ms, deadline(ack_ms, retry_ms), expire_ms, max_bytes
        if with_info:
            known = self._run(topics.read_with_info(*asked))
            return TopicWithInfo(self._handle.topic.decoded(known.messages), *known[1:])
        found = self._run(topics.read(*asked))
        return self._handle.topic.decoded(found)

    @across(Group.ack)
    def ack(self, *messages: GivenInTopic) -> int:
        """Acknowledge messages: they are done. Returns how many were pending.

        They are given as such, as (partition, offset) pairs, as {partition: offsets}, or as
        iterables of those; offsets are what Group.ack takes.
        """
        return self._run(topics.ack(self._handle, messages))

    @across(Group.nack)
    def nack(self, *messages: GivenInTopic, delay_ms: DelayMs = 0) -> int:
        """Reject messages: they are redelivered after ``delay_ms``. Returns how many."""
        return self._run(topics.nack(self._handle, messages, delay_ms))

    @across(Group.extend)
    def extend(self, *messages: GivenInTopic, ack_ms: AckMs) -> int:
        """Extend the deadline: messages are redelivered ``ack_ms`` from now; returns how many."""
        return self._run(topics.extend(self._handle, messages, ack_ms))

    @across(Group.seek, override=("command line",))
    def seek(self, position: TopicPosition) -> dict[int, int]:
        """Set the position of the group in each partition, and return it: all before is done.

        ``position`` is "first", "last" or a time for all partitions, or a mapping from partitions
        to positions, which leaves the others as they are. May be repeated after a failure.
        """
        return self._run(topics.seek(self._handle, position))

    @across(Group.pause)
    def pause(self) -> bool:
        """Deliver nothing in any partition until it is resumed; returns whether that changed it.

        Members that read get nothing, and blocked ones wait. What expires is still given up.
        """
        return self._run(topics.pause(self._handle, True))

    @across(Group.resume)
    def resume(self) -> bool:
        """Deliver messages again in every partition; returns whether the group was paused."""
        return self._run(topics.pause(self._handle, False))

    def info(self) -> list[GroupInfo]:
        """Return the state of the group in each partition."""
        return self._run(topics.group_info(self._handle))

    def dead(
        self,
        count: int = 100,
        *,
        matching: LetterFilter | None = None,
        max_bytes: int | None = None,
    ) -> list[TopicDeadLetter]:
        """Return the oldest dead letters of all partitions that fit; they stay where they are."""
        return self._run(topics.dead(self._handle, count, matching, max_bytes))

    def redrive(
        self,
        count: int = MAX_READ,
        *,
        letters: LettersInTopic | None = None,
        matching: LetterFilter | None = None,
        rate_per_s: int | None = None,
    ) -> dict[int, Redriven]:
        """Have dead letters redelivered; see Group.redrive. Returns how many by partition."""
        return self._run(topics.redrive(self._handle, letters, matching, count, Pace(rate_per_s)))

    def discard(
        self,
        letters: LettersInTopic | None = None,
        *,
        count: int = MAX_LETTERS,
        matching: LetterFilter | None = None,
        rate_per_s: int | None = None,
    ) -> int:
        """Forget dead letters: these, those that fit, or the oldest; see Group.discard."""
        return self._run(topics.discard(self._handle, letters, matching, count, Pace(rate_per_s)))

    def fail(self, *failures: Failure) -> int:
        """Report failed attempts at messages that were read; see Group.fail."""
        return self._run(topics.fail(self._handle, failures))

    @across(Group.release)
    def release(self, *messages: GivenInTopic) -> int:
        """Return messages untried: they are redelivered at once; the attempt does not count."""
        return self._run(topics.release(self._handle, messages))

    @across(Group.bury)
    def bury(self, *messages: GivenInTopic, error: GivenCause = None) -> int:
        """Give messages up: they become dead letters. Returns how many.

        Without any, those are given up that have expired; see Group.bury.
        """
        return self._run(topics.bury(self._handle, messages, error))

    @across(Group.remove)
    def remove(self) -> bool:
        """Remove the group from every partition; returns whether it existed."""
        return self._run(topics.remove(self._handle))

    @across(Group.limit)
    def limit(self, limits: Limits) -> Limits:
        """Set what the group may deliver of each tag, to all members; returns the limits before.

        Raises InvalidInput for limits in all, which cannot be enforced: partitions may be on
        several servers.
        """
        return self._run(grouping.limit_in_topic(self._handle, limits))

    def keep_order(self, owned: Callable[[], list[tuple[int, int]]] | None = None) -> None:
        """Have the group keep the order of each tag from its next read on; workers call this.

        ``owned`` returns the partitions and offsets of messages that this member has and orders
        itself: then messages after them may be delivered to it, too.
        """
        self._handle.keep_order(owned)

    def worker(self, **options: Unpack[GroupWorkerOptions]) -> Callable[[TopicHandler[D]], Worker]:
        """Make a worker of the function below it, which gets one message at a time.

        See Group.worker.
        """
        from headwater.workers.sources import check_options
        from headwater.workers.worker import Worker

        check_options(Worker, options)
        return lambda handler: Worker(self, handler, **options)
