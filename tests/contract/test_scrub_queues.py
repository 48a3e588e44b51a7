"""A scrub of queues reports what is damaged or contradictory, and a repair cures it."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any

import pytest
import redis

from headwater import Headwater
from headwater.queue.keys import queue_key
from headwater.queue.scrubbing import COUNTS
from tests.support.breaking import Break, assert_found_and_repaired
from tests.support.groups import FAR
from tests.support.scrubbed import assert_sound
from tests.support.servers import Server
from tests.support.traffic import use_queue


def _set_count(raw: redis.Redis, key: str, name: str, value: float) -> None:
    packed: Any = raw.hget(key, "counts")
    counts = list(struct.unpack(f">{len(packed) // 8}d", packed))
    counts[COUNTS.index(name)] = value
    raw.hset(key, "counts", struct.pack(f">{len(counts)}d", *counts))


def _name(raw: redis.Redis, key: str, part: str) -> bytes:
    found: Any = raw.zrange(f"{key}:{part}", 0, 0)
    return bytes(found[0])


def _number(raw: redis.Redis, key: str, part: str) -> str:
    return _name(raw, key, part).partition(b":")[0].decode()


def _cut(raw: redis.Redis, key: str) -> None:
    number = _number(raw, key, "delayed:0")
    text: Any = raw.hget(f"{key}:bundles", number)
    raw.hset(f"{key}:bundles", number, text[:-3])


QUEUE: dict[str, Break[str]] = {
    "the count of unacknowledged messages": Break(
        lambda raw, key: _set_count(raw, key, "unacked", 99), "queue", "counts", "unacked ", "99"
    ),
    "the count of dead letters": Break(
        lambda raw, key: _set_count(raw, key, "dead", 0), "queue", "counts", "dead ", "dead 0"
    ),
    "the count of bundled messages": Break(
        lambda raw, key: _set_count(raw, key, "bundled", 7), "queue", "count bundled", "", "7"
    ),
    "the earliest deadline": Break(
        lambda raw, key: _set_count(raw, key, "soonest", 1e18),
        "queue",
        "count soonest",
        "or earlier",
        "1000000000000000000",
    ),
    "counters of another size": Break(
        lambda raw, key: raw.hset(key, "counts", b"x"),
        "queue",
        "field counts",
        "packed numbers",
        "1 bytes",
        repairs=False,
    ),
    "a bundle that is gone": Break(
        lambda raw, key: raw.hdel(f"{key}:bundles", _number(raw, key, "delayed:0")),
        "queue",
        "delayed bundle ",
        "12 messages",
        "0",
        repairs=False,
    ),
    "a bundle that is cut off": Break(
        _cut, "queue", "delayed bundle ", "12 messages", "", repairs=False
    ),
    "a text of a list": Break(
        lambda raw, key: raw.lset(f"{key}:ready:0", 0, "what is this"),
        "queue",
        "ready, priority 0",
        "messages that can be read",
        "what is this",
        repairs=False,
    ),
    "what was put aside": Break(
        lambda raw, key: raw.rpush(f"{key}:damaged", "x"),
        "queue",
        "damaged",
        "no message that was put aside",
        "1",
        repairs=False,
    ),
    "a key of another type": Break(
        lambda raw, key: raw.rename(f"{key}:bundles", f"{key}:waiters"),
        "queue",
        "key hw:q:{",
        "a key that ZCARD can read",
        "WRONGTYPE",
        repairs=False,
    ),
}


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with Server() as server:
        yield server


def test_a_queue_that_was_used_in_all_ways_is_sound(client: Headwater, name: str) -> None:
    use_queue(client, name)
    report = client.scrub(name)
    assert report.defects == ()
    assert report.unsettled == ()
    assert (report.objects, report.complete) == (1, True)


@pytest.mark.parametrize("what", QUEUE)
def test_each_break_is_found_where_it_is(server: Server, name: str, what: str) -> None:
    with Headwater(server.url) as hw, server.client() as raw:
        use_queue(hw, name)
        assert_found_and_repaired(hw, raw, queue_key(name), QUEUE[what], name)


def test_messages_whose_bundle_lost_its_name_are_redelivered(server: Server, name: str) -> None:
    with Headwater(server.url) as hw, server.client() as raw:
        queue = hw.queue(name)
        queue.push_many([b"%d" % at for at in range(20)])
        taken = queue.pop(12, ack_ms=FAR)
        queue.extend(*taken[3:5], ack_ms=2 * FAR)
        key = queue_key(name)
        raw.zrem(f"{key}:unacked:0", _name(raw, key, "unacked:0"))
        assert hw.scrub(name).defects
        report = hw.repair(name, dry_run=False)
        assert report.left == ()
        assert_sound(hw, name)
        again = queue.pop(100, ack_ms=FAR)
        assert sorted(int(m.value) for m in again) == list(range(20))
        assert queue.ack(*again) == 20
        assert_sound(hw, name)


def test_a_large_queue_is_counted_in_pages(server: Server, name: str) -> None:
    with Headwater(server.url) as hw, server.client() as raw:
        queue = hw.queue(name)
        queue.push_many([b"v"] * 5000)
        for _ in range(700):
            queue.pop(1, ack_ms=FAR)
        assert_sound(hw, name)
        _set_count(raw, queue_key(name), "unacked", 701)
        (defect,) = hw.scrub(name).defects
        assert (defect.expected, defect.found) == ("unacked 700", "unacked 701")
        assert hw.repair(name, dry_run=False).left == ()
        assert_sound(hw, name)
