"""The operations of a channel, without I/O: add, reserve, commit, release, renew, scan.

Every call on a shard may be sent again after a lost answer: an add folds, a reserve returns the
same members to its holder, and a commit names the generation that it means.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable
from typing import Any

from headwater.errors import InvalidInput, LeaseLost
from headwater.ick.layout import ChannelHandle, Closed, Patience, advance, shard_of
from headwater.ick.limits import (
    CHANNEL_MEMBERS,
    MOVE_MEMBERS,
    SCAN_MEMBERS,
    Member,
    Scores,
    check_reserve,
    decode,
    encode,
    first_members,
    spell_pairs,
    steps_of,
)
from headwater.ick.replies import (
    Reply,
    ReserveReply,
    ScanReply,
    SeenLayout,
    members_scanned,
    pairs_of,
)
from headwater.ick.types import (
    Added,
    Batch,
    Listed,
    Place,
    Reserved,
)
from headwater.kernel.headers import check_max_bytes
from headwater.kernel.inputs import LEASE, Duration, check_ms, to_ms
from headwater.store.call import Argument, Call, Count, Operation
from headwater.store.faults import Refusal

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
    args = (handle.consumer, handle.lease_ms, n)
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
    head = (batch.token, handle.lease_ms)
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
    head = (batch.token, handle.lease_ms, delay)
    given = 0
    for part in steps_of(_named(batch, members), 2, MOVE_MEMBERS):
        args = (*head, *part)
        given += yield from _on_batch(handle, "hw_channel_release", batch, args, _as_replied)
    return given


def renew(handle: ChannelHandle, batch: Batch, lease_ms: Duration | None) -> Operation[int]:
    """Renew the lease of a batch; return until when, or 0 when nothing of it is reserved."""
    _check_batch(handle, batch)
    span = handle.lease_ms if lease_ms is None else check_ms(lease_ms, LEASE, 1)
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
