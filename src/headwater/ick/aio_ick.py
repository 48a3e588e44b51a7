"""Ick and IckChannel for asyncio: the same names over the same operations."""

from __future__ import annotations

import datetime as dt
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

from headwater.ick import channels, layout, single
from headwater.ick.layout import ChannelHandle
from headwater.ick.limits import Member, Scores
from headwater.ick.single import IckHandle
from headwater.ick.types import Added, Batch, ChannelStats, Layout, Lease, Listed

if TYPE_CHECKING:
    from headwater.store.aio_store import AsyncStore


class AsyncIck:
    """An Ick for asyncio; Ick says what each method promises."""

    def __init__(self, store: AsyncStore, handle: IckHandle) -> None:
        self._run = store.run
        self._handle = handle
        self.key = handle.key

    def __repr__(self) -> str:
        return f"AsyncIck({self.key!r})"

    async def add(self, scores: Scores) -> Added:
        """See Ick.add."""
        return await self._run(single.add(self._handle, scores))

    async def reserve(self, n: int, backwash: bool = False) -> list[tuple[Member, float]]:
        """See Ick.reserve."""
        return (await self._run(single.exchange(self._handle, n, (), backwash)))[1]

    async def commit(self, *members: Member) -> int:
        """See Ick.commit."""
        return (await self._run(single.exchange(self._handle, 0, members, False)))[0]

    async def exchange(
        self, n: int, *members: Member, backwash: bool = False
    ) -> list[tuple[Member, float]]:
        """See Ick.exchange."""
        return (await self._run(single.exchange(self._handle, n, members, backwash)))[1]

    async def stats(self) -> dict[str, Any] | None:
        """See Ick.stats."""
        return await self._run(single.stats(self._handle))

    async def scan(self) -> AsyncIterator[Listed]:
        """See Ick.scan."""
        for place in single.PLACES:
            cursor = ""
            while cursor != "0":
                page, cursor = await self._run(single.scan_page(self._handle, place, cursor or "0"))
                for found in page:
                    yield found

    async def delete(self) -> int:
        """See Ick.delete."""
        return await self._run(single.delete(self._handle))


class AsyncIckChannel:
    """A channel for asyncio; IckChannel says what each method promises."""

    def __init__(self, store: AsyncStore, handle: ChannelHandle) -> None:
        self._run = store.run
        self._handle = handle
        self.name = handle.name
        self.consumer = handle.consumer

    def __repr__(self) -> str:
        return f"AsyncIckChannel({self.name!r})"

    async def add(self, scores: Scores, *, not_before: int | dt.datetime | None = None) -> Added:
        """See IckChannel.add."""
        return await self._run(channels.add(self._handle, scores, not_before))

    async def reserve(self, n: int) -> Batch:
        """See IckChannel.reserve."""
        return await self._run(channels.reserve(self._handle, n))

    async def commit(self, batch: Batch, *members: Member) -> int:
        """See IckChannel.commit."""
        return await self._run(channels.commit(self._handle, batch, members))

    async def release(self, batch: Batch, *members: Member, delay_ms: int = 0) -> int:
        """See IckChannel.release."""
        return await self._run(channels.release(self._handle, batch, members, delay_ms))

    async def renew(self, batch: Batch, *, lease_ms: int | None = None) -> int:
        """See IckChannel.renew."""
        return await self._run(channels.renew(self._handle, batch, lease_ms))

    async def consumers(self) -> list[Lease]:
        """See IckChannel.consumers."""
        return await self._run(channels.consumers(self._handle))

    async def stats(self) -> ChannelStats | None:
        """See IckChannel.stats."""
        return await self._run(channels.stats(self._handle))

    async def scan(self, shard: int | None = None) -> AsyncIterator[Listed]:
        """See IckChannel.scan."""
        for epoch, number, place in await self._run(channels.parts(self._handle, shard)):
            cursor = ""
            while cursor != "0":
                page, cursor = await self._run(
                    channels.scan_page(self._handle, epoch, number, place, cursor or "0")
                )
                for found in page:
                    yield found

    async def reshard(self, shards: int) -> Layout:
        """See IckChannel.reshard."""
        return await self._run(layout.reshard(self._handle, shards))

    async def delete(self) -> bool:
        """See IckChannel.delete."""
        return await self._run(layout.delete(self._handle))
