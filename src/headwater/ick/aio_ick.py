"""Ick and IckChannel for asyncio: thin shells over the operations."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any, Final

from headwater.ick import channels, single
from headwater.ick.channels import ChannelHandle
from headwater.ick.keys import GivenMember, GivenScores, Member, NotBefore, Shards, next_scan
from headwater.ick.single import IckHandle
from headwater.ick.types import Added, Batch, ChannelStats, Layout, Lease, Listed
from headwater.kernel.declaring import Scope, operation
from headwater.kernel.inputs import AckMs, DelayMs

if TYPE_CHECKING:
    from headwater.store.aio_store import AsyncStore

# A batch is given back as a line, a document or a lease: each door has its own form of it.
_BY_HAND: Final = ("command line", "HTTP", "RESP")


class AsyncIck:
    """A write-folding dirty list for one consumer, shared with redis-ick 0.1.4 by its keys.

    Members are str or bytes; they come back as str where they are UTF-8, else as bytes. Methods
    take any number of them: 1000 in one atomic round trip, more in steps of these. All raise
    NotAnIck when something else is stored under one of the keys.
    """

    def __init__(self, store: AsyncStore, handle: IckHandle) -> None:
        self._run = store.run
        self._handle = handle
        self.key = handle.key

    def __repr__(self) -> str:
        return f"AsyncIck({self.key!r})"

    @operation(Scope.WRITE, says="{new} new, {lowered} lowered", override=("command line",))
    async def add(self, scores: GivenScores) -> Added:
        """Mark members as dirty; returns how many were new, and how many scores fell.

        A member that is in the producer set takes the lower score; one that is reserved becomes
        dirty again. The Ick exists afterwards, even when no member was given.
        """
        return await self._run(single.add(self._handle, scores))

    async def reserve(
        self, n: int, backwash: bool = False, *, max_bytes: int | None = None
    ) -> list[tuple[Member, float]]:
        """Fill the consumer set up to ``n`` from the lowest of the producer set, and return it.

        Those are the n lowest, ties by member; each reserve returns them again until they are
        committed. With ``backwash`` the consumer set is first folded back, so that they are the
        lowest of all. Once they have ``max_bytes`` no more are returned; the others are reserved,
        and are returned when these are committed.
        """
        return (await self._run(single.exchange(self._handle, n, (), backwash, max_bytes)))[1]

    @operation(Scope.WRITE, "committed", says="committed {committed:member}")
    async def commit(self, *members: GivenMember) -> int:
        """Mark reserved members as clean: they are removed. Returns how many were reserved."""
        return (await self._run(single.exchange(self._handle, 0, members, False)))[0]

    async def exchange(
        self, n: int, *members: Member, backwash: bool = False, max_bytes: int | None = None
    ) -> list[tuple[Member, float]]:
        """Commit members, then reserve, in one call.

        Raises OutcomeUnknown when the connection broke in between; then reserve again.
        """
        return (await self._run(single.exchange(self._handle, n, members, backwash, max_bytes)))[1]

    async def stats(self) -> dict[str, Any] | None:
        """Return how large the sets are and between which scores; None without an Ick. O(1)."""
        return await self._run(single.stats(self._handle))

    async def scan(self) -> AsyncIterator[Listed]:
        """Yield all members, in no order, in pages of about 1000; changes nothing.

        What stays where it is comes at least once; what moves meanwhile may come twice or not.
        """
        for place in single.PLACES:
            cursor, count = "", next_scan()
            while cursor != "0":
                page, cursor = await self._run(
                    single.scan_page(self._handle, place, cursor or "0", count)
                )
                count = next_scan(page)
                for found in page:
                    yield found

    @operation(
        Scope.ADMIN,
        "deleted",
        says="deleted {key}",
        asks="Delete {key} with its {info.total_size} members?",
        must=True,
        http="DELETE",
        resp="ICKDEL",
    )
    async def delete(self) -> int:
        """Remove an Ick with all its members; returns how many keys there were."""
        return await self._run(single.delete(self._handle))


class AsyncIckChannel:
    """A dirty list for any number of consumers: shards behind one name, each leased to one.

    Each object is a consumer of its own. Members are str or bytes; they come back as str where they
    are UTF-8, else as bytes.
    """

    def __init__(self, store: AsyncStore, handle: ChannelHandle) -> None:
        self._run = store.run
        self._handle = handle
        self.name = handle.name
        self.consumer = handle.consumer

    def __repr__(self) -> str:
        return f"AsyncIckChannel({self.name!r})"

    @operation(Scope.WRITE, says="{new} new, {lowered} lowered", override=("command line",))
    async def add(self, scores: GivenScores, *, not_before: NotBefore = None) -> Added:
        """Mark members as dirty; returns how many were new, and how many scores fell.

        A member that is dirty already keeps the lower score. Members are not reserved before
        ``not_before`` (ms since 1970, or a datetime with its zone); the earlier of two times
        applies. A member that is reserved becomes dirty again, whatever its consumer does. A repeat
        does nothing more. Atomic within each shard; one round trip for each.
        """
        return await self._run(channels.add(self._handle, scores, not_before))

    async def reserve(self, n: int, *, max_bytes: int | None = None) -> Batch:
        """Lease a shard that has members, and reserve up to ``n`` of them.

        This consumer gets them again, in turn, until they are committed or released; when the lease
        runs out they go to another consumer. The lowest scores come first, but one place in eight
        goes to the member that has waited longest. Falsy when there is nothing. Once they have
        ``max_bytes`` no more are returned; this consumer gets the others when these are committed.
        One round trip for each shard that is looked at.
        """
        return await self._run(channels.reserve(self._handle, n, max_bytes))

    @operation(Scope.WRITE, "committed", says="committed {committed}", override=_BY_HAND)
    async def commit(self, batch: Batch, *members: Member) -> int:
        """Mark members of a batch, or all of it, as clean; returns how many.

        A member that became dirty after it was reserved stays dirty. Raises LeaseLost, and changes
        nothing, when another consumer has taken the shard over. The lease continues for the
        remaining members.
        """
        return await self._run(channels.commit(self._handle, batch, members))

    @operation(Scope.WRITE, "released", says="released {released}", override=_BY_HAND)
    async def release(self, batch: Batch, *members: Member, delay_ms: DelayMs = 0) -> int:
        """Return members of a batch, or all of it, unprocessed; reserved again after ``delay_ms``.

        Returns how many were still reserved. Raises LeaseLost as commit does.
        """
        return await self._run(channels.release(self._handle, batch, members, delay_ms))

    @operation(Scope.WRITE, "until_ms", says="leased until {until_ms}", override=_BY_HAND)
    async def renew(self, batch: Batch, *, ack_ms: AckMs | None = None) -> int:
        """Renew the lease of a batch; returns until when, in ms since 1970.

        0 when nothing of it is reserved any more. Raises LeaseLost as commit does.
        """
        return await self._run(channels.renew(self._handle, batch, ack_ms))

    async def consumers(self) -> list[Lease]:
        """Return which consumer holds which shard until when."""
        return await self._run(channels.consumers(self._handle))

    async def stats(self) -> ChannelStats | None:
        """Return how many members are in each state; None when there is no channel. O(shards)."""
        return await self._run(channels.stats(self._handle))

    async def scan(self, shard: int | None = None) -> AsyncIterator[Listed]:
        """Yield all members, or those of a shard, in no order, in pages; changes nothing.

        What stays where it is comes at least once; what moves meanwhile may come twice or not.
        """
        for epoch, number, place in await self._run(channels.parts(self._handle, shard)):
            cursor, count = "", next_scan()
            while cursor != "0":
                page, cursor = await self._run(
                    channels.scan_page(self._handle, epoch, number, place, cursor or "0", count)
                )
                count = next_scan(page)
                for found in page:
                    yield found

    @operation(
        Scope.ADMIN,
        says="{shards:shard}, {leases:lease} to wait for",
        known=True,
        http="PUT layout",
        command="shards",
        override=("RESP",),
    )
    async def reshard(self, shards: Shards) -> Layout:
        """Change the number of shards of a channel in use, as far as can be done now.

        Members move without loss. Where leases of the layout before are in force, nothing is
        reserved until they end; then consumers, the housekeeper or another reshard finish the
        change.
        """
        return await self._run(channels.reshard(self._handle, shards))

    @operation(
        Scope.ADMIN,
        "deleted",
        says="deleted {channel}",
        asks="Delete {channel} with {info.ready} ready, {info.later} later and {info.reserved} "
        "reserved members?",
        must=True,
        http="DELETE",
        resp="CHDEL",
    )
    async def delete(self) -> bool:
        """Remove a channel with all its members; returns whether there was one."""
        return await self._run(channels.delete(self._handle))
