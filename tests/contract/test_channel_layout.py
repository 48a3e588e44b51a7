"""The shards of a channel: where they lie, and how another number of them is reached in use."""

from __future__ import annotations

from typing import Any
from zlib import crc32

import pytest
from redis.crc import key_slot

from headwater import Headwater, IckChannel, KeptChannel, LayoutLost, LeaseLost
from headwater.ick.keys import shard_key
from headwater.store.call import Wait
from tests.support.channels import LONG, drain, facts, members
from tests.support.watch import let_pass, server_ms


def test_the_shards_of_a_channel_are_in_different_slots() -> None:
    slots = {key_slot(shard_key("dirty", 1, shard).encode()) for shard in range(64)}
    assert len(slots) > 60
    assert len({slot * 3 // 16384 for slot in slots}) == 3, "on every server of three"


@pytest.mark.parametrize(("before", "after"), [(1, 4), (4, 1), (3, 8), (8, 3)])
def test_shards_are_added_and_removed_without_loss(
    client: Headwater, name: str, before: int, after: int
) -> None:
    channel, producer = client.ick_channel(name, shards=before), client.ick_channel(name)
    channel.add(members(1500))
    later = {f"l{i}": float(i) for i in range(30)}
    producer.add(later, not_before=server_ms(client) + LONG)
    assert channel.reshard(after) == (after, True, 0)
    assert producer.add({"m0": -1.0, "new": 0}) == (1, 1), "it is told, and looks again"
    found = {row.member: (row.score, row.place, row.shard) for row in channel.scan()}
    assert found == {
        str(member): (score, place, crc32(str(member).encode()) % after)
        for place, scores in (("ready", members(1500) | {"m0": -1.0, "new": 0.0}), ("later", later))
        for member, score in scores.items()
    }
    assert len(facts(channel).shards) == after
    assert sorted(drain(producer)) == sorted([*members(1500), "new"])
    assert channel.reshard(after) == (after, True, 0)


def test_nothing_is_reserved_twice_while_shards_change(client: Headwater, name: str) -> None:
    channel, rival = client.ick_channel(name, shards=2), client.ick_channel(name)
    channel.add(members(40))
    batch = channel.reserve(5)
    assert rival.reshard(3) == (3, False, 1), "a lease of the old layout is in force"
    assert not rival.reserve(10)
    assert rival.add(dict.fromkeys(map(str, batch.members), 9.0)) == (5, 0)
    assert not rival.reserve(10), "its members may be anywhere by now"
    (lease,) = rival.consumers()
    assert (lease.consumer, lease.reserved) == (channel.consumer, 5)
    assert len(facts(rival).left_behind) == 2
    assert channel.commit(batch) == 5
    assert sorted(drain(rival)) == sorted(members(40)), "consumers bring the change to its end"
    assert facts(rival).left_behind == ()


def test_the_housekeeper_finishes_a_change_of_shards(client: Headwater, name: str) -> None:
    channel = client.ick_channel(name, shards=2)
    channel.add(members(20))
    assert client.keep_channels(name) == []
    batch = channel.reserve(3)
    channel.reshard(3)
    assert client.keep_channels(name) == [KeptChannel(name, False, 1)]
    channel.commit(batch)
    assert client.keep_channels(name) == [KeptChannel(name, True, 0)]
    assert client.keep_channels(name) == []
    assert facts(channel).ready == 17


def test_a_lease_of_the_old_layout_that_runs_out_is_void(client: Headwater, name: str) -> None:
    slow, rival = client.ick_channel(name, shards=1, ack_ms=1), client.ick_channel(name)
    slow.add(members(10))
    batch = slow.reserve(4)
    let_pass(client, 1)
    assert rival.reshard(2) == (2, True, 0)
    with pytest.raises(LeaseLost, match="is over;"):
        slow.commit(batch)
    assert sorted(drain(slow)) == sorted(members(10))


def test_who_comes_with_an_old_layout_in_mind_is_told(client: Headwater, name: str) -> None:
    handles = [client.ick_channel(name, shards=2) for _ in range(3)]
    for handle in handles:
        handle.add({"a": 1})
    for shards in (5, 1, 7):
        assert handles[0].reshard(shards).settled
    assert handles[1].add({"b": 2, "a": 0.5}) == (1, 1)
    assert sorted(drain(handles[2])) == ["a", "b"]


def test_a_channel_is_listed_and_deleted_and_starts_again(client: Headwater, name: str) -> None:
    channel, late = client.ick_channel(name, shards=3), client.ick_channel(name)
    assert name not in client.ick_channels()
    assert not channel.delete()
    channel.add(members(50))
    late.add(members(2))
    batch = late.reserve(1)
    assert name in client.ick_channels()
    assert channel.delete()
    assert name not in client.ick_channels()
    assert (channel.stats(), channel.consumers(), list(channel.scan())) == (None, [], [])
    with pytest.raises(LeaseLost):
        late.commit(batch)
    assert late.add({"again": 1}) == (1, 0), "made anew, where all look for it"
    assert drain(channel) == ["again"]
    assert len(facts(channel).shards) == 8
    assert name in client.ick_channels()


def test_a_layout_that_servers_forgot_is_told_and_mended(client: Headwater, name: str) -> None:
    channel = client.ick_channel(name, shards=2)
    channel.add(members(20))
    for shard in facts(channel).shards:
        key = shard_key(name, epoch_of(channel), shard.shard)
        on_key(client, key, "HSET", key, "closed", 1)
    with pytest.raises(LayoutLost, match="reshard"):
        channel.add({"a": 1})
    assert channel.reshard(3).settled
    assert sorted(drain(channel)) == sorted(members(20))


def epoch_of(channel: IckChannel) -> int:
    batch = channel.reserve(1)
    channel.release(batch)
    return batch.epoch


def on_key(client: Headwater, key: str, *words: Any) -> None:
    """Run a command where a key lies: the others answer that it is not there."""
    client.store.run(_send(Wait(key, words, 0)))


def _send(request: Any) -> Any:
    return (yield request)
