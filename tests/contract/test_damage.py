"""A stored node that cannot be read is an error, never wrong messages; the rest stays readable."""

from __future__ import annotations

import pytest

from headwater import Headwater, Stream, UnreadableNode
from headwater.log.keys import index_key, nodes_key, stream_key
from tests.support.commands import run
from tests.support.entries import entries, pairs
from tests.support.servers import Server


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
