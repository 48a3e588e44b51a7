# Generated from aio_ick.py by `make derived`, which renews it: change that file.
"""Ick and IckChannel for blocking code: thin shells over the operations."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from headwater.ick import channels, single
from headwater.ick.channels import ChannelHandle
from headwater.ick.keys import Member, Scores, next_scan
from headwater.ick.single import IckHandle
from headwater.ick.types import Added, Batch, ChannelStats, Layout, Lease, Listed
from headwater.kernel.inputs import Duration, deadline

if TYPE_CHECKING:
    from headwater.store.store import Store


class Ick:
    """A write-folding dirty list for one consumer, shared with redis-ick 0.1.4 by its keys.

    Members are str or bytes; they come back as str where they are UTF-8, else as bytes. Methods
    take any number of them: 1000 in one atomic round trip, more in steps of these. All raise
    NotAnIck when something else is stored under one of the keys.
    """

    def __init__(self, store: Store, handle: IckHandle) -> None:
        self._run = store.run
        self._handle = handle
        self.key = handle.key

    def __repr__(self) -> str:
        return f"Ick({self.key!r})"

    def add(self, scores: Scores) -> Added:
        """Mark members as dirty; one that is in the producer set takes the lower score.

        Returns how many were not in the producer set and how many scores fell. A member that is
        reserved becomes dirty again. The Ick exists afterwards, even when no member was given.
        """
        return self._run(single.add(self._handle, scores))

    def reserve(
        self, n: int, backwash: bool = False, *, max_bytes: int | None = None
    ) -> list[tuple[Member, float]]:
        """Fill the consumer set up to ``n`` from the lowest of the producer set, and return it.

        Those are the n lowest, ties by member; each reserve returns them again until they are
        committed. With ``backwash`` the consumer set is first folded back, so that they are the
        lowest of all. Once they have ``max_bytes`` no more are returned; the others are reserved,
        and are returned when these are committed.
        """
        return self._run(single.exchange(self._handle, n, (), backwash, max_bytes))[1]

    def commit(self, *members: Member) -> int:
        """Mark members as clean: remove them from the consumer set; returns how many were in it."""
        return self._run(single.exchange(self._handle, 0, members, False))[0]

    def exchange(
        self, n: int, *members: Member, backwash: bool = False, max_bytes: int | None = None
    ) -> list[tuple[Member, float]]:
        """Commit members, then reserve, in one call.

        Raises OutcomeUnknown when the connection broke in between; then reserve again.
        """
        return self._run(single.exchange(self._handle, n, members, backwash, max_bytes))[1]

    def stats(self) -> dict[str, Any] | None:
        """Return how large the sets are and between which scores; None without an Ick. O(1)."""
        return self._run(single.stats(self._handle))

    def scan(self) -> Iterator[Listed]:
        """Yield all members, in no order, in pages of about 1000; changes nothing.

        What stays where it is comes at least once; what moves meanwhile may come twice or not.
        """
        for place in single.PLACES:
            cursor, count = "", next_scan()
            while cursor != "0":
                page, cursor = self._run(
                    single.scan_page(self._handle, place, cursor or "0", count)
                )
                count = next_scan(page)
                yield from page

    def delete(self) -> int:
        """Remove the Ick; returns how many keys there were, which is 0 when there was no Ick."""
        return self._run(single.delete(self._handle))


class IckChannel:
    """A dirty list for any number of consumers: shards behind one name, each leased to one.

    Each object is a consumer of its own. Members are str or bytes; they come back as str where they
    are UTF-8, else as bytes.
    """

    def __init__(self, store: Store, handle: ChannelHandle) -> None:
        self._run = store.run
        self._handle = handle
        self.name = handle.name
        self.consumer = handle.consumer

    def __repr__(self) -> str:
        return f"IckChannel({self.name!r})"

    def add(self, scores: Scores, *, not_before: int | dt.datetime | None = None) -> Added:
        """Mark members as dirty; one that is dirty already keeps the lower score.

        Returns how many were not dirty before and how many scores fell. Members are not reserved
        before ``not_before`` (ms since 1970, or a datetime with its zone); the earlier of two times
        applies. A member that is reserved becomes dirty again, whatever its consumer does. A repeat
        does nothing more. Atomic within each shard; one round trip for each.
        """
        return self._run(channels.add(self._handle, scores, not_before))

    def reserve(self, n: int, *, max_bytes: int | None = None) -> Batch:
        """Lease a shard that has members, and reserve up to ``n`` of them.

        This consumer gets them again, in turn, until they are committed or released; when the lease
        runs out they go to another consumer. The lowest scores come first, but one place in eight
        goes to the member that has waited longest. Falsy when there is nothing. Once they have
        ``max_bytes`` no more are returned; this consumer gets the others when these are committed.
        One round trip for each shard that is looked at.
        """
        return self._run(channels.reserve(self._handle, n, max_bytes))

    def commit(self, batch: Batch, *members: Member) -> int:
        """Mark members of a batch, or all of it, as clean; returns how many.

        A member that became dirty after it was reserved stays dirty. Raises LeaseLost, and changes
        nothing, when another consumer has taken the shard over. The lease continues for the
        remaining members.
        """
        return self._run(channels.commit(self._handle, batch, members))

    def release(self, batch: Batch, *members: Member, delay_ms: Duration = 0) -> int:
        """Return members of a batch, or all of it, unprocessed; reserved again after ``delay_ms``.

        Returns how many were still reserved. Raises LeaseLost as commit does.
        """
        return self._run(channels.release(self._handle, batch, members, delay_ms))

    def renew(
        self, batch: Batch, *, ack_ms: Duration | None = None, lease_ms: Duration | None = None
    ) -> int:
        """Renew the lease of a batch; returns until when, in ms since 1970.

        0 when nothing of it is reserved any more. Raises LeaseLost as commit does.
        """
        held_ms = deadline(ack_ms, lease_ms, "lease_ms")
        return self._run(channels.renew(self._handle, batch, held_ms))

    def consumers(self) -> list[Lease]:
        """Return which consumer holds which shard until when."""
        return self._run(channels.consumers(self._handle))

    def stats(self) -> ChannelStats | None:
        """Return how many members are in each state; None when there is no channel. O(shards)."""
        return self._run(channels.stats(self._handle))

    def scan(self, shard: int | None = None) -> Iterator[Listed]:
        """Yield all members, or those of a shard, in no order, in pages; changes nothing.

        What stays where it is comes at least once; what moves meanwhile may come twice or not.
        """
        for epoch, number, place in self._run(channels.parts(self._handle, shard)):
            cursor, count = "", next_scan()
            while cursor != "0":
                page, cursor = self._run(
                    channels.scan_page(self._handle, epoch, number, place, cursor or "0", count)
                )
                count = next_scan(page)
                yield from page

    def reshard(self, shards: int) -> Layout:
        """Change the number of shards while in use, as far as can be done now.

        Members move without loss. Where leases of the layout before are in force, nothing is
        reserved until they end; then consumers, the housekeeper or another reshard finish the
        change.
        """
        return self._run(channels.reshard(self._handle, shards))

    def delete(self) -> bool:
        """Remove the channel with all its members; returns whether there was one."""
        return self._run(channels.delete(self._handle))
