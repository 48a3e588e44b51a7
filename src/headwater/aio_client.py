"""What ``headwater.aio.connect`` returns: a connected store for asyncio."""

from __future__ import annotations

from collections.abc import Generator
from types import TracebackType
from typing import Any

from headwater.client import member_name
from headwater.ick.aio_ick import AsyncIck, AsyncIckChannel
from headwater.ick.layout import LEASE_MS, ChannelHandle, finish_change, list_channels
from headwater.ick.single import IckHandle
from headwater.ick.types import KeptChannel
from headwater.log import housekeeping
from headwater.log.aio_stream import AsyncStream
from headwater.log.aio_topic import AsyncTopic
from headwater.log.handles import StreamHandle, list_streams, list_topics
from headwater.log.housekeeping import Kept
from headwater.log.topics import TopicHandle
from headwater.queue import upkeep
from headwater.queue.aio_queue import AsyncQueue
from headwater.queue.handles import QueueHandle, list_queues
from headwater.queue.types import KeptQueue
from headwater.store.aio_store import AsyncStore


class AsyncHeadwater:
    """A connected store for asyncio; see Headwater."""

    def __init__(self, store: AsyncStore) -> None:
        self.store = store
        self._registered: set[str] = set()
        self._member = member_name(store.token())

    def __repr__(self) -> str:
        return f"AsyncHeadwater({self.store.where!r})"

    async def __aenter__(self) -> AsyncHeadwater:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    def stream(self, name: str) -> AsyncStream:
        """See Headwater.stream."""
        return AsyncStream(self.store, StreamHandle(name, self._registered), self._member)

    def topic(self, name: str, partitions: int | None = None) -> AsyncTopic:
        """See Headwater.topic; the partitions are agreed on with the topic's first use."""
        handle = TopicHandle(name, partitions, self._registered)
        return AsyncTopic(self.store, handle, self._member)

    def queue(self, name: str) -> AsyncQueue:
        """See Headwater.queue."""
        return AsyncQueue(self.store, QueueHandle(name, self._registered, self._member))

    def ick(self, name: str) -> AsyncIck:
        """See Headwater.ick."""
        return AsyncIck(self.store, IckHandle(name, self.store.kind != "cluster"))

    def ick_channel(
        self,
        name: str,
        shards: int | None = None,
        *,
        consumer: str | None = None,
        lease_ms: int = LEASE_MS,
    ) -> AsyncIckChannel:
        """See Headwater.ick_channel."""
        who = consumer or f"{self._member}.{self.store.token()}"
        handle = ChannelHandle(name, shards, who, lease_ms, self._registered)
        return AsyncIckChannel(self.store, handle)

    async def ick_channels(self) -> list[str]:
        """See Headwater.ick_channels."""
        return await self.store.run(list_channels())

    async def streams(self) -> list[str]:
        """See Headwater.streams."""
        return await self.store.run(list_streams())

    async def topics(self) -> list[str]:
        """See Headwater.topics."""
        return await self.store.run(list_topics())

    async def queues(self) -> list[str]:
        """See Headwater.queues."""
        return await self.store.run(list_queues())

    async def keep(self, *streams: str) -> list[Kept]:
        """See Headwater.keep."""
        if not streams:
            await self.keep_queues()
            await self.keep_channels()
        return [
            await self.store.run(housekeeping.keep(StreamHandle(name, self._registered)))
            for name in streams or await self.streams()
        ]

    async def keep_channels(self, *channels: str) -> list[KeptChannel]:
        """See Headwater.keep_channels."""
        found = []
        for name in channels or await self.ick_channels():
            handle = ChannelHandle(name, None, self._member, LEASE_MS, self._registered)
            layout = await self.store.run(finish_change(handle))
            if layout is not None:
                found.append(KeptChannel(name, layout.settled, layout.leases))
        return found

    async def keep_queues(self, *queues: str) -> list[KeptQueue]:
        """See Headwater.keep_queues."""
        return [
            await self.store.run(upkeep.keep(QueueHandle(name, self._registered, self._member)))
            for name in queues or await self.queues()
        ]

    async def close(self) -> None:
        """See Headwater.close."""
        await self.store.close()


class _Connecting:
    """A connection in the making: await it, or use it in ``async with``."""

    def __init__(self, url: str | None) -> None:
        self._url = url
        self._made: AsyncHeadwater | None = None

    async def _connect(self) -> AsyncHeadwater:
        return AsyncHeadwater(await AsyncStore.open(self._url))

    def __await__(self) -> Generator[Any, None, AsyncHeadwater]:
        return self._connect().__await__()

    async def __aenter__(self) -> AsyncHeadwater:
        self._made = await self._connect()
        return self._made

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._made is not None:
            await self._made.close()


def connect(url: str | None = None) -> _Connecting:
    """Connect as headwater.connect does; await the answer, or use it in ``async with``."""
    return _Connecting(url)
