"""Topics and their groups for asyncio: the same names over the same operations."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from typing import TYPE_CHECKING

import pyarrow as pa

from headwater.log import node, topics
from headwater.log.aio_stream import AsyncStream
from headwater.log.handles import GroupOptions, Start
from headwater.log.limits import check_count
from headwater.log.types import GroupInfo, Placed, StreamInfo, TopicMessage
from headwater.log.writing import batch_of_entries

if TYPE_CHECKING:
    from headwater.store.aio_store import AsyncStore


class AsyncTopic:
    """A topic for asyncio; Topic says what each method promises."""

    def __init__(self, store: AsyncStore, handle: topics.TopicHandle, member: str) -> None:
        self._store = store
        self._handle = handle
        self._member = member
        self.name = handle.name

    def __repr__(self) -> str:
        return f"AsyncTopic({self.name!r})"

    async def partitions(self) -> int:
        """See Topic.partitions."""
        return len(await self._store.run(self._handle.open()))

    async def partition_of(self, tag: str) -> int:
        """See Topic.partition_of."""
        return topics.partition_of(tag, await self.partitions())

    async def partition(self, place: int) -> AsyncStream:
        """See Topic.partition."""
        streams = await self._store.run(self._handle.open())
        check_count(place, "partition", len(streams) - 1)
        return AsyncStream(self._store, streams[place], self._member)

    async def write(self, tag: str, value: bytes | str, *, backlog: int | None = None) -> Placed:
        """See Topic.write."""
        return await self._store.run(topics.write(self._handle, tag, value, backlog))

    async def write_many(
        self,
        entries: Iterable[tuple[str, bytes | str]],
        *,
        backlog: int | None = None,
        producer: str | None = None,
        sequence: int | None = None,
    ) -> dict[int, range]:
        """See Topic.write_many."""
        batch = batch_of_entries(entries)
        return await self._store.run(
            topics.append(self._handle, batch, backlog, producer, sequence)
        )

    async def append(
        self,
        arrow_batch: pa.RecordBatch | pa.Table,
        *,
        backlog: int | None = None,
        producer: str | None = None,
        sequence: int | None = None,
    ) -> dict[int, range]:
        """See Topic.append."""
        batch = node.from_arrow(arrow_batch)
        return await self._store.run(
            topics.append(self._handle, batch, backlog, producer, sequence)
        )

    async def scan(self) -> AsyncIterator[pa.RecordBatch]:
        """See Topic.scan."""
        for place in range(await self.partitions()):
            stream = await self.partition(place)
            async for batch in stream.scan():
                yield topics.with_partition(batch, place)

    async def info(self) -> list[StreamInfo]:
        """See Topic.info."""
        return await self._store.run(topics.info(self._handle))

    async def delete(self) -> bool:
        """See Topic.delete."""
        return await self._store.run(topics.delete(self._handle))

    def group(
        self,
        name: str,
        start: Start = "first",
        *,
        member: str | None = None,
        max_pending: int | None = None,
        dead_letters: bool | str | None = None,
    ) -> AsyncTopicGroup:
        """See Topic.group."""
        options = GroupOptions(start, max_pending, dead_letters)
        one_server = self._store.kind != "cluster"
        handle = topics.TopicGroupHandle(
            self._handle, name, member or self._member, options, one_server
        )
        return AsyncTopicGroup(self._store, handle)


class AsyncTopicGroup:
    """One member's view of a group over a topic, for asyncio; see TopicGroup."""

    def __init__(self, store: AsyncStore, handle: topics.TopicGroupHandle) -> None:
        self._run = store.run
        self._handle = handle
        self.name = handle.name

    async def read(
        self,
        count: int,
        *,
        block_ms: float | None = None,
        retry_ms: int | None = None,
        expire_ms: int | None = None,
    ) -> list[TopicMessage]:
        """See TopicGroup.read."""
        return await self._run(
            topics.read_group(self._handle, count, block_ms, retry_ms, expire_ms)
        )

    async def ack(self, *messages: TopicMessage | tuple[int, int]) -> int:
        """See TopicGroup.ack."""
        return await self._run(topics.ack(self._handle, messages))

    async def nack(self, *messages: TopicMessage | tuple[int, int], delay_ms: int = 0) -> int:
        """See TopicGroup.nack."""
        return await self._run(topics.nack(self._handle, messages, delay_ms))

    async def extend(self, *messages: TopicMessage | tuple[int, int], retry_ms: int) -> int:
        """See TopicGroup.extend."""
        return await self._run(topics.extend(self._handle, messages, retry_ms))

    async def info(self) -> list[GroupInfo]:
        """See TopicGroup.info."""
        return await self._run(topics.group_info(self._handle))
