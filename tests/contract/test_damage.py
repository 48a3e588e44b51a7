"""A stored node that cannot be read is an error, never wrong messages; the rest stays readable."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest
import redis

import headwater
from headwater import GapError, Headwater, Limits, Message, MissingMessages, Stream, UnreadableNode
from headwater.log.keys import index_key, nodes_key, stream_key, tail_key
from headwater.store import embedded
from headwater.store.library import name_in_server
from tests.support.commands import run
from tests.support.consumers import Desk, drain, numbers
from tests.support.entries import entries, flips, offsets, pairs
from tests.support.servers import Server, until
from tests.support.stores import Stores


def damage(server: Server, stream: Stream, base: int) -> None:
    with server.client() as raw:
        nodes = f"{stream_key(stream.name)}:nodes"
        blob = bytearray(raw.hget(nodes, str(base)) or b"")
        blob[len(blob) // 2] ^= 0xFF
        raw.hset(nodes, str(base), bytes(blob))


def test_a_damaged_node_is_refused_and_the_others_are_read(name: str) -> None:
    with Server() as server, Headwater(server.url) as hw:
        stream = hw.stream(name)
        rows = entries(3000)
        for at in range(0, 3000, 1000):
            stream.write_many(rows[at : at + 1000])
        damage(server, stream, 1001)
        fresh = hw.stream(name)
        assert pairs(fresh.read(1, 1000)) == rows[:1000]
        assert pairs(fresh.read(2001, 1000)) == rows[2000:]
        for use in (
            lambda: fresh.read(1500, 1),
            lambda: list(fresh.scan()),
            lambda: fresh.group("g", 1001).read(10),
            fresh.compact,
        ):
            with pytest.raises(UnreadableNode, match="damaged"):
                use()
        assert fresh.evict(2000) == 2000
        assert pairs(fresh.read(2001, 1000)) == rows[2000:]
        assert fresh.compact() == 993


def damage_row(server: Server, stream: Stream, place: int) -> None:
    """Make the row of one node in the index unreadable."""
    with server.client() as raw:
        index = index_key(stream_key(stream.name))
        ((member, score),) = raw.zrange(index, place, place, withscores=True)
        raw.zrem(index, member)
        raw.zadd(index, {b"?" + member: score})


def test_an_eviction_drops_a_node_whose_row_cannot_be_read(name: str) -> None:
    with Server() as server, Headwater(server.url) as hw:
        for place, within in ((0, 0), (1, 0), (3, 0), (0, 10), (1, 10), (3, 10)):
            stream, rows = hw.stream(f"{name}-{place}-{within}"), entries(4000)
            for at in range(0, 4000, 1000):
                stream.write_many(rows[at : at + 1000])
            before, end = stream.info().bytes, (place + 1) * 1000
            damage_row(server, stream, place)
            with pytest.raises(UnreadableNode, match="row of the index"):
                hw.stream(stream.name).read(place * 1000 + 1, 1)
            gone = stream.evict(place * 1000 + within) + stream.evict(end)
            assert gone == end
            assert pairs(stream.read(end + 1, 5000)) == rows[end:]
            info = stream.info()
            assert (info.length, info.nodes) == (4000 - end, 3 - place)
            assert info.bytes == pytest.approx(before * info.nodes / 4, rel=0.1, abs=400)
            with server.client() as raw:
                assert raw.hlen(nodes_key(stream_key(stream.name))) == info.nodes
            stream.write_many(rows[:1000])
            assert stream.info().length == 5000 - end


def test_a_compacted_node_whose_row_cannot_be_read_is_evicted_as_a_whole(name: str) -> None:
    with Server() as server, Headwater(server.url) as hw:
        stream, rows = hw.stream(name), entries(3000, tags=1500)
        for at in range(0, 3000, 1000):
            stream.write_many(rows[at : at + 1000])
        stream.compact()
        length, last = stream.info().length, 2000
        damage_row(server, stream, 0)
        with pytest.raises(UnreadableNode):
            stream.evict(1700)
        assert stream.info().length == length
        stream.evict(last)
        assert stream.info().length == 1000
        assert pairs(stream.read(2001, 1000)) == rows[2000:]


def test_a_housekeeper_reports_a_damaged_stream_and_looks_after_the_others(name: str) -> None:
    with Server() as server, Headwater(server.url) as hw:
        damaged, other = hw.stream(f"{name}-a"), hw.stream(f"{name}-b")
        for stream in (damaged, other):
            stream.write_many(entries(1000))
            stream.write_many(entries(1000))
        damaged.retain(max_bytes=10**9)
        other.register_reader("r", 1)
        other.retain(max_count=10)
        damage_row(server, damaged, 0)
        other.forget_reader("r")
        with server.client() as raw:
            raw.hset(stream_key(damaged.name), "max_bytes", 1)
        kept = run(server.url, "keep", "--once")
        assert kept.code == 1
        assert f"stream '{damaged.name}'" in kept.err
        assert other.info().length == 10


# ── A bit that changes in an entry at rest is noticed, by whichever way the message is read ──────


ROWS: list[tuple[str, bytes, dict[str, bytes]]] = [
    ("ride-1", b"moved", {}), ("", b"", {}), ("é", b"0 1 2 3", {}), ("t", b"v", {"a": b"1"})
]  # fmt: skip


@pytest.fixture(scope="module")
def client(server: Server) -> Iterator[Headwater]:
    with Headwater(server.url) as client:
        yield client


Row = tuple[int, str, bytes, int, Mapping[str, bytes]]


def as_row(message: Message) -> Row:
    return (message.offset, message.tag, message.value, message.time_ms, message.headers)


def by_read(stream: Stream) -> list[Row]:
    return [as_row(m) for m in stream.read(1, 1000) if m is not None]


def by_read_from(stream: Stream) -> list[Row]:
    return [as_row(m) for m in stream.read_from(1, 1000).messages]


def by_blocking(stream: Stream) -> list[Row]:
    last = stream.info().last
    return [as_row(m) for m in stream.read(last, 1, block_ms=1) if m is not None]


def by_scan(stream: Stream) -> list[Row]:
    rows = [row for batch in stream.scan(headers=True) for row in batch.to_pylist()]
    return [
        (
            r["offset"],
            r["tag"],
            r["value"],
            int(r["time"].timestamp() * 1000 + 0.5),
            dict(r["headers"]),
        )
        for r in rows
    ]


def by_group(stream: Stream) -> list[Row]:
    return [as_row(m) for m in stream.group(secrets.token_hex(4)).read(1000)]


WAYS: dict[str, Callable[[Stream], list[Row]]] = {
    "read": by_read,
    "read_from": by_read_from,
    "blocking": by_blocking,
    "scan": by_scan,
    "group": by_group,
}


def changed_fields(fields: list[bytes], step: int = 1) -> Iterator[list[bytes]]:
    """Give the fields of an entry with each bit of each of them changed in turn."""
    for place, text in enumerate(fields):
        for number, changed in enumerate(flips(text)):
            if number % step == 0:
                yield [*fields[:place], changed, *fields[place + 1 :]]


def put_last(raw: redis.Redis, key: str, entry_id: bytes, fields: list[bytes]) -> None:
    """Put an entry in the place of a tail that has only this one."""
    raw.delete(tail_key(key))
    raw.execute_command("XADD", tail_key(key), entry_id, *fields)


def last_entry(raw: redis.Redis, key: str) -> tuple[bytes, list[bytes]]:
    reply = raw.execute_command("XREVRANGE", tail_key(key), "+", "-", "COUNT", 1)
    entry_id, pairs = reply[0]
    return entry_id, [part for pair in pairs.items() for part in pair]


def assert_none_is_altered(
    stream: Stream, read: Callable[[Stream], list[Row]], right: list[Row], where: object
) -> bool:
    """Fail if a way of reading gives other messages; returns whether the damage was noticed."""
    try:
        found = read(stream)
    except UnreadableNode as error:
        found, place = [], (error.stream, error.offset)
    if not found:
        assert place[0] == stream.name
        assert place[1] in [row[0] for row in right]
        return True
    assert found == right[-len(found) :], where
    return False


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("row", ROWS, ids=["text", "empty", "unicode", "headers"])
def test_no_flipped_bit_of_a_plain_entry_alters_a_message(
    server: Server, client: Headwater, way: str, row: tuple[str, bytes, dict[str, bytes]]
) -> None:
    stream = client.stream(secrets.token_hex(4))
    stream.write(*row[:2], headers=row[2])
    right, key = by_read(stream), stream_key(stream.name)
    noticed = 0
    with server.client() as raw:
        entry_id, fields = last_entry(raw, key)
        for changed in changed_fields(fields):
            put_last(raw, key, entry_id, changed)
            noticed += assert_none_is_altered(stream, WAYS[way], right, changed)
        # Not the names of fields, which tell nothing, but each bit of tag, value, time, checksum.
        assert noticed >= 8 * sum(map(len, fields[1::2]))
        put_last(raw, key, entry_id, fields)
    assert WAYS[way](stream) == right


@pytest.mark.parametrize("way", WAYS)
def test_no_flipped_bit_of_a_packed_entry_alters_a_message(
    server: Server, client: Headwater, way: str
) -> None:
    stream = client.stream(secrets.token_hex(4))
    stream.write_many(entries(20))
    right, key = by_read(stream), stream_key(stream.name)
    with server.client() as raw:
        entry_id, fields = last_entry(raw, key)
        for changed in changed_fields(fields, step=13):
            put_last(raw, key, entry_id, changed)
            assert_none_is_altered(stream, WAYS[way], right, changed)


@pytest.mark.parametrize("count", [1, 20])
def test_a_damaged_entry_is_not_sealed_into_a_node(
    server: Server, client: Headwater, count: int
) -> None:
    stream = client.stream(secrets.token_hex(4))
    stream.write_many(entries(count))
    right, key = by_read(stream), stream_key(stream.name)
    with server.client() as raw:
        entry_id, fields = last_entry(raw, key)
        for place in (1, 3, 5):
            for text in list(flips(fields[place]))[::7]:
                put_last(raw, key, entry_id, [*fields[:place], text, *fields[place + 1 :]])
                with pytest.raises(UnreadableNode):
                    stream.seal()
        assert stream.info().sealed == 0
        put_last(raw, key, entry_id, fields)
    assert stream.seal() == count
    assert by_read(stream) == right


@pytest.mark.parametrize("way", ["read", "read_from", "scan", "group"])
def test_no_flipped_bit_of_a_row_of_the_index_alters_a_message(
    server: Server, client: Headwater, way: str
) -> None:
    name = secrets.token_hex(4)
    client.stream(name).write_many(entries(600))
    right, key = by_read(client.stream(name)), stream_key(name)
    with server.client() as raw:
        ((member, score),) = raw.zrange(index_key(key), 0, -1, withscores=True)
        parts = member.split(b":")
        for place in (0, 3, 5):
            for text in flips(parts[place]):
                if not text.isdigit():
                    continue
                raw.delete(index_key(key))
                changed = b":".join([*parts[:place], text, *parts[place + 1 :]])
                raw.zadd(index_key(key), {changed: score})
                try:
                    found = WAYS[way](client.stream(name))
                except UnreadableNode:
                    continue
                assert found in (right, []), changed


def test_entries_without_a_checksum_stay_readable(server: Server, client: Headwater) -> None:
    stream = client.stream(secrets.token_hex(4))
    key = stream_key(stream.name)
    with server.client() as raw:
        write = name_in_server("hw_stream_write")
        raw.execute_command("FCALL", write, 1, key, "", "", "", "plain", "t", "v")
        _, fields = last_entry(raw, key)
        assert b"-" not in fields[5]
    for way in WAYS.values():
        assert [row[:3] for row in way(stream)] == [(1, "t", b"v")]


# ── A message that the store has lost in the middle of a stream is told by every reader ──────────
# Offsets between the first and the last that have neither a node nor an entry are damage, unlike
# those that compaction emptied.


@pytest.fixture
def hw(server: Server) -> Iterator[Headwater]:
    with Headwater(server.url) as client:
        yield client


def lose_entry(server: Server, name: str, last: int) -> None:
    """Take an entry out of the tail, as a flipped bit in the key of its XADD does."""
    with server.client() as raw:
        assert raw.xdel(tail_key(stream_key(name)), f"0-{last}") == 1


def lose_row(server: Server, name: str, last: int) -> None:
    with server.client() as raw:
        assert raw.zremrangebyscore(index_key(stream_key(name)), last, last) == 1


# What is lost, of how many messages: some are written one by one, some packed, some as nodes.
Loss = tuple[int, int]
LOSSES = {
    "plain": (5, 5),
    "first": (1, 1),
    "last": (9, 9),
    "packed": (4, 23),
    "node": (1001, 2000),
    "newest node": (2001, 3000),
}


def lossy(server: Server, stream: Stream, kind: str) -> Loss:
    if "node" in kind:
        for at in range(1, 3001, 1000):
            stream.write_many(entries(1000, at))
        lose_row(server, stream.name, LOSSES[kind][1])
        stream.write_many(entries(3, 3001))
    elif kind == "packed":
        stream.write_many(entries(3))
        stream.write_many(entries(20, 4))
        stream.write_many(entries(3, 24))
        lose_entry(server, stream.name, 23)
    else:
        for row in entries(9):
            stream.write(*row)
        lose_entry(server, stream.name, LOSSES[kind][0])
    return LOSSES[kind]


def read_on(stream: Stream, *, step: int = 4000) -> list[int]:
    found, at = [], 1
    while at <= stream.info().last:
        passage = stream.read_from(at, step)
        found += offsets(passage.messages)
        at = passage.next
    return found


LOSSY_WAYS: dict[str, Callable[[Stream, Loss], object]] = {
    "read": lambda stream, _: stream.read(1, 5000),
    "read it": lambda stream, lost: stream.read(lost[1], 1),
    "read with info": lambda stream, lost: stream.read(lost[0], 1, with_info=True),
    "blocked": lambda stream, lost: stream.read(lost[0], 1, block_ms=1),
    "read_from": lambda stream, _: read_on(stream),
    "in steps": lambda stream, _: read_on(stream, step=2),
    "scan": lambda stream, _: list(stream.scan()),
    "scan it": lambda stream, lost: list(stream.scan(lost[0], lost[1] + 1)),
    "search": lambda stream, _: stream.search(tag="none"),
    "search back": lambda stream, _: stream.search(tag="none", newest_first=True),
}


@pytest.mark.parametrize("kind", LOSSES)
def test_every_way_of_reading_raises(server: Server, hw: Headwater, name: str, kind: str) -> None:
    stream = hw.stream(name)
    first, last = lossy(server, stream, kind)
    for way, read in LOSSY_WAYS.items():
        if way == "in steps" and last > 1000:
            continue
        with pytest.raises(MissingMessages, match="has lost the messages") as told:
            read(hw.stream(name), (first, last))
        assert told.value.stream == name, way
        assert first <= told.value.first <= told.value.last <= last, way
        assert isinstance(told.value, UnreadableNode)
    # Around it, everything is there.
    end = stream.info().last
    if first > 1:
        assert offsets(stream.read(1, first - 1)) == list(range(1, first))
    assert offsets(stream.read(last + 1, 9)) == list(range(last + 1, end + 1))[:9]
    assert stream.info().missing == ((first, last),)


@pytest.mark.parametrize("ack_ms", [None, 60_000])
@pytest.mark.parametrize("kind", LOSSES)
def test_a_group_counts_what_is_lost_and_delivers_the_rest(
    server: Server, hw: Headwater, name: str, kind: str, ack_ms: int | None
) -> None:
    stream = hw.stream(name)
    first, last = lossy(server, stream, kind)
    there = [n for n in range(1, stream.info().last + 1) if not first <= n <= last]
    group, found = stream.group("g"), []
    while messages := group.read(700, ack_ms=ack_ms):
        found += offsets(messages)
    assert found == there
    info = group.info()
    assert (info.missed, info.pending) == (last - first + 1, len(there) if ack_ms else 0)
    assert (info.gaps[0][0], info.gaps[-1][1]) == (first, last)
    told = stream.info().missing
    assert (told[0][0], told[-1][1]) == (first, last)


@pytest.mark.parametrize("keeping", ["ordered", "limits"])
def test_a_group_that_notes_tags_counts_what_is_lost_once(
    server: Server, hw: Headwater, name: str, keeping: str
) -> None:
    stream = hw.stream(name)
    lossy(server, stream, "plain")
    members = [stream.group("g", ordered=keeping == "ordered", member=m) for m in ("a", "b")]
    if keeping == "limits":
        members[0].limit(Limits(max_in_flight_per_key=1))
    found = []
    while messages := [m for member in members for m in member.read(3, ack_ms=60_000)]:
        found += offsets(messages)
        members[0].ack(*offsets(messages))
    assert sorted(found) == [1, 2, 3, 4, 6, 7, 8, 9]
    info = members[0].info()
    assert (info.missed, info.gaps, info.pending) == (1, ((5, 5),), 0)


def test_a_blocked_member_is_told_what_is_lost(server: Server, hw: Headwater, name: str) -> None:
    stream = hw.stream(name)
    stream.write_many(entries(3))
    group = stream.group("g")
    assert len(group.read(10, ack_ms=60_000)) == 3
    lock, found = threading.Event(), []

    def wait() -> None:
        with Headwater(server.url) as other:
            found.extend(other.stream(name).group("g").read(10, block_ms=60_000, ack_ms=60_000))
        lock.set()

    with server.client() as raw:
        # The next entry is lost before anybody reads it: only the one after it is told.
        raw.hset(stream_key(name), "last", 4)
        thread = threading.Thread(target=wait)
        thread.start()
        until(lambda: group.info().missed == 1)
        stream.write("tag", b"after")
        assert lock.wait(60)
        thread.join()
    assert offsets(found) == [5]
    assert (group.info().missed, group.info().gaps) == (1, ((4, 4),))


def test_sealing_and_compaction_do_not_hide_a_loss(
    server: Server, hw: Headwater, name: str
) -> None:
    stream = hw.stream(name)
    lossy(server, stream, "plain")
    for change in (stream.seal, stream.compact):
        with pytest.raises(MissingMessages):
            change()
    assert stream.info().sealed == 0
    nodes = hw.stream(f"{name}-nodes")
    first, last = lossy(server, nodes, "node")
    assert nodes.compact() > 0
    for offset in (first, last):
        with pytest.raises(MissingMessages):
            nodes.read(offset, 1)
    # All that is left of the seven tags is at the end.
    assert [row[1] for row in pairs(nodes.read(2990, 20)) if row][-1] == b"value-3003"
    assert [d.place for d in hw.scrub(name).defects] == ["offsets 5-5"]
    found = hw.scrub(nodes.name).defects
    assert f"offsets {first}-{last}" in [defect.place for defect in found]
    # The only copy of messages is no leftover.
    assert [defect.cure for defect in found if defect.place == f"node at {first}"] == [
        "restore the stream from a backup; the messages are in this node"
    ]


def test_the_command_line_names_what_is_lost(server: Server, hw: Headwater, name: str) -> None:
    first, last = lossy(server, hw.stream(name), "packed")
    hw.stream(name).group("g").read(100)
    info = run(server.url, "stream", "info", name)
    assert f"{first}-{last}" in info.out
    said = f"the store has lost messages {first} to {last} of stream '{name}'"
    report = run(server.url, "doctor", "--json").row
    assert said in [check["found"] for check in report["checks"]]


def test_eviction_ends_a_loss(server: Server, hw: Headwater, name: str) -> None:
    stream = hw.stream(name)
    lossy(server, stream, "plain")
    with pytest.raises(MissingMessages):
        stream.read(1, 9)
    stream.evict(5)
    assert stream.read(5, 2)[0] is None
    assert stream.info().missing == ()
    assert stream.seal() == 4


def test_a_replay_counts_what_is_lost(server: Server, hw: Headwater, name: str) -> None:
    stream = hw.stream(name)
    lossy(server, stream, "plain")
    done = hw.replay(name, into=f"{name}-copy")
    assert (done.written, done.missed, done.complete) == (8, 1, True)


@pytest.mark.damages
def test_a_sql_consumer_stops_or_counts(desk: Desk, stores: Stores, name: str) -> None:
    stream = desk.hw.stream(name)
    for row in entries(9):
        stream.write(*row)
    with redis.Redis.from_url(stores.url("plain")) as raw:
        raw.xdel(tail_key(stream_key(name)), "0-5")
    with pytest.raises(GapError, match="lost offsets 5 to 5"):
        drain(desk.consumer("c", name))
    assert desk.effects("c") == numbers(1, 4)
    consumer = desk.consumer("c", name, on_gap="skip")
    drain(consumer)
    assert desk.effects("c") == numbers(1, 4) + numbers(6, 9)
    assert (consumer.stats.missed, consumer.stats.gaps) == (1, [(name, 5, 5)])


def test_a_flipped_bit_in_the_file_of_a_store_is_told(tmp_path: Path) -> None:
    directory = tmp_path / "data"
    with headwater.connect(f"embedded://{directory}") as hw:
        for row in entries(9):
            hw.stream("rides").write(*row)
    embedded.stop(directory)
    file = embedded.newest_file(directory)
    assert file is not None
    text = bytearray(file.read_bytes())
    place = text.index(b"hw:s:{rides}:tail\r\n$3\r\n0-5")
    text[place + 7] ^= 1
    file.write_bytes(text)
    with headwater.connect(f"embedded://{directory}") as hw:
        with pytest.raises(MissingMessages, match="messages 5 to 5 of stream 'rides'"):
            hw.stream("rides").read(1, 9)
        assert len(hw.stream("rides").group("g").read(9)) == 8
        assert hw.stream("rides").group("g").info().missed == 1
    embedded.stop(directory)
