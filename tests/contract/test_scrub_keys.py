"""A scrub finds keys that belong to no object, and a repair frees them or gives them back."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import redis

from headwater import Headwater
from headwater.ick.keys import shard_key
from headwater.log.keys import group_key, stream_key
from headwater.queue.keys import queue_key
from tests.support.breaking import Break, assert_found_and_repaired
from tests.support.groups import FAR
from tests.support.scrubbed import assert_sound
from tests.support.servers import Server
from tests.support.traffic import use_channel, use_group, use_ick, use_queue, use_stream

S, Q, C, T = "kept", "jobs", "dirty", "cities"
K, QUEUE = stream_key(S), queue_key(Q)
G = group_key(K, "workers")


def _forget_stream(raw: redis.Redis, _: str) -> None:
    raw.srem("hw:{streams}", S)
    raw.hset(K, "created", 1)


def _staged(raw: redis.Redis, _: str) -> None:
    raw.hset(f"{K}:staged:left", "begun", 1)
    raw.persist(f"{K}:staged:left")


KEYS: dict[str, Break[str]] = {
    "a key of nobody": Break(
        lambda raw, _: raw.set("hw:what", 1),
        "store",
        "key hw:what",
        "an object that it belongs to",
        "none",
        repairs=False,
    ),
    "a registry that is none": Break(
        lambda raw, _: raw.set("hw:{others}", 1),
        "store",
        "key hw:{others}",
        "an object that it belongs to",
        "none",
        repairs=False,
    ),
    "a part that streams do not have": Break(
        lambda raw, _: raw.set(f"{K}:extra", 1),
        "stream",
        f"key {K}:extra",
        "a part of a stream",
        "no such part",
        repairs=False,
    ),
    "a part of another type": Break(
        lambda raw, _: raw.set(f"{K}:staged:x", 1),
        "stream",
        f"key {K}:staged:x",
        "a hash",
        "string",
        repairs=False,
    ),
    "a stream that is not registered": Break(
        _forget_stream, "stream", "key hw:{streams}", f"the name {S!r}", "not there"
    ),
    "what is left of a stream": Break(
        lambda raw, _: raw.zadd(f"{stream_key('gone')}:index", {"1:1:1:1:1:1": 1}),
        "stream",
        "key hw:s:{gone}:index",
        "a stream that was written",
        "none",
    ),
    "what is left of a group": Break(
        lambda raw, _: raw.zadd(f"{group_key(K, 'gone')}:due", {"1": 1}),
        "stream",
        f"key {K}:g:4:gone:due",
        "the group 'gone'",
        "none",
    ),
    "a group that is not listed": Break(
        lambda raw, _: raw.zrem(f"{K}:groups", "plain"),
        "stream",
        "list of groups, 'plain'",
        "the group",
        "not listed",
    ),
    "a box of nobody": Break(
        lambda raw, _: raw.rpush(f"{G}:box:m.1", "poke"),
        "stream",
        "box m.1",
        "a member that looks into it",
        "none",
    ),
    "a staging of no publish": Break(
        _staged, "stream", "staging 'left'", "a publish that it belongs to", "none, and it does"
    ),
    "a list of no publish": Break(
        lambda raw, _: raw.rpush(f"{K}:publish:spark", "x"),
        "stream",
        f"key {K}:publish:spark",
        "an unfinished publish",
        "none",
    ),
    "a part that queues do not have": Break(
        lambda raw, _: raw.set(f"{QUEUE}:extra", 1),
        "queue",
        f"key {QUEUE}:extra",
        "a part of a queue",
        "no such part",
        repairs=False,
    ),
    "what is left of a queue": Break(
        lambda raw, _: raw.rpush(f"{queue_key('gone')}:ready:0", "x"),
        "queue",
        "key hw:q:{gone}:ready:0",
        "a queue that was pushed to",
        "none",
    ),
    "a box of a queue that stays": Break(
        lambda raw, _: raw.rpush(f"{QUEUE}:box:m.1", "poke"),
        "queue",
        f"key {QUEUE}:box:m.1",
        "a time to live",
        "none",
    ),
    "members of a shard of no channel": Break(
        lambda raw, _: raw.zadd(f"{shard_key('gone', 1, 0)}:ready", {"m": 1}),
        "channel",
        "key hw:cs:{gone/1/0}:ready",
        "a shard of the channel 'gone'",
        "none",
        repairs=False,
    ),
    "ages of a shard of no channel": Break(
        lambda raw, _: raw.zadd(f"{shard_key('gone', 1, 0)}:since", {"m": 1}),
        "channel",
        "key hw:cs:{gone/1/0}:since",
        "a shard of the channel 'gone'",
        "none",
    ),
    "a channel that is not registered": Break(
        lambda raw, _: raw.srem("hw:{channels}", C),
        "channel",
        "key hw:{channels}",
        f"the name {C!r}",
        "not there",
    ),
}


def use_everything(hw: Headwater) -> None:
    use_group(hw, use_stream(hw, S))
    use_queue(hw, Q)
    use_ick(hw, "an/ick")
    use_channel(hw, C, members=30)
    hw.topic(T, 2).write("t", b"v")


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as server:
        yield server


@pytest.mark.parametrize("what", KEYS)
def test_each_stray_key_is_found(server: Server, what: str) -> None:
    with Headwater(server.url) as hw, server.client() as raw:
        use_everything(hw)
        assert_found_and_repaired(hw, raw, "", KEYS[what])


def test_a_priority_that_no_pop_looks_at_is_found(server: Server) -> None:
    with Headwater(server.url) as hw, server.client() as raw:
        queue = hw.queue(Q)
        queue.push(b"low", priority=-3)
        queue.push(b"high", priority=7)
        raw.hset(QUEUE, "priorities", "7,")
        report = hw.repair(dry_run=False)
        assert [d.place for d in report.repaired] == [f"key {QUEUE}:ready:-3"]
        assert [d.value for d in queue.pop(9, ack_ms=FAR)] == [b"high", b"low"]
        assert_sound(hw)


@pytest.mark.cluster
def test_all_servers_of_a_cluster_are_looked_at(connect: object) -> None:
    hw: Headwater = connect("cluster-sync")  # type: ignore[operator]
    names = [f"spread-{at}" for at in range(40)]
    for name in names:
        hw.stream(name).write("t", b"v")
    seen: list[str] = []
    report = hw.scrub(progress=lambda at: seen.append(at.name))
    assert set(names) <= set(seen)
    # Other tests may have left streams on these servers that no registry names.
    assert not [defect for defect in report.defects if defect.name in names]
