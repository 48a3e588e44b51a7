"""A scrub of Icks and channels reports what contradicts itself, and a repair cures it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import redis

from headwater import Headwater
from headwater.ick.keys import channel_key, shard_key
from tests.support.breaking import Break, assert_found_and_repaired
from tests.support.scrubbed import assert_sound
from tests.support.servers import Server
from tests.support.traffic import use_channel, use_ick


def _first(raw: redis.Redis, key: str) -> str:
    found: Any = raw.zrange(key, 0, 0)
    return str(found[0].decode())


def _both(raw: redis.Redis, shard: str) -> None:
    member = _first(raw, f"{shard}:ready")
    raw.zadd(f"{shard}:later", {member: 1})
    raw.zadd(f"{shard}:wish", {member: 1})


CHANNEL: dict[str, Break[str]] = {
    "a dirty member without an age": Break(
        lambda raw, shard: raw.zrem(f"{shard}:since", _first(raw, f"{shard}:ready")),
        "channel",
        "shard 0, member ",
        "a time since when it is dirty",
        "none",
    ),
    "an age of no member": Break(
        lambda raw, shard: raw.zadd(f"{shard}:since", {"ghost": 1}),
        "channel",
        "shard 0, member 'ghost'",
        "dirty, as it has an age",
        "not dirty",
    ),
    "a member that waits without a score": Break(
        lambda raw, shard: raw.zrem(f"{shard}:wish", _first(raw, f"{shard}:later")),
        "channel",
        "shard 0, member ",
        "a score for when its time comes",
        "none",
    ),
    "a member that waits without a time": Break(
        lambda raw, shard: raw.zrem(f"{shard}:later", _first(raw, f"{shard}:later")),
        "channel",
        "shard 0, member ",
        "a time before which it waits",
        "none",
    ),
    "a reserved member without a generation": Break(
        lambda raw, shard: raw.hdel(f"{shard}:made", _first(raw, f"{shard}:held")),
        "channel",
        "shard 0, member ",
        "the generation in which it was reserved",
        "none",
    ),
    "a generation of no member": Break(
        lambda raw, shard: raw.hset(f"{shard}:made", "ghost", 7),
        "channel",
        "shard 0, member 'ghost'",
        "reserved, as it has a generation",
        "not reserved",
    ),
    "a member that is dirty and waits": Break(
        _both, "channel", "shard 0, member ", "dirty, or waiting for a time", "both"
    ),
    "a lease of no numbers": Break(
        lambda raw, shard: raw.hset(shard, "token", "x"),
        "channel",
        "shard 0",
        "a lease of numbers",
        "b'x'",
        repairs=False,
    ),
    "a key of another type": Break(
        lambda raw, shard: raw.rename(f"{shard}:made", f"{shard}:held"),
        "channel",
        "key hw:cs:{",
        "a key that ZCARD can read",
        "WRONGTYPE",
        repairs=False,
    ),
}


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with Server() as server:
        yield server


def test_dirty_lists_that_were_used_in_all_ways_are_sound(client: Headwater, name: str) -> None:
    use_ick(client, name)
    use_channel(client, name, members=1500)
    report = client.scrub(name)
    assert report.defects == ()
    assert (report.objects, report.complete) == (2, True)
    client.ick_channel(name).reshard(5)
    assert_sound(client, name)


@pytest.mark.parametrize("what", CHANNEL)
def test_each_break_of_a_channel_is_found_where_it_is(server: Server, name: str, what: str) -> None:
    with Headwater(server.url) as hw, server.client() as raw:
        use_channel(hw, name)
        epoch: Any = raw.hget(channel_key(name), "epoch")
        shard = shard_key(name, int(epoch), 0)
        assert_found_and_repaired(hw, raw, shard, CHANNEL[what], name)


def test_an_ick_without_its_flag_is_found_and_gets_it_back(server: Server, name: str) -> None:
    with Headwater(server.url) as hw, server.client() as raw:
        use_ick(hw, name)
        case: Break[str] = Break(lambda raw, key: raw.delete(key), "ick", "flag", "ick.v1", "none")
        assert_found_and_repaired(hw, raw, name, case, name)
        assert dict(hw.ick(name).stats() or {})["cset_size"] > 0


def test_icks_are_found_by_their_keys(server: Server, name: str) -> None:
    with Headwater(server.url) as hw, server.client() as raw:
        use_ick(hw, name)
        raw.set(name, "something else")
        mine = [d for d in hw.scrub(kinds=["ick"]).defects if d.name == name]
        assert [(d.place, d.found, d.repair) for d in mine] == [("flag", "something else", None)]
        raw.set(name, "ick.v1")
        assert_sound(hw, name)


def test_a_topic_whose_partitions_are_no_number_is_found(server: Server, name: str) -> None:
    with Headwater(server.url) as hw, server.client() as raw:
        hw.topic(name, 2).write("t", b"v")
        case: Break[str] = Break(
            lambda raw, key: raw.hset(key, "partitions", "many"),
            "topic",
            "field partitions",
            "1 to 1024",
            "b'many'",
            repairs=False,
        )
        assert_found_and_repaired(hw, raw, f"hw:t:{{{name}}}", case, name)
        raw.hset(f"hw:t:{{{name}}}", "partitions", "2")
