"""How channels of dirty lists stand: their shards, and who holds them. Nothing is changed."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import Any, Final, NamedTuple

from headwater.ick.layout import ChannelHandle
from headwater.ick.replies import Reply, SeenLayout, facts_of
from headwater.ick.types import ChannelStats, Lease, ShardStats
from headwater.store.call import Call, Operation
from headwater.store.many import together

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
