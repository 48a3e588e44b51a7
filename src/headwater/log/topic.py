# Generated from aio_topic.py by `make derived`, which renews it: change that file.
"""Topics and their groups for blocking code: thin shells over the operations."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Generic, Unpack

import pyarrow as pa

from headwater.kernel.codecs import D
from headwater.kernel.declaring import across
from headwater.log import grouping, reading, topics
from headwater.log.group import AnyGroup, Group
from headwater.log.keys import check_count
from headwater.log.settling import GivenInTopic, GivenLettersInTopic
from headwater.log.stream import Log, Stream
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
from headwater.store.letters import (
    FittingLetters,
    LettersPerS,
    ListedBytes,
    ListedLetters,
    MovedLetters,
)

if TYPE_CHECKING:
    from headwater.store.store import Store
    from headwater.workers.sources import GroupWorkerOptions
    from headwater.workers.worker import TopicHandler, Worker


_DELETE = "Delete {topic} with {info.length:message} and {info.groups:group}?"


class Topic(Log[Placed, dict[int, range], D], Generic[D]):
    """n streams behind one name; a message goes to the partition of its tag.

    All messages of a tag are in one partition, in order. On a cluster the partitions spread over
    its servers.
    """

    _handle: topics.TopicHandle

    def __init__(self, store: Store, handle: topics.TopicHandle, member: str) -> None:
        super().__init__(store, handle, member)
        self._handle = handle
        self._write = topics.write
        self._append = topics.append
        self.wanted = handle.wanted

    def partitions(self) -> int:
        """Return how many partitions the topic has."""
        return len(self._run(self._handle.open()))

    def partition_of(self, tag: str) -> int:
        """Return the partition of a tag."""
        return topics.partition_of(tag, self.partitions())

    def partition(self, partition: int) -> Stream[D]:
        """Return the stream of one partition."""
        streams = self._run(self._handle.open())
        check_count(partition, "partition", len(streams) - 1)
        return Stream(self._store, streams[partition], self._member)

    def scan(self, *, headers: bool = False) -> Iterator[pa.RecordBatch]:
        """Yield all messages, by partition: partition, and the columns of Stream.scan."""
        for partition in range(self.partitions()):
            stream = self.partition(partition)
            for batch in stream.scan(headers=headers):
                yield topics.with_partition(batch, partition)

    @across(Stream.info)
    def info(self) -> list[StreamInfo]:
        """Return the state of each partition."""
        return self._run(topics.infos(self._handle, reading.info))

    @across(Stream.delete, resp="TPDEL", says="deleted {topic}", asks=_DELETE)
    def delete(self) -> bool:
        """Remove the topic and all its streams for good; returns whether it existed."""
        return self._run(topics.delete(self._handle))

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


class TopicGroup(
    AnyGroup[TopicMessage[D], TopicWithInfo[TopicMessage[D]], GivenInTopic], Generic[D]
):
    """One member's view of a group over all partitions of a topic."""

    _handle: topics.TopicGroupHandle

    def __init__(self, store: Store, handle: topics.TopicGroupHandle) -> None:
        super().__init__(store, handle)
        self._handle = handle
        self._read = topics.read
        self._decoded = handle.topic.decoded
        self._bounded = TopicWithInfo
        self.topic = handle.topic.name

    def __repr__(self) -> str:
        return f"TopicGroup({self.name!r} of {self.topic!r})"

    @across(Group.seek, override=("command line",))
    def seek(self, position: TopicPosition) -> dict[int, int]:
        """Set the position of the group in each partition, and return it: all before is done.

        ``position`` is "first", "last" or a time for all partitions, or a mapping from partitions
        to positions, which leaves the others as they are. May be repeated after a failure.
        """
        return self._run(topics.seek(self._handle, position))

    def info(self) -> list[GroupInfo]:
        """Return the state of the group in each partition."""
        return self._run(topics.infos(self._handle, grouping.info))

    @across(Group.dead)
    def dead(
        self,
        count: ListedLetters = 100,
        *,
        matching: FittingLetters = None,
        max_bytes: ListedBytes = None,
    ) -> list[TopicDeadLetter]:
        """Show the oldest dead letters of all partitions; they stay where they are."""
        return self._run(topics.dead(self._handle, count, matching, max_bytes))

    @across(Group.redrive, result="redriven", says="redriven: {redriven}")
    def redrive(
        self,
        count: MovedLetters = None,
        *,
        letters: GivenLettersInTopic = None,
        matching: FittingLetters = None,
        rate_per_s: LettersPerS = None,
    ) -> dict[int, Redriven]:
        """Redrive dead letters: they are redelivered, and their attempts are counted from 1 again.

        Returns how many by partition; see Group.redrive.
        """
        pace = Pace(rate_per_s)
        return self._run(
            topics.act(
                *(self._handle, "redrive", letters, matching, count, pace),
                lambda moved: Redriven(*moved),
            )
        )

    @across(Group.discard)
    def discard(
        self,
        letters: GivenLettersInTopic = None,
        *,
        count: MovedLetters = None,
        matching: FittingLetters = None,
        rate_per_s: LettersPerS = None,
    ) -> int:
        """Discard dead letters: those named, those that fit, or all. Returns how many.

        See Group.discard.
        """
        pace = Pace(rate_per_s)
        discarded = self._run(
            topics.act(
                *(self._handle, "discard", letters, matching, count, pace),
                lambda moved: moved.done,
            )
        )
        return sum(discarded.values())

    def worker(self, **options: Unpack[GroupWorkerOptions]) -> Callable[[TopicHandler[D]], Worker]:
        """Make a worker of the function below it, which gets one message at a time.

        See Group.worker.
        """
        from headwater.workers.sources import check_options
        from headwater.workers.worker import Worker

        check_options(Worker, options)
        return lambda handler: Worker(self, handler, **options)
