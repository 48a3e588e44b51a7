"""The operations of a channel, without I/O: its layout, add, reserve, commit, renew, scan.

Every call on a shard may be sent again after a lost answer: an add folds, a reserve returns the
same members to its holder, and a commit names the generation that it means.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Any, Final, NamedTuple
from zlib import crc32

from headwater.errors import InvalidInput, LayoutLost, LeaseLost
from headwater.ick.keys import (
    CHANNEL_MEMBERS,
    CHANNELS,
    MOVE_MEMBERS,
    SCAN_MEMBERS,
    Member,
    Scores,
    channel_key,
    check_reserve,
    check_shards,
    decode,
    encode,
    first_members,
    shard_key,
    spell_pairs,
    steps_of,
)
from headwater.ick.replies import (
    MovedRow,
    Reply,
    ReserveReply,
    ScanReply,
    SeenLayout,
    facts_of,
    members_scanned,
    pairs_of,
)
from headwater.ick.types import (
    Added,
    Batch,
    ChannelStats,
    Layout,
    Lease,
    Listed,
    Place,
    Reserved,
    ShardStats,
)
from headwater.kernel.headers import check_max_bytes
from headwater.kernel.inputs import Duration, check_ms, check_name, refuse_own_name, to_ms
from headwater.store.call import Argument, Call, Count, Operation
from headwater.store.faults import Refusal
from headwater.store.many import together

# ── Layout ────────────────────────────────────────────────────────────────────────────────────────
# The layout of a channel: which shards it has, and how that changes, without I/O.
#
# A change of the number of shards is done in steps of one atomic call each, by any client: the
# caller, consumers when they reserve, the housekeeper. After a crash the next client continues.
#
# 1. *begin*: the channel names a new layout, under a new epoch. From now on it is `closing`.
# 2. *closing*: each shard of the old layout is closed: it takes nothing more, and refuses whoever
#    comes with the old layout in mind. Leases that are in force run to their end, and until the
#    last has ended nothing is reserved: so no member is ever with two consumers.
# 3. *moving*: members go page by page: into their new shard, then out of the old. A page that is
#    put twice is folded, as any add is. Consumers work on the new shards meanwhile.
# 4. *settled*: the old shards are empty, and leave a mark for a week.


DEFAULT_SHARDS = 8
LEASE_MS = 30_000
# How often a call follows a layout that changes during the call.
_PATIENCE = 20
_ALL_PAGES = 2**31


class ChannelHandle:
    """A channel as its operations see it: who consumes, and the layout as last seen.

    ``view`` is shared by threads, so an operation reads it once and uses that.
    """

    def __init__(
        self, name: str, wanted: int | None, consumer: str, ack_ms: Duration, registered: set[str]
    ) -> None:
        self.key = channel_key(name)
        self.name = name
        self.wanted = DEFAULT_SHARDS if wanted is None else check_shards(wanted)
        self.consumer = check_name(consumer, "consumer")
        self.ack_ms = check_ms(ack_ms, "ack_ms", 1)
        self.turn = -1
        self._registered = registered
        self._view: SeenLayout | None = None

    def open(self) -> Operation[SeenLayout]:
        """Return the layout as last seen; the first to open a channel decides how many shards."""
        if self._view is not None:
            return self._view
        return (yield from self.renew_view())

    def renew_view(self) -> Operation[SeenLayout]:
        """Read the layout again; a channel that is half deleted is deleted first."""
        while True:
            refuse_own_name(self.name, "channel")
            reply = yield Call("hw_channel_open", self.key, (self.wanted,), repeatable=True)
            view = SeenLayout.of(reply)
            if view.phase != "deleting":
                break
            yield from _delete_all(self, view)
        # A channel may have the name of a stream, which this client has registered, too.
        if (mark := f"channel {self.name}") not in self._registered:
            yield Call("hw_registry_add", CHANNELS, (self.name,), repeatable=True)
            self._registered.add(mark)
        # During a change every client reads it each time, to notice its end and to help.
        self._view = None if view.phase else view
        return view

    def look(self) -> Operation[SeenLayout | None]:
        """Return the layout as it is now, without creating a channel."""
        reply = yield Call("hw_channel_view", self.key, read_only=True)
        return None if reply is None else SeenLayout.of(reply)

    def forget(self) -> None:
        """Read the layout again at the next use, and register the channel again."""
        self._view = None
        self._registered.discard(f"channel {self.name}")

    def shard_key(self, epoch: int, shard: int) -> str:
        """Return the key of a shard."""
        return shard_key(self.name, epoch, shard)

    def on_shard(
        self,
        function: str,
        epoch: int,
        shard: int,
        args: tuple[Argument, ...] = (),
        members: Count = 0,
    ) -> Operation[Any]:
        """Change a shard; raises Closed when it belongs to an old layout, or to one that was lost.

        ``members`` is how many that concerns, for instruments.
        """
        key = self.shard_key(epoch, shard)
        call = Call(function, key, args, repeatable=True, messages=members)
        while True:
            try:
                return (yield call)
            except Refusal as refusal:
                if refusal.code not in ("CLOSED", "UNOPENED"):
                    raise
                if refusal.code == "CLOSED" or not (yield from self._open_shard(epoch, shard)):
                    raise Closed from None

    def _open_shard(self, epoch: int, shard: int) -> Operation[bool]:
        """Open a shard that nobody has used yet; returns False when the layout does not have it.

        Then a server has lost that layout in a failover, or it was left behind long ago.
        """
        view = yield from self.look()
        if view is None or not view.has(epoch, shard):
            self.forget()
            return False
        yield Call("hw_channel_enter", self.shard_key(epoch, shard), repeatable=True)
        return True


class Closed(Exception):
    """A shard is closed: the layout has changed since it was read."""


class Patience:
    """Counts how often the layout changed under one call."""

    def __init__(self, handle: ChannelHandle) -> None:
        self._handle = handle
        self._left = _PATIENCE

    def again(self) -> Operation[SeenLayout]:
        """Read the layout again; raises LayoutLost when that was too often."""
        self._left -= 1
        if not self._left:
            raise LayoutLost(self._handle.name)
        return (yield from self._handle.renew_view())


def shard_of(member: bytes, shards: int) -> int:
    """Return the shard of a member."""
    return crc32(member) % shards


def advance(handle: ChannelHandle, view: SeenLayout, pages: int = _ALL_PAGES) -> Operation[Layout]:
    """Continue a change of layout, moving at most this many pages of members."""
    if view.phase == "closing":
        leased = yield from _close_all(handle, view)
        if leased:
            return Layout(view.shards, False, leased)
        yield from _reached(handle, view, "moving")
        view = view._replace(phase="moving")
    if view.phase == "moving":
        if (yield from _move_pages(handle, view, pages)):
            return Layout(view.shards, False, 0)
        for shard in range(view.old_shards):
            yield from handle.on_shard("hw_channel_drop", view.old_epoch, shard)
        yield from _reached(handle, view, "")
    return Layout(view.shards, True, 0)


def _reached(handle: ChannelHandle, view: SeenLayout, phase: str) -> Operation[None]:
    args = (view.epoch, view.phase, phase)
    yield Call("hw_channel_advance", handle.key, args, repeatable=True)


def _close_all(handle: ChannelHandle, view: SeenLayout) -> Operation[int]:
    leased = 0
    for shard in range(view.old_shards):
        until_ms = -1
        while until_ms < 0:
            until_ms = yield from handle.on_shard("hw_channel_close", view.old_epoch, shard)
        leased += bool(until_ms)
    return leased


def _move_pages(handle: ChannelHandle, view: SeenLayout, pages: int) -> Operation[bool]:
    """Move members to their new shards; return whether some may be left."""
    for shard in range(view.old_shards):
        key = handle.shard_key(view.old_epoch, shard)
        while True:
            call = Call("hw_channel_page", key, (MOVE_MEMBERS,), read_only=True)
            rows = MovedRow.all_of((yield call))
            if not rows:
                break
            if not pages:
                return True
            pages -= 1
            try:
                yield from _move_page(handle, view, shard, rows)
            except Closed:
                # The new layout has been replaced already, which is only possible after this move.
                return True
    return False


def _move_page(
    handle: ChannelHandle, view: SeenLayout, shard: int, rows: list[MovedRow]
) -> Operation[None]:
    places: dict[int, list[bytes]] = {}
    for row in rows:
        places.setdefault(shard_of(row.member, view.shards), []).extend(row)
    for place, found in places.items():
        count = len(found) // len(MovedRow._fields)
        yield from handle.on_shard("hw_channel_put", view.epoch, place, tuple(found), count)
    members = tuple(row.member for row in rows)
    yield from handle.on_shard("hw_channel_forget", view.old_epoch, shard, members, len(members))


def reshard(handle: ChannelHandle, shards: int) -> Operation[Layout]:
    """Change the number of shards, as far as possible now; see Layout for what remains."""
    check_shards(shards)
    view = yield from handle.renew_view()
    if view.phase:
        found = yield from advance(handle, view)
        if not found.settled:
            return found
    args = (view.epoch, shards)
    reply = yield Call("hw_channel_begin", handle.key, args, repeatable=True)
    handle.forget()
    if reply is None:
        return Layout(shards, False, 0)
    return (yield from advance(handle, SeenLayout.of(reply)))


def finish_change(handle: ChannelHandle) -> Operation[Layout | None]:
    """Continue a change that any client began, as far as possible now; None without one."""
    view = yield from handle.look()
    if view is None or not view.phase:
        return None
    if view.phase == "deleting":
        yield from _delete_all(handle, view)
        return Layout(0, True, 0)
    return (yield from advance(handle, view))


def delete(handle: ChannelHandle) -> Operation[bool]:
    """Remove a channel with all its members; return whether there was one."""
    view = yield from handle.look()
    while view is not None and view.phase != "deleting":
        reply = yield Call("hw_channel_begin", handle.key, (view.epoch, 0), repeatable=True)
        view = None if reply is None else SeenLayout.of(reply)
    if view is not None:
        yield from _delete_all(handle, view)
    handle.forget()
    yield Call("hw_registry_remove", CHANNELS, (handle.name,), repeatable=True)
    return view is not None


def _delete_all(handle: ChannelHandle, view: SeenLayout) -> Operation[None]:
    layouts = ((view.epoch, view.shards), (view.old_epoch, view.old_shards))
    for epoch, shards in layouts:
        for shard in range(shards):
            yield from handle.on_shard("hw_channel_drop", epoch, shard)
    yield from _reached(handle, view, "gone")


def list_channels() -> Operation[list[str]]:
    """List the names of all channels, sorted."""
    found = yield Call("hw_registry_list", CHANNELS, read_only=True)
    return sorted(name.decode() for name in found)


# ── Channels ──────────────────────────────────────────────────────────────────────────────────────


PLACES: tuple[Place, ...] = ("ready", "later", "reserved")
_SETS = {"ready": "ready", "later": "later", "reserved": "held"}


def add(
    handle: ChannelHandle,
    scores: Scores,
    not_before: int | dt.datetime | None,
) -> Operation[Added]:
    """Mark members as dirty, each in its shard; atomic within a shard."""
    words = spell_pairs(scores)
    when: Argument = "" if not_before is None else to_ms(not_before, "not_before")
    patience = Patience(handle)
    view = yield from handle.open()
    new = lowered = 0
    while words:
        refused: list[Argument] = []
        for shard, some in _spread(words, view.shards).items():
            for part in steps_of(some, 2, CHANNEL_MEMBERS):
                try:
                    reply = yield from handle.on_shard(
                        "hw_channel_add", view.epoch, shard, (when, *part), len(part) // 2
                    )
                    added = Added(*reply)
                except Closed:
                    refused += part
                else:
                    new, lowered = new + added.new, lowered + added.lowered
        words = refused
        if words:
            view = yield from patience.again()
    return Added(new, lowered)


def _spread(words: list[Argument], shards: int) -> dict[int, list[Argument]]:
    """Sort score, member, score, member, ... by the shard of the member."""
    places: dict[int, list[Argument]] = {}
    for score, member in zip(words[::2], words[1::2], strict=True):
        assert isinstance(member, bytes)
        places.setdefault(shard_of(member, shards), []).extend((score, member))
    return places


def reserve(handle: ChannelHandle, n: int, max_bytes: int | None = None) -> Operation[Batch]:
    """Lease a shard that has members, another one each time, and reserve up to ``n`` of them.

    With ``max_bytes``, no more is returned once the members have as many; the rest is reserved.
    """
    check_reserve(n)
    check_max_bytes(max_bytes)
    patience = Patience(handle)
    view = yield from handle.open()
    while n:
        if view.phase:
            # Continue the change by a page; nothing is reserved while a lease of the old layout is
            # in force, because its members may be with another consumer.
            layout = yield from advance(handle, view, pages=1)
            if layout.leases:
                break
        try:
            batch = yield from _reserve_in_turn(handle, view, n, max_bytes)
        except Closed:
            view = yield from patience.again()
            continue
        if batch is not None:
            return batch
        break
    return Batch(handle.name)


def _reserve_in_turn(
    handle: ChannelHandle, view: SeenLayout, n: int, max_bytes: int | None
) -> Operation[Batch | None]:
    first = (handle.turn + 1) % view.shards
    args = (handle.consumer, handle.ack_ms, n)
    for shard in (*range(first, view.shards), *range(first)):
        to_do = 1
        while to_do == 1:
            found = yield from handle.on_shard(
                "hw_channel_reserve", view.epoch, shard, args, _members_reserved
            )
            reply = ReserveReply(*found)
            to_do = reply.to_do
        if reply.token:
            handle.turn = shard
            reserved = _reserved_of(reply.rows, reply.generations)
            if to_do:
                place = (view.epoch, shard, reply.token)
                reserved = yield from _read_reserved(handle, *place, n, max_bytes)
            reserved = first_members(reserved, _size_of, max_bytes)
            return Batch(
                handle.name, view.epoch, shard, reply.token, reply.until_ms, tuple(reserved)
            )
    return None


def _reserved_of(rows: Reply, generations: Reply) -> list[Reserved]:
    pairs = zip(pairs_of(rows), generations, strict=True)
    return [Reserved(member, score, int(generation)) for (member, score), generation in pairs]


def _read_reserved(
    handle: ChannelHandle, epoch: int, shard: int, token: int, n: int, max_bytes: int | None
) -> Operation[list[Reserved]]:
    """Read reserved members that do not fit one reply; the lease keeps them from changing."""
    reserved: list[Reserved] = []
    key = handle.shard_key(epoch, shard)
    while len(reserved) < n:
        args = (token, len(reserved), n - len(reserved))
        call = Call("hw_channel_held", key, args, read_only=True, messages=_members_held)
        try:
            rows, generations = yield call
        except Refusal as refusal:
            raise _lease_lost(handle, shard, token, refusal) from None
        if not rows:
            break
        reserved += _reserved_of(rows, generations)
        if max_bytes and sum(map(_size_of, reserved)) >= max_bytes:
            break
    return reserved


def _size_of(row: Reserved) -> int:
    return len(row.member)


def _members_held(_: Call, reply: Reply) -> int:
    return len(reply[1])


def _members_reserved(_: Call, reply: Reply) -> int:
    return len(ReserveReply(*reply).generations)


def commit(handle: ChannelHandle, batch: Batch, members: Iterable[Member]) -> Operation[int]:
    """Mark members of a batch as clean; return how many are clean, and not dirty again."""
    _check_batch(handle, batch)
    head = (batch.token, handle.ack_ms)
    done = 0
    for part in steps_of(_named(batch, members), 2, CHANNEL_MEMBERS):
        args = (*head, *part)
        done += yield from _on_batch(handle, "hw_channel_commit", batch, args, _as_replied)
    return done


def release(
    handle: ChannelHandle, batch: Batch, members: Iterable[Member], delay_ms: Duration
) -> Operation[int]:
    """Return members of a batch unprocessed; returns how many were reserved until now."""
    _check_batch(handle, batch)
    delay = check_ms(delay_ms, "delay_ms")
    head = (batch.token, handle.ack_ms, delay)
    given = 0
    for part in steps_of(_named(batch, members), 2, MOVE_MEMBERS):
        args = (*head, *part)
        given += yield from _on_batch(handle, "hw_channel_release", batch, args, _as_replied)
    return given


def renew(handle: ChannelHandle, batch: Batch, ack_ms: Duration | None) -> Operation[int]:
    """Renew the lease of a batch; return until when, or 0 when nothing of it is reserved."""
    _check_batch(handle, batch)
    span = handle.ack_ms if ack_ms is None else check_ms(ack_ms, "ack_ms", 1)
    until_ms: int = yield from _on_batch(handle, "hw_channel_renew", batch, (batch.token, span))
    return until_ms


def _check_batch(handle: ChannelHandle, batch: Batch) -> None:
    if not isinstance(batch, Batch) or batch.channel != handle.name:
        raise InvalidInput(
            f"that is not a batch of channel {handle.name!r}: {batch!r}; give what reserve() "
            "returned"
        )


def _named(batch: Batch, members: Iterable[Member]) -> list[Argument]:
    """Return the members with the generations of the batch: those named, or all."""
    chosen = [encode(member) for member in members]
    generations = {encode(row.member): row.generation for row in batch.reserved}
    for member in chosen:
        if member not in generations:
            raise InvalidInput(f"the member {decode(member)!r} is not in that batch")
    return [word for m in dict.fromkeys(chosen or generations) for word in (m, generations[m])]


def _as_replied(_: Call, reply: int) -> int:
    return reply


def _on_batch(
    handle: ChannelHandle,
    function: str,
    batch: Batch,
    args: tuple[Argument, ...],
    members: Count = 0,
) -> Operation[Any]:
    if batch.shard < 0:
        return 0
    try:
        return (yield from handle.on_shard(function, batch.epoch, batch.shard, args, members))
    except Refusal as refusal:
        raise _lease_lost(handle, batch.shard, batch.token, refusal) from None


def _lease_lost(handle: ChannelHandle, shard: int, token: int, refusal: Refusal) -> LeaseLost:
    holder = refusal.words[1] if len(refusal.words) > 1 else None
    return LeaseLost(handle.name, shard, token, holder)


def scan_page(
    handle: ChannelHandle,
    epoch: int,
    shard: int,
    place: Place,
    cursor: str,
    count: int = SCAN_MEMBERS,
) -> Operation[tuple[list[Listed], str]]:
    """Read a page of one shard, and the cursor of the next, which is '0' at the end."""
    args = (_SETS[place], cursor, count)
    key = handle.shard_key(epoch, shard)
    call = Call("hw_channel_scan", key, args, read_only=True, messages=members_scanned)
    reply = ScanReply(*(yield call))
    return [Listed(*pair, place, shard) for pair in pairs_of(reply.rows)], reply.cursor.decode()


def parts(handle: ChannelHandle, shard: int | None) -> Operation[list[tuple[int, int, Place]]]:
    """Return the parts of a scan: epoch, shard and place, those of the old layout first."""
    view = yield from handle.look()
    if view is None:
        return []
    layouts = ((view.old_epoch, view.old_shards), (view.epoch, view.shards))
    return [
        (epoch, number, place)
        for epoch, shards in layouts
        for number in range(shards)
        if shard is None or shard == number
        for place in PLACES
    ]


# ── Inspecting ────────────────────────────────────────────────────────────────────────────────────
# How channels of dirty lists stand: their shards, and who holds them. Nothing is changed.


# So many channels or shards are asked for in one call.
_AT_ONCE: Final = 200


def stats(handle: ChannelHandle) -> Operation[ChannelStats | None]:
    """Return the state of a channel and its shards; None when there is no channel."""
    (found,) = yield from stats_of_many([handle])
    return found


def stats_of_many(
    handles: Sequence[ChannelHandle], *, apart: bool = True
) -> Operation[list[ChannelStats | None]]:
    """Return the state of each of many channels, in a handful of round trips.

    Unless they are ``apart``, as on a cluster, by a call for hundreds of them.
    """
    look, look_at_shards = (_look_apart, _shards_apart) if apart else (_look, _shards)
    views = yield from look(handles)
    asked = [
        _ShardPlace(handle.shard_key(epoch, shard), shard)
        for handle, view in zip(handles, views, strict=True)
        if view is not None
        for epoch, count in ((view.epoch, view.shards), (view.old_epoch, view.old_shards))
        for shard in range(count)
    ]
    shards = iter((yield from look_at_shards(asked)))
    return [
        ChannelStats(
            handle.name,
            tuple(islice(shards, view.shards)),
            tuple(islice(shards, view.old_shards)),
        )
        if view is not None
        else None
        for handle, view in zip(handles, views, strict=True)
    ]


class _ShardPlace(NamedTuple):
    """The key of a shard, and its number in its channel."""

    key: str
    shard: int


def _look_apart(handles: Sequence[ChannelHandle]) -> Operation[list[SeenLayout | None]]:
    return (yield from together(handle.look() for handle in handles))


def _shards_apart(places: Sequence[_ShardPlace]) -> Operation[list[ShardStats]]:
    return (yield from together(map(_shard, places)))


def _look(handles: Sequence[ChannelHandle]) -> Operation[list[SeenLayout | None]]:
    replies = yield from _at_once([handle.key for handle in handles], channels=True)
    return [None if reply is None else SeenLayout.of(reply) for reply in replies]


def _shards(places: Sequence[_ShardPlace]) -> Operation[list[ShardStats]]:
    replies = yield from _at_once([place.key for place in places], channels=False)
    return [_stats_of(*one) for one in zip(places, replies, strict=True)]


def _at_once(keys: Sequence[str], *, channels: bool) -> Operation[list[Any]]:
    """Return what a server says of many channels, or of many shards, in the order of the keys."""
    replies: list[Any] = []
    for begin in range(0, len(keys), _AT_ONCE):
        first, *others = some = keys[begin : begin + _AT_ONCE]
        args = (len(some) if channels else 0,)
        replies += yield Call("hw_store_channels", first, args, read_only=True, also=tuple(others))
    return replies


def _shard(place: _ShardPlace) -> Operation[ShardStats]:
    return _stats_of(place, (yield Call("hw_channel_shard", place.key, read_only=True)))


def _stats_of(place: _ShardPlace, reply: Reply) -> ShardStats:
    facts = facts_of(reply)
    facts["shard"] = place.shard
    facts["closed"] = bool(facts["closed"])
    facts["waited_ms"] = max(0, facts["now"] - facts["since"]) if facts["since"] else 0
    facts["lease"] = _lease(facts) if facts["holder"] else None
    return ShardStats(**{name: facts[name] for name in ShardStats._fields})


def _lease(facts: dict[str, Any]) -> Lease:
    until_ms = facts["until"]
    left_ms = max(0, until_ms - facts["now"])
    holder = facts["holder"].decode()
    return Lease(facts["shard"], holder, facts["token"], until_ms, left_ms, facts["reserved"])


def consumers(handle: ChannelHandle) -> Operation[list[Lease]]:
    """Return the leases of all shards; one that has run out has 0 ms left and can be taken over."""
    facts = yield from stats(handle)
    if facts is None:
        return []
    every = (*facts.shards, *facts.left_behind)
    return [shard.lease for shard in every if shard.lease is not None]
