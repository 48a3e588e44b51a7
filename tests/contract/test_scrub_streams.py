"""A scrub of streams and groups reports what is damaged or contradictory, and a repair cures it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest
import redis

from headwater import Headwater, Stream
from headwater.log.keys import group_key, stream_key
from tests.support.breaking import Break, assert_found_and_repaired
from tests.support.entries import entries
from tests.support.groups import FAR
from tests.support.scrubbed import assert_sound
from tests.support.servers import Server
from tests.support.traffic import use_group, use_stream


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
        "stream",
        "node 3001-3600",
        "a node that can be read",
        "its checksum is wrong",
        repairs=False,
    ),
    "a node that is gone": Break(
        lambda raw, at: raw.hdel(f"{at.stream}:nodes", "3001"),
        "stream",
        "node 3001-3600",
        "a node",
        "none",
        repairs=False,
    ),
    "a row of the index that is gone": Break(
        lambda raw, at: raw.zremrangebyscore(f"{at.stream}:index", 3600, 3600),
        "stream",
        "offsets 3001-3600",
        "a node that holds them",
        "none",
        repairs=False,
    ),
    "a node that the index does not name": Break(
        lambda raw, at: raw.hset(f"{at.stream}:nodes", "77", b"left"),
        "stream",
        "node at 77",
        "a row of the index",
        "none",
    ),
    "the count of bytes": Break(
        lambda raw, at: raw.hincrby(at.stream, "bytes", 5), "stream", "field bytes", "", ""
    ),
    "the count of holes": Break(
        lambda raw, at: raw.hincrby(at.stream, "holes", -3), "stream", "field holes", "", ""
    ),
    "an entry beyond the end": Break(
        lambda raw, at: raw.xadd(f"{at.stream}:tail", {"k": "t", "v": "v", "t": 1}, id="0-3652"),
        "stream",
        "tail",
        "no entry beyond last, 3651",
        "entries 3652-3652",
    ),
    "an entry that is gone": Break(
        lambda raw, at: raw.xdel(f"{at.stream}:tail", "0-3645"),
        "stream",
        "offsets 3645-3645",
        "entries in the tail",
        "none",
        repairs=False,
    ),
    "the newest entry": Break(
        lambda raw, at: raw.xdel(f"{at.stream}:tail", "0-3651"),
        "stream",
        "tail",
        "entries up to 3651",
        "3650-3651 is missing",
        repairs=False,
    ),
    "the mark of cold nodes": Break(
        lambda raw, at: raw.hset(at.stream, "cold", "99999"),
        "stream",
        "field cold",
        "at most sealed, 3600",
        "99999",
    ),
    "an answer beyond the end": Break(
        lambda raw, at: raw.hset(f"{at.stream}:answers", b"bulk\x002", b"2:9001:9002"),
        "stream",
        "answer to producer 'bulk'",
        "numbers up to 3651, the last one given out",
        "b'2:9001:9002'",
        repairs=False,
    ),
    "a producer that is not listed": Break(
        lambda raw, at: raw.zrem(f"{at.stream}:producers", "bulk"),
        "stream",
        "producer 'bulk'",
        "the time of its latest write",
        "none",
    ),
    "a key of another type": Break(
        lambda raw, at: (
            raw.delete(f"{at.stream}:producers"),
            raw.set(f"{at.stream}:producers", "x"),
        ),
        "stream",
        "key hw:s:{",
        "a key that ZCARD can read",
        "WRONGTYPE",
        repairs=False,
    ),
    "the count of pending messages": Break(
        lambda raw, at: raw.hincrby(at.group, "pending", 4), "group", "field pending", "", ""
    ),
    "the count of dead letters": Break(
        lambda raw, at: raw.hincrby(at.group, "buried", -1), "group", "field buried", "", ""
    ),
    "a range that is never due": Break(
        lambda raw, at: raw.zrem(f"{at.group}:due", _start(raw, at)),
        "group",
        "pending range ",
        "a time when it is due, or a place to be buried",
        "neither: it is never redelivered",
    ),
    "a time of no range": Break(
        lambda raw, at: raw.zadd(f"{at.group}:due", {"999": FAR * 2000}),
        "group",
        "due 999",
        "a pending range",
        "none",
    ),
    "the time when something comes due": Break(
        lambda raw, at: raw.hset(at.group, "due", 10**15),
        "group",
        "field due",
        "",
        "1000000000000000",
    ),
    "a call that stopped half-way": Break(
        lambda raw, at: raw.hset(at.group, "torn", 1),
        "group",
        "fields",
        "no call that stopped half-way",
        "one",
    ),
    "a position that retention must not believe": Break(
        lambda raw, at: raw.zadd(f"{at.stream}:positions", {"workers": 3600}),
        "group",
        "position for retention",
        "which the group needs",
        "3600",
    ),
    "a range beyond the next offset": Break(
        lambda raw, at: raw.hset(at.group, "next", "1201"),
        "group",
        "pending range ",
        "below next, 1201",
        "up to ",
        repairs=False,
    ),
    "a next offset beyond the end": Break(
        lambda raw, at: raw.hset(at.group, "next", "9999"),
        "group",
        "field next",
        "1 to 3652",
        "9999",
        repairs=False,
    ),
    "a group without fields": Break(
        lambda raw, at: raw.zadd(f"{at.stream}:groups", {"ghost": 1}),
        "group",
        "fields",
        "a group",
        "nothing",
    ),
    "a stream of letters that is gone": Break(
        lambda raw, at: raw.delete(f"{at.stream[:-1]}.workers.dead}}"),
        "group",
        "dead letters",
        "letters up to offset ",
        "0",
        repairs=False,
    ),
}


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with Server() as server:
        yield server


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
