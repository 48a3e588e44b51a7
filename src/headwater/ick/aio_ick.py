"""Ick and IckChannel for asyncio: the same names over the same operations."""

from __future__ import annotations

import datetime as dt
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

from headwater.ick import channels, single
from headwater.ick.channels import ChannelHandle
from headwater.ick.keys import Member, Scores, next_scan
from headwater.ick.single import IckHandle
from headwater.ick.types import Added, Batch, ChannelStats, Layout, Lease, Listed
from headwater.kernel.inputs import Duration, deadline

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
        """Mark members as dirty; returns how many were new, and how many scores fell."""
        return await self._run(single.add(self._handle, scores))

    async def reserve(
        self, n: int, backwash: bool = False, *, max_bytes: int | None = None
    ) -> list[tuple[Member, float]]:
        """Fill the consumer set up to ``n`` members, and return it; see Ick.reserve."""
        return (await self._run(single.exchange(self._handle, n, (), backwash, max_bytes)))[1]

    async def commit(self, *members: Member) -> int:
        """Mark members as clean; returns how many were in the consumer set."""
        return (await self._run(single.exchange(self._handle, 0, members, False)))[0]

    async def exchange(
        self, n: int, *members: Member, backwash: bool = False, max_bytes: int | None = None
    ) -> list[tuple[Member, float]]:
        """Commit members, then reserve, in one call; see Ick.exchange."""
        return (await self._run(single.exchange(self._handle, n, members, backwash, max_bytes)))[1]

    async def stats(self) -> dict[str, Any] | None:
        """Return how large the sets are and between which scores; None without an Ick."""
        return await self._run(single.stats(self._handle))

    async def scan(self) -> AsyncIterator[Listed]:
        """Yield all members, in no order, without changing anything; see Ick.scan."""
        for place in single.PLACES:
            cursor, count = "", next_scan()
            while cursor != "0":
                page, cursor = await self._run(
                    single.scan_page(self._handle, place, cursor or "0", count)
                )
                count = next_scan(page)
                for found in page:
                    yield found

    async def delete(self) -> int:
        """Remove the Ick; returns how many keys there were."""
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
        """Mark members as dirty, from a time on if one is given; see IckChannel.add."""
        return await self._run(channels.add(self._handle, scores, not_before))

    async def reserve(self, n: int, *, max_bytes: int | None = None) -> Batch:
        """Lease a shard that has members, and reserve up to ``n`` of them."""
        return await self._run(channels.reserve(self._handle, n, max_bytes))

    async def commit(self, batch: Batch, *members: Member) -> int:
        """Mark members of a batch, or all of it, as clean; returns how many."""
        return await self._run(channels.commit(self._handle, batch, members))

    async def release(self, batch: Batch, *members: Member, delay_ms: Duration = 0) -> int:
        """Return members of a batch, or all of it, unprocessed; returns how many."""
        return await self._run(channels.release(self._handle, batch, members, delay_ms))

    async def renew(
        self, batch: Batch, *, ack_ms: Duration | None = None, lease_ms: Duration | None = None
    ) -> int:
        """Renew the lease of a batch; returns until when, in ms since 1970."""
        held_ms = deadline(ack_ms, lease_ms, "lease_ms")
        return await self._run(channels.renew(self._handle, batch, held_ms))

    async def consumers(self) -> list[Lease]:
        """Return which consumer holds which shard until when."""
        return await self._run(channels.consumers(self._handle))

    async def stats(self) -> ChannelStats | None:
        """Return how many members are in each state; None when there is no channel."""
        return await self._run(channels.stats(self._handle))

    async def scan(self, shard: int | None = None) -> AsyncIterator[Listed]:
        """Yield all members, or those of a shard, in no order; see IckChannel.scan."""
        for epoch, number, place in await self._run(channels.parts(self._handle, shard)):
            cursor, count = "", next_scan()
            while cursor != "0":
                page, cursor = await self._run(
                    channels.scan_page(self._handle, epoch, number, place, cursor or "0", count)
                )
                count = next_scan(page)
                for found in page:
                    yield found

    async def reshard(self, shards: int) -> Layout:
        """Change the number of shards while in use; see IckChannel.reshard."""
        return await self._run(channels.reshard(self._handle, shards))

    async def delete(self) -> bool:
        """Remove the channel with all its members; returns whether there was one."""
        return await self._run(channels.delete(self._handle))
