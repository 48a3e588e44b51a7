"""Ick and IckChannel for asyncio: thin shells over the operations."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

from headwater.ick import channels, single
from headwater.ick.channels import ChannelHandle
from headwater.ick.keys import (
    Backwash,
    GivenMember,
    GivenScores,
    NotBefore,
    ReserveCount,
    Shard,
    Shards,
    next_scan,
)
from headwater.ick.single import IckHandle
from headwater.ick.types import (
    Added,
    Batch,
    ChannelStats,
    GivenBatch,
    IckStats,
    Layout,
    Lease,
    Listed,
    ScoredMember,
)
from headwater.kernel.declaring import Scope, operation
from headwater.kernel.inputs import DelayMs, LeaseMs, MaxBytes

if TYPE_CHECKING:
    from headwater.store.aio_store import AsyncStore


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

    @operation(Scope.WRITE, says="{new} new, {lowered} lowered", creates=True)
    async def add(self, scores: GivenScores) -> Added:
        """Mark members as dirty; returns how many were new, and how many scores fell.

        A member that is in the producer set takes the lower score; one that is reserved becomes
        dirty again. The Ick exists afterwards, even when no member was given.
        """
        return await self._run(single.add(self._handle, scores))

    @operation(Scope.WRITE, "members", says_not="nothing is dirty")
    async def reserve(
        self, n: ReserveCount, backwash: Backwash = False, *, max_bytes: MaxBytes = None
    ) -> list[ScoredMember]:
        """Fill the consumer set up to a number from the lowest members, and return it.

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

    @operation(Scope.WRITE, "members", says_not="nothing is dirty")
    async def exchange(
        self,
        n: ReserveCount,
        *members: GivenMember,
        backwash: Backwash = False,
        max_bytes: MaxBytes = None,
    ) -> list[ScoredMember]:
        """Commit members, then reserve, in one call.

        Raises OutcomeUnknown when the connection broke in between; then reserve again.
        """
        return (await self._run(single.exchange(self._handle, n, members, backwash, max_bytes)))[1]

    @operation(Scope.READ, http="GET")
    async def stats(self) -> IckStats | None:
        """Return how large both sets are, and their lowest and highest scores.

        None without an Ick. O(1).
        """
        return await self._run(single.stats(self._handle))

    @operation(
        Scope.READ,
        "members",
        known=True,
        http="GET members",
        command="list",
        resp="ICKMEMBERS",
        says_not="nothing is dirty",
    )
    async def scan(self) -> AsyncIterator[Listed]:
        """List members and the set they are in, in no order; changes nothing.

        They are read in pages of about 1000. What stays where it is comes at least once; what
        moves meanwhile may come twice or not.
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

    @operation(Scope.WRITE, says="{new} new, {lowered} lowered", creates=True, wishes=("shards",))
    async def add(self, scores: GivenScores, *, not_before: NotBefore = None) -> Added:
        """Mark members as dirty; returns how many were new, and how many scores fell.

        A member that is dirty already keeps the lower score. Members are not reserved before
        ``not_before`` (ms since 1970, or a datetime with its zone); the earlier of two times
        applies. A member that is reserved becomes dirty again, whatever its consumer does. A repeat
        does nothing more. Atomic within each shard; one round trip for each.
        """
        return await self._run(channels.add(self._handle, scores, not_before))

    # A lease is a text in RESP, by which the others name it.
    @operation(
        Scope.WRITE,
        says_not="nothing is free: nothing is dirty, or others hold it",
        wishes=("consumer", "ack_ms", "shards"),
        override=("command line", "RESP"),
    )
    async def reserve(self, n: ReserveCount, *, max_bytes: MaxBytes = None) -> Batch:
        """Lease a shard that has members, and reserve some of them.

        This consumer gets them again, in turn, until they are committed or released; when the lease
        runs out they go to another consumer. The lowest scores come first, but one place in eight
        goes to the member that has waited longest. Falsy when there is nothing. Once they have
        ``max_bytes`` no more are returned; this consumer gets the others when these are committed.
        One round trip for each shard that is looked at.
        """
        return await self._run(channels.reserve(self._handle, n, max_bytes))

    @operation(
        Scope.WRITE,
        "committed",
        says="committed {committed:member}",
        wishes=("ack_ms",),
        override=("RESP",),
    )
    async def commit(self, batch: GivenBatch, *members: GivenMember) -> int:
        """Mark members of a batch, or all of it, as clean; returns how many.

        A member that became dirty after it was reserved stays dirty. Raises LeaseLost, and changes
        nothing, when another consumer has taken the shard over. The lease continues for the
        remaining members.
        """
        return await self._run(channels.commit(self._handle, batch, members))

    @operation(
        Scope.WRITE,
        "released",
        says="released {released:member}",
        wishes=("ack_ms",),
        override=("RESP",),
    )
    async def release(self, batch: GivenBatch, *members: GivenMember, delay_ms: DelayMs = 0) -> int:
        """Return members of a batch, or all of it, as still dirty; others get them.

        They are not reserved again before ``delay_ms``. Returns how many were still reserved.
        Raises LeaseLost as commit does.
        """
        return await self._run(channels.release(self._handle, batch, members, delay_ms))

    @operation(Scope.WRITE, "until_ms", says="leased until {until_ms}", override=("RESP",))
    async def renew(self, batch: GivenBatch, *, ack_ms: LeaseMs = None) -> int:
        """Renew the lease of a batch; returns until when, in ms since 1970.

        0 when nothing of it is reserved any more. Raises LeaseLost as commit does.
        """
        return await self._run(channels.renew(self._handle, batch, ack_ms))

    @operation(
        Scope.READ, "leases", known=True, http="GET consumers", says_not="nobody holds a shard"
    )
    async def consumers(self) -> list[Lease]:
        """Return which consumer holds which shard until when."""
        return await self._run(channels.consumers(self._handle))

    @operation(Scope.READ, http="GET", override=("command line",))
    async def stats(self) -> ChannelStats | None:
        """Return how many members are in each state, and who holds which shard.

        None when there is no channel. O(shards).
        """
        return await self._run(channels.stats(self._handle))

    @operation(
        Scope.READ,
        "members",
        known=True,
        http="GET members",
        command="members",
        resp="CHMEMBERS",
        says_not="nothing is dirty",
    )
    async def scan(self, shard: Shard = None) -> AsyncIterator[Listed]:
        """List members, where they are and in which shard, in no order; changes nothing.

        They are read in pages. What stays where it is comes at least once; what moves meanwhile
        may come twice or not.
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
        resp="CHSHARDS",
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
