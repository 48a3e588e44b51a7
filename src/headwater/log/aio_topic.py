"""Topics and their groups for asyncio: thin shells over the operations."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING, Generic, Unpack

import pyarrow as pa

from headwater.kernel.codecs import D
from headwater.kernel.declaring import across
from headwater.log import grouping, reading, topics
from headwater.log.aio_group import AsyncAnyGroup, AsyncGroup
from headwater.log.aio_stream import AsyncLog, AsyncStream
from headwater.log.keys import check_count
from headwater.log.settling import GivenInTopic, GivenLettersInTopic
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
    from headwater.store.aio_store import AsyncStore
    from headwater.workers.aio_worker import AsyncTopicHandler, AsyncWorker
    from headwater.workers.sources import GroupWorkerOptions


_DELETE = "Delete {topic} with {info.length:message} and {info.groups:group}?"


class AsyncTopic(AsyncLog[Placed, dict[int, range], D], Generic[D]):
    """n streams behind one name; a message goes to the partition of its tag.

    All messages of a tag are in one partition, in order. On a cluster the partitions spread over
    its servers.
    """

    _handle: topics.TopicHandle

    def __init__(self, store: AsyncStore, handle: topics.TopicHandle, member: str) -> None:
        super().__init__(store, handle, member)
        self._handle = handle
        self._write = topics.write
        self._append = topics.append
        self.wanted = handle.wanted

    async def partitions(self) -> int:
        """Return how many partitions the topic has."""
        return len(await self._run(self._handle.open()))

    async def partition_of(self, tag: str) -> int:
        """Return the partition of a tag."""
        return topics.partition_of(tag, await self.partitions())

    async def partition(self, partition: int) -> AsyncStream[D]:
        """Return the stream of one partition."""
        streams = await self._run(self._handle.open())
        check_count(partition, "partition", len(streams) - 1)
        return AsyncStream(self._store, streams[partition], self._member)

    async def scan(self, *, headers: bool = False) -> AsyncIterator[pa.RecordBatch]:
        """Yield all messages, by partition: partition, and the columns of AsyncStream.scan."""
        for partition in range(await self.partitions()):
            stream = await self.partition(partition)
            async for batch in stream.scan(headers=headers):
                yield topics.with_partition(batch, partition)

    @across(AsyncStream.info)
    async def info(self) -> list[StreamInfo]:
        """Return the state of each partition."""
        return await self._run(topics.infos(self._handle, reading.info))

    @across(AsyncStream.delete, resp="TPDEL", says="deleted {topic}", asks=_DELETE)
    async def delete(self) -> bool:
        """Remove the topic and all its streams for good; returns whether it existed."""
        return await self._run(topics.delete(self._handle))

    def group(
        self,
        name: str,
        start: TopicStart = "first",
        *,
        member: str | None = None,
        max_pending: int | None = None,
        dead_letters: bool | str | None = None,
        ordered: bool = False,
    ) -> AsyncTopicGroup[D]:
        """Return a member's view of a group over all partitions; see AsyncStream.group.

        ``start`` may also be a mapping from partitions to positions: a new group starts at "first"
        in those that it does not name. ``max_pending`` holds for each partition.
        """
        handle = topics.open_group(
            *(self._handle, name, member or self._member, start, max_pending, dead_letters),
            ordered=ordered,
            one_server=self._store.kind != "cluster",
        )
        return AsyncTopicGroup(self._store, handle)


class AsyncTopicGroup(
    AsyncAnyGroup[TopicMessage[D], TopicWithInfo[TopicMessage[D]], GivenInTopic], Generic[D]
):
    """One member's view of a group over all partitions of a topic."""

    _handle: topics.TopicGroupHandle

    def __init__(self, store: AsyncStore, handle: topics.TopicGroupHandle) -> None:
        super().__init__(store, handle)
        self._handle = handle
        self._read = topics.read
        self._decoded = handle.topic.decoded
        self._bounded = TopicWithInfo
        self.topic = handle.topic.name

    def __repr__(self) -> str:
        return f"AsyncTopicGroup({self.name!r} of {self.topic!r})"

    @across(AsyncGroup.seek, override=("command line",))
    async def seek(self, position: TopicPosition) -> dict[int, int]:
        """Set the position of the group in each partition, and return it: all before is done.

        ``position`` is "first", "last" or a time for all partitions, or a mapping from partitions
        to positions, which leaves the others as they are. May be repeated after a failure.
        """
        return await self._run(topics.seek(self._handle, position))

    async def info(self) -> list[GroupInfo]:
        """Return the state of the group in each partition."""
        return await self._run(topics.infos(self._handle, grouping.info))

    @across(AsyncGroup.dead)
    async def dead(
        self,
        count: ListedLetters = 100,
        *,
        matching: FittingLetters = None,
        max_bytes: ListedBytes = None,
    ) -> list[TopicDeadLetter]:
        """Show the oldest dead letters of all partitions; they stay where they are."""
        return await self._run(topics.dead(self._handle, count, matching, max_bytes))

    @across(AsyncGroup.redrive, result="redriven", says="redriven: {redriven}")
    async def redrive(
        self,
        count: MovedLetters = None,
        *,
        letters: GivenLettersInTopic = None,
        matching: FittingLetters = None,
        rate_per_s: LettersPerS = None,
    ) -> dict[int, Redriven]:
        """Redrive dead letters: they are redelivered, and their attempts are counted from 1 again.

        Returns how many by partition; see AsyncGroup.redrive.
        """
        pace = Pace(rate_per_s)
        return await self._run(
            topics.act(
                *(self._handle, "redrive", letters, matching, count, pace),
                lambda moved: Redriven(*moved),
            )
        )

    @across(AsyncGroup.discard)
    async def discard(
        self,
        letters: GivenLettersInTopic = None,
        *,
        count: MovedLetters = None,
        matching: FittingLetters = None,
        rate_per_s: LettersPerS = None,
    ) -> int:
        """Discard dead letters: those named, those that fit, or all. Returns how many.

        See AsyncGroup.discard.
        """
        pace = Pace(rate_per_s)
        discarded = await self._run(
            topics.act(
                *(self._handle, "discard", letters, matching, count, pace),
                lambda moved: moved.done,
            )
        )
        return sum(discarded.values())

    def worker(
        self, **options: Unpack[GroupWorkerOptions]
    ) -> Callable[[AsyncTopicHandler[D]], AsyncWorker]:
        """Make a worker of the function below it, which gets one message at a time.

        See AsyncGroup.worker.
        """
        from headwater.workers.aio_worker import AsyncWorker
        from headwater.workers.sources import check_options

        check_options(AsyncWorker, options)
        return lambda handler: AsyncWorker(self, handler, **options)
