"""A channel keeps what it promises: leases, fencing, generations, fairness and time."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from typing import Any
from zlib import crc32

import pytest
from redis.crc import key_slot

from headwater import (
    Added,
    Batch,
    Headwater,
    IckChannel,
    InvalidInput,
    KeptChannel,
    LayoutLost,
    LeaseLost,
)
from headwater.ick import keys
from headwater.ick.keys import channel_key, shard_key
from headwater.store.call import Wait
from tests.support.channels import LONG, counts, drain, facts, members, other
from tests.support.watch import let_pass, server_ms


@pytest.fixture
def channel(client: Headwater, name: str) -> IckChannel:
    """A channel of one shard that was never used."""
    return client.ick_channel(name, shards=1)


def test_members_come_lowest_first_and_end_with_their_commit(channel: IckChannel) -> None:
    assert channel.stats() is None
    assert channel.add({"b": 2, "a": 2, "c": 0.5}) == Added(3, 0)
    mixed: dict[str | bytes, float] = {"a": 1, "b": 5, b"\xff": 9}
    assert channel.add(mixed) == (1, 1)
    batch = channel.reserve(3)
    assert [(row.member, row.score) for row in batch] == [("c", 0.5), ("a", 1.0), ("b", 2.0)]
    assert (batch.members, len(batch)) == (["c", "a", "b"], 3)
    assert counts(channel) == (1, 0, 3)
    assert channel.commit(batch, "a") == 1
    assert channel.commit(batch) == 2
    assert channel.commit(batch) == 0
    assert drain(channel) == [b"\xff"]
    empty = channel.reserve(3)
    assert not empty
    assert (list(empty), channel.commit(empty), channel.renew(empty)) == ([], 0, 0)
    assert counts(channel) == (0, 0, 0)


def test_what_is_not_committed_comes_again_to_its_consumer(channel: IckChannel) -> None:
    channel.add({"a": 1, "b": 2, "c": 3})
    first = channel.reserve(2)
    again = channel.reserve(3)
    assert again.members == ["a", "b", "c"]
    assert again.token == first.token
    assert channel.commit(first) == 2, "what was reserved the first time is the same"
    assert channel.reserve(9).members == ["c"]


def test_a_member_made_dirty_after_it_was_reserved_is_never_lost(channel: IckChannel) -> None:
    """Whatever the order of adds, reserves and commits, of which Ick forgets one."""
    channel.add({"a": 1, "b": 2})
    first = channel.reserve(2)
    assert channel.add({"a": 5}) == (1, 0)
    second = channel.reserve(3)
    assert {row.member: row.score for row in second} == {"a": 1.0, "b": 2.0}
    assert [row.generation for row in second] != [row.generation for row in first]
    assert channel.commit(first) == 1, "b, but not a: it was reserved anew"
    assert channel.reserve(5).members == ["a"]
    channel.add({"a": 7})
    assert channel.commit(second) == 1
    assert [(row.member, row.score) for row in channel.reserve(5)] == [("a", 7.0)]
    assert drain(channel) == ["a"]


def test_a_shard_is_with_one_consumer_at_a_time(
    client: Headwater, channel: IckChannel, name: str
) -> None:
    channel.add({"a": 1, "b": 2})
    batch = channel.reserve(1)
    rival = other(client, name)
    assert not rival.reserve(5)
    (lease,) = rival.consumers()
    assert (lease.shard, lease.consumer, lease.token) == (0, channel.consumer, batch.token)
    assert 0 < lease.left_ms <= 30_000
    assert (lease.until_ms, lease.reserved) == (batch.until_ms, 1)
    channel.commit(batch)
    assert channel.consumers() == [], "a shard of which nothing is reserved is free"
    assert rival.reserve(5).members == ["b"]


def test_a_lease_that_runs_out_is_taken_over_and_its_token_is_stale(
    client: Headwater, name: str
) -> None:
    slow, quick = (other(client, name, shards=1, ack_ms=ms) for ms in (1, LONG))
    slow.add({"a": 1, "b": 2})
    late = slow.reserve(2)
    let_pass(client, 1)
    assert slow.commit(late, "a") == 1, "late, but nobody has taken it over"
    let_pass(client, 1)
    batch = quick.reserve(2)
    assert batch.members == ["b"]
    assert batch.token > late.token
    for use in (slow.commit, slow.release, slow.renew):
        with pytest.raises(LeaseLost) as caught:
            use(late)
        lost = caught.value
        assert (lost.channel, lost.shard, lost.token) == (name, 0, late.token)
        assert lost.holder == quick.consumer
    assert counts(slow) == (0, 0, 1)
    assert not slow.reserve(5)
    assert quick.commit(batch) == 1
    assert slow.commit(batch) == 0, "whoever has the token"


def test_a_renewed_lease_is_not_taken_over(client: Headwater, name: str) -> None:
    slow, quick = (other(client, name, shards=1, ack_ms=ms) for ms in (1, LONG))
    slow.add({"a": 1, "b": 2})
    batch = slow.reserve(2)
    until = slow.renew(batch, ack_ms=LONG)
    assert until > batch.until_ms
    let_pass(client, 2)
    assert not quick.reserve(1)
    assert slow.consumers()[0].until_ms == until
    assert slow.commit(batch) == 2
    assert slow.renew(batch) == 0


def test_a_repeated_commit_whose_shard_continued_is_no_lost_lease(
    client: Headwater, name: str
) -> None:
    channel, rival = (other(client, name, shards=1) for _ in range(2))
    channel.add({"a": 1})
    batch = channel.reserve(1)
    assert channel.commit(batch) == 1
    channel.add({"a": 2})
    assert rival.reserve(1).members == ["a"]
    assert channel.commit(batch) == 0
    assert counts(channel) == (0, 0, 1)


def test_what_is_released_comes_again_to_anybody_when_its_time_has_come(
    client: Headwater, channel: IckChannel, name: str
) -> None:
    channel.add({"a": 1, "b": 2, "c": 3})
    batch = channel.reserve(3)
    assert channel.release(batch, "a") == 1
    assert channel.release(batch, "b", delay_ms=LONG) == 1
    assert channel.release(batch, "a", "b") == 0
    assert counts(channel) == (1, 1, 1)
    assert channel.release(batch) == 1
    assert channel.consumers() == []
    assert drain(other(client, name)) == ["a", "c"]
    assert counts(channel) == (0, 1, 0)
    channel.add({"b": 9})
    assert [(r.member, r.score) for r in channel.reserve(1)] == [("b", 2.0)]


def test_members_are_not_reserved_before_their_time(client: Headwater, channel: IckChannel) -> None:
    now = server_ms(client)
    far = dt.datetime.fromtimestamp(now / 1000 + 3600, dt.UTC)
    assert channel.add({"far": 0, "both": 5}, not_before=far) == (2, 0)
    assert channel.add({"soon": 1, "both": 7}, not_before=now + LONG) == (1, 0)
    assert channel.add({"past": 2}, not_before=1) == (1, 0)
    assert channel.add({"now": 3}) == (1, 0)
    assert drain(channel) == ["past", "now"]
    assert counts(channel) == (0, 3, 0)
    sooner = server_ms(client) + 1
    assert channel.add({"soon": 1, "both": 7}, not_before=sooner) == (0, 0)
    let_pass(client, 2)
    assert [(r.member, r.score) for r in channel.reserve(9)] == [("soon", 1.0), ("both", 5.0)]
    assert channel.add({"soon": -4}, not_before=far) == (1, 0), "dirty again, for later"
    assert channel.commit(channel.reserve(9)) == 2
    assert channel.add({"far": -1}) == (0, 1), "dirty now: the earlier time holds"
    assert channel.add({"far": -3}, not_before=far) == (0, 1)
    assert [(r.member, r.score) for r in channel.reserve(9)] == [("far", -3.0)]


def test_any_number_that_comes_due_at_once_is_reserved(
    client: Headwater, channel: IckChannel
) -> None:
    channel.add({f"m{i}": i for i in range(5000)}, not_before=server_ms(client) + 1)
    let_pass(client, 2)
    assert sorted(drain(channel, 800)) == sorted(f"m{i}" for i in range(5000))


@pytest.mark.parametrize("n", [1, 3, 8, 20])
def test_nobody_waits_for_ever_behind_lower_scores(
    client: Headwater, channel: IckChannel, n: int
) -> None:
    """Others are hammered with ever lower scores; one place in eight goes to who waited longest."""
    channel.add({"cold": 1_000_000})
    let_pass(client, 1)
    handed = 0
    for turn in range(200):
        channel.add({f"hot{i}": -turn for i in range(40)})
        batch = channel.reserve(n)
        handed += len(batch)
        channel.commit(batch)
        if "cold" in batch.members:
            break
    assert handed <= 8 + n


def test_a_hot_member_keeps_its_turn_however_it_is_dirtied(
    client: Headwater, channel: IckChannel
) -> None:
    channel.add({"hot": 50})
    let_pass(client, 1)
    channel.add({f"m{i}": i for i in range(40)})
    for turn in range(20):
        assert channel.add({"hot": 1000 + turn}) == (0, 0)
        batch = channel.reserve(1)
        channel.commit(batch)
        if batch.members == ["hot"]:
            break
    assert turn < 8


def test_every_shard_has_its_turn(client: Headwater, name: str) -> None:
    channel = client.ick_channel(name, shards=5)
    channel.add({f"m{i}": i for i in range(200)})
    shards = []
    for _ in range(10):
        batch = channel.reserve(3)
        shards.append(batch.shard)
        assert all(crc32(str(m).encode()) % 5 == batch.shard for m in batch.members)
        channel.commit(batch)
    assert shards == [*range(5), *range(5)]


REFUSED: dict[str, tuple[Callable[[IckChannel, Any], Any], list[Any]]] = {
    "n": (lambda c, v: c.reserve(v), [-1, 1.5, "1", None, True, keys.MAX_RESERVE + 1]),
    "not_before": (
        lambda c, v: c.add({"a": 1}, not_before=v),
        [-1, 1.5, "1", True, dt.datetime(2030, 1, 1)],  # noqa: DTZ001  that is what is wrong
    ),
    "score": (lambda c, v: c.add({"a": v}), [float("nan"), "1", None, 2**53 + 1]),
    "batch": (lambda c, v: c.commit(v), [None, [("a", 1)], Batch("another", 1, 0, 1, 1)]),
    "shards": (lambda c, v: c.reshard(v), [0, -1, 1.5, "2", None, keys.MAX_SHARDS + 1]),
}


@pytest.mark.parametrize("client", ["embedded-sync", "plain-async"], indirect=True)
def test_what_cannot_be_meant_is_refused_before_it_is_sent(client: Headwater, name: str) -> None:
    channel = client.ick_channel(name)
    for use, values in REFUSED.values():
        for value in values:
            with pytest.raises(InvalidInput):
                use(channel, value)
    assert channel.stats() is None
    names: list[Any] = ["", "a b", "{a}", "x" * 201, None, 5]
    for wrong in names:
        with pytest.raises(InvalidInput):
            client.ick_channel(wrong)
    for options in ({"shards": 0}, {"shards": 1025}, {"consumer": "a b"}, {"ack_ms": 0}):
        with pytest.raises(InvalidInput):
            client.ick_channel(name, **options)
    channel.add({"a": 1})
    batch = channel.reserve(1)
    for end in (channel.commit, channel.release):
        with pytest.raises(InvalidInput, match="not in that batch"):
            end(batch, "b")
    with pytest.raises(InvalidInput):
        channel.release(batch, delay_ms=-1)
    assert channel_key(name) == f"hw:c:{{{name}}}"


# ── The shards of a channel: where they lie, and how another number of them is reached in use ────


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
