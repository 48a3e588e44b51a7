"""A stored node that cannot be read is an error, never wrong messages; the rest stays readable."""

from __future__ import annotations

import pytest

from headwater import Headwater, Stream, UnreadableNode
from headwater.log.keys import stream_key
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
