"""A scrub of streams and groups reports what is damaged or contradictory, and a repair cures it."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest
import redis

from headwater import Headwater, Stream
from headwater.ick.keys import channel_key, shard_key
from headwater.log.keys import group_key, stream_key
from headwater.queue.keys import queue_key
from headwater.queue.scrubbing import COUNTS
from tests.support.entries import entries
from tests.support.groups import FAR
from tests.support.scrubbed import Break, assert_found_and_repaired, assert_sound
from tests.support.servers import Server
from tests.support.traffic import use_channel, use_group, use_ick, use_queue, use_stream


class Keys(NamedTuple):
    """The keys of the stream and of the group."""

    stream: str
    group: str


def _flip(raw: redis.Redis, key: str, field: str) -> None:
    blob = bytearray(raw.hget(key, field) or b"")  # type: ignore[arg-type]
    blob[len(blob) // 2] ^= 1
    raw.hset(key, field, bytes(blob))


def _start(raw: redis.Redis, at: Keys) -> bytes:
    found: list[bytes] = raw.zrange(f"{at.group}:pending", 0, 0)  # type: ignore[assignment]
    return found[0].partition(b":")[0]


STREAM: dict[str, Break[Keys]] = {
    "a bit of a node": Break(
        lambda raw, at: _flip(raw, f"{at.stream}:nodes", "3001"),
        ("stream", "node 3001-3600", "a node that can be read", "its checksum is wrong"),
        repairs=False,
    ),
    "a node that is gone": Break(
        lambda raw, at: raw.hdel(f"{at.stream}:nodes", "3001"),
        ("stream", "node 3001-3600", "a node", "none"),
        repairs=False,
    ),
    "a row of the index that is gone": Break(
        lambda raw, at: raw.zremrangebyscore(f"{at.stream}:index", 3600, 3600),
        ("stream", "offsets 3001-3600", "a node that holds them", "none"),
        repairs=False,
    ),
    "a node that the index does not name": Break(
        lambda raw, at: raw.hset(f"{at.stream}:nodes", "77", b"left"),
        ("stream", "node at 77", "a row of the index", "none"),
    ),
    "the count of bytes": Break(
        lambda raw, at: raw.hincrby(at.stream, "bytes", 5), ("stream", "field bytes", "", "")
    ),
    "the count of holes": Break(
        lambda raw, at: raw.hincrby(at.stream, "holes", -3), ("stream", "field holes", "", "")
    ),
    "an entry beyond the end": Break(
        lambda raw, at: raw.xadd(f"{at.stream}:tail", {"k": "t", "v": "v", "t": 1}, id="0-3652"),
        ("stream", "tail", "no entry beyond last, 3651", "entries 3652-3652"),
    ),
    "an entry that is gone": Break(
        lambda raw, at: raw.xdel(f"{at.stream}:tail", "0-3645"),
        ("stream", "offsets 3645-3645", "entries in the tail", "none"),
        repairs=False,
    ),
    "the newest entry": Break(
        lambda raw, at: raw.xdel(f"{at.stream}:tail", "0-3651"),
        ("stream", "tail", "entries up to 3651", "3650-3651 is missing"),
        repairs=False,
    ),
    "the mark of cold nodes": Break(
        lambda raw, at: raw.hset(at.stream, "cold", "99999"),
        ("stream", "field cold", "at most sealed, 3600", "99999"),
    ),
    "an answer beyond the end": Break(
        lambda raw, at: raw.hset(f"{at.stream}:answers", b"bulk\x002", b"2:9001:9002"),
        (
            "stream",
            "answer to producer 'bulk'",
            "numbers up to 3651, the last one given out",
            "b'2:9001:9002'",
        ),
        repairs=False,
    ),
    "a producer that is not listed": Break(
        lambda raw, at: raw.zrem(f"{at.stream}:producers", "bulk"),
        ("stream", "producer 'bulk'", "the time of its latest write", "none"),
    ),
    "a key of another type": Break(
        lambda raw, at: (
            raw.delete(f"{at.stream}:producers"),
            raw.set(f"{at.stream}:producers", "x"),
        ),
        ("stream", "key hw:s:{", "a key that ZCARD can read", "WRONGTYPE"),
        repairs=False,
    ),
    "the count of pending messages": Break(
        lambda raw, at: raw.hincrby(at.group, "pending", 4), ("group", "field pending", "", "")
    ),
    "the count of dead letters": Break(
        lambda raw, at: raw.hincrby(at.group, "buried", -1), ("group", "field buried", "", "")
    ),
    "a range that is never due": Break(
        lambda raw, at: raw.zrem(f"{at.group}:due", _start(raw, at)),
        (
            "group",
            "pending range ",
            "a time when it is due, or a place to be buried",
            "neither: it is never redelivered",
        ),
    ),
    "a time of no range": Break(
        lambda raw, at: raw.zadd(f"{at.group}:due", {"999": FAR * 2000}),
        ("group", "due 999", "a pending range", "none"),
    ),
    "the time when something comes due": Break(
        lambda raw, at: raw.hset(at.group, "due", 10**15),
        ("group", "field due", "", "1000000000000000"),
    ),
    "a call that stopped half-way": Break(
        lambda raw, at: raw.hset(at.group, "torn", 1),
        ("group", "fields", "no call that stopped half-way", "one"),
    ),
    "a position that retention must not believe": Break(
        lambda raw, at: raw.zadd(f"{at.stream}:positions", {"workers": 3600}),
        ("group", "position for retention", "which the group needs", "3600"),
    ),
    "a range beyond the next offset": Break(
        lambda raw, at: raw.hset(at.group, "next", "1201"),
        ("group", "pending range ", "below next, 1201", "up to "),
        repairs=False,
    ),
    "a next offset beyond the end": Break(
        lambda raw, at: raw.hset(at.group, "next", "9999"),
        ("group", "field next", "1 to 3652", "9999"),
        repairs=False,
    ),
    "a group without fields": Break(
        lambda raw, at: raw.zadd(f"{at.stream}:groups", {"ghost": 1}),
        ("group", "fields", "a group", "nothing"),
    ),
    "a stream of letters that is gone": Break(
        lambda raw, at: raw.delete(f"{at.stream[:-1]}.workers.dead}}"),
        ("group", "dead letters", "letters up to offset ", "0"),
        repairs=False,
    ),
}


@pytest.fixture
def used(server: Server, name: str) -> Iterator[tuple[Headwater, Stream]]:
    with Headwater(server.url) as hw:
        stream = use_stream(hw, name)
        use_group(hw, stream)
        yield hw, stream


def test_a_stream_that_was_used_in_all_ways_is_sound(client: Headwater, name: str) -> None:
    use_group(client, use_stream(client, name))
    report = client.scrub(name)
    assert report.defects == ()
    assert report.complete
    assert report.objects == 3, "the stream and its two groups"
    assert report.bytes > 10_000


@pytest.mark.parametrize("what", STREAM)
def test_each_break_is_found_where_it_is(
    server: Server, used: tuple[Headwater, Stream], what: str
) -> None:
    hw, stream = used
    key = stream_key(stream.name)
    with server.client() as raw:
        keys = Keys(key, group_key(key, "workers"))
        assert_found_and_repaired(hw, raw, keys, STREAM[what], stream.name)


def test_a_stream_that_an_old_write_wedged_is_writable_after_a_repair(
    server: Server, name: str
) -> None:
    """An entry beyond `last` made each later write fail."""
    with Headwater(server.url) as hw, server.client() as raw:
        stream = hw.stream(name)
        stream.write_many(entries(5))
        raw.xadd(f"{stream_key(name)}:tail", {"k": "t", "v": "lost?", "t": 1}, id="0-6")
        report = hw.repair(name, dry_run=False)
        assert [d.place for d in report.repaired] == ["tail"]
        assert stream.write("t", b"new") == 7
        assert [m and m.value for m in stream.read(5, 9)] == [b"value-5", b"lost?", b"new"]
        assert_sound(hw, name)


def test_a_large_group_is_counted_in_pages(server: Server, name: str) -> None:
    with Headwater(server.url) as hw, server.client() as raw:
        stream = hw.stream(name)
        stream.write_many(entries(4000))
        group = stream.group("g")
        group.read(4000, ack_ms=FAR)
        group.ack(*range(1, 4000, 3))
        assert_sound(hw, name)
        key = group_key(stream_key(name), "g")
        raw.hincrby(key, "pending", 7)
        (defect,) = hw.scrub(name).defects
        assert (defect.expected, defect.found) == ("2667", "2674")
        hw.repair(name, dry_run=False)
        assert group.info().pending == 2667
        assert_sound(hw, name)


def test_a_scrub_can_be_stopped_and_reports_what_it_has_seen(server: Server, name: str) -> None:
    with Headwater(server.url) as hw:
        use_stream(hw, name)
        seen: list[Any] = []
        report = hw.scrub(name, progress=seen.append, stop=lambda: len(seen) > 0)
        assert not report.complete
        assert seen[0].name == name


# ── A scrub of queues reports what is damaged or contradictory, and a repair cures it ────────────


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
        lambda raw, key: _set_count(raw, key, "unacked", 99), ("queue", "counts", "unacked ", "99")
    ),
    "the count of dead letters": Break(
        lambda raw, key: _set_count(raw, key, "dead", 0), ("queue", "counts", "dead ", "dead 0")
    ),
    "the count of bundled messages": Break(
        lambda raw, key: _set_count(raw, key, "bundled", 7), ("queue", "count bundled", "", "7")
    ),
    "the earliest deadline": Break(
        lambda raw, key: _set_count(raw, key, "soonest", 1e18),
        ("queue", "count soonest", "or earlier", "1000000000000000000"),
    ),
    "counters of another size": Break(
        lambda raw, key: raw.hset(key, "counts", b"x"),
        ("queue", "field counts", "packed numbers", "1 bytes"),
        repairs=False,
    ),
    "a bundle that is gone": Break(
        lambda raw, key: raw.hdel(f"{key}:bundles", _number(raw, key, "delayed:0")),
        ("queue", "delayed bundle ", "12 messages", "0"),
        repairs=False,
    ),
    "a bundle that is cut off": Break(
        _cut, ("queue", "delayed bundle ", "12 messages", ""), repairs=False
    ),
    "a text of a list": Break(
        lambda raw, key: raw.lset(f"{key}:ready:0", 0, "what is this"),
        ("queue", "ready, priority 0", "messages that can be read", "what is this"),
        repairs=False,
    ),
    "what was put aside": Break(
        lambda raw, key: raw.rpush(f"{key}:damaged", "x"),
        ("queue", "damaged", "no message that was put aside", "1"),
        repairs=False,
    ),
    "a key of another type": Break(
        lambda raw, key: raw.rename(f"{key}:bundles", f"{key}:waiters"),
        ("queue", "key hw:q:{", "a key that ZCARD can read", "WRONGTYPE"),
        repairs=False,
    ),
}


def test_a_queue_that_was_used_in_all_ways_is_sound(client: Headwater, name: str) -> None:
    use_queue(client, name)
    report = client.scrub(name)
    assert report.defects == ()
    assert report.unsettled == ()
    assert (report.objects, report.complete) == (1, True)


@pytest.mark.parametrize("what", QUEUE)
def test_each_break_of_a_queue_is_found_where_it_is(server: Server, name: str, what: str) -> None:
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


# ── A scrub of Icks and channels reports what contradicts itself, and a repair cures it ──────────


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
        ("channel", "shard 0, member ", "a time since when it is dirty", "none"),
    ),
    "an age of no member": Break(
        lambda raw, shard: raw.zadd(f"{shard}:since", {"ghost": 1}),
        ("channel", "shard 0, member 'ghost'", "dirty, as it has an age", "not dirty"),
    ),
    "a member that waits without a score": Break(
        lambda raw, shard: raw.zrem(f"{shard}:wish", _first(raw, f"{shard}:later")),
        ("channel", "shard 0, member ", "a score for when its time comes", "none"),
    ),
    "a member that waits without a time": Break(
        lambda raw, shard: raw.zrem(f"{shard}:later", _first(raw, f"{shard}:later")),
        ("channel", "shard 0, member ", "a time before which it waits", "none"),
    ),
    "a reserved member without a generation": Break(
        lambda raw, shard: raw.hdel(f"{shard}:made", _first(raw, f"{shard}:held")),
        ("channel", "shard 0, member ", "the generation in which it was reserved", "none"),
    ),
    "a generation of no member": Break(
        lambda raw, shard: raw.hset(f"{shard}:made", "ghost", 7),
        ("channel", "shard 0, member 'ghost'", "reserved, as it has a generation", "not reserved"),
    ),
    "a member that is dirty and waits": Break(
        _both, ("channel", "shard 0, member ", "dirty, or waiting for a time", "both")
    ),
    "a lease of no numbers": Break(
        lambda raw, shard: raw.hset(shard, "token", "x"),
        ("channel", "shard 0", "a lease of numbers", "b'x'"),
        repairs=False,
    ),
    "a key of another type": Break(
        lambda raw, shard: raw.rename(f"{shard}:made", f"{shard}:held"),
        ("channel", "key hw:cs:{", "a key that ZCARD can read", "WRONGTYPE"),
        repairs=False,
    ),
}


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
        case: Break[str] = Break(
            lambda raw, key: raw.delete(key), ("ick", "flag", "ick.v1", "none")
        )
        assert_found_and_repaired(hw, raw, name, case, name)
        stats = hw.ick(name).stats()
        assert stats is not None
        assert stats["cset_size"] > 0


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
            ("topic", "field partitions", "1 to 1024", "b'many'"),
            repairs=False,
        )
        assert_found_and_repaired(hw, raw, f"hw:t:{{{name}}}", case, name)
        raw.hset(f"hw:t:{{{name}}}", "partitions", "2")
