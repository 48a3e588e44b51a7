"""Offsets keep all their digits, up to the largest that a sorted set can tell apart."""

from __future__ import annotations

import pytest

from headwater import Headwater, Stream
from headwater.log.keys import stream_key
from tests.support.entries import entries, offsets, pairs
from tests.support.groups import FAR
from tests.support.servers import Server


def far_along(server: Server, hw: Headwater, name: str, last: int) -> Stream:
    """Make a stream as if ``last`` messages had been written and evicted."""
    stream = hw.stream(name)
    stream.write("t", b"v")
    stream.evict(1)
    with server.client() as raw:
        raw.hset(stream_key(name), mapping={"last": last, "first": last + 1, "sealed": last})
    return stream


@pytest.mark.parametrize(
    "last", [10**6, 2**31 - 5, 2**32 - 5, 10**14 - 5, 10**15 - 5, 2**53 - 9000]
)
def test_everything_works_at_large_offsets(name: str, last: int) -> None:
    with Server() as server, Headwater(server.url) as hw:
        stream = far_along(server, hw, name, last)
        rows = [*entries(5), *entries(60), *entries(1200), *entries(3), *entries(700)]
        at = last + 1
        for size in (5, 60, 1200, 3, 700):
            first = rows[at - last - 1 : at - last - 1 + size]
            assert stream.write_many(first, producer="p", sequence=at) == range(at, at + size)
            assert stream.write_many(first, producer="p", sequence=at) == range(at, at + size)
            at += size
        assert pairs(stream.read(last + 1, 5000)) == rows
        stream.seal()
        assert pairs(stream.read(last + 1, 5000)) == rows

        group = stream.group("g", last + 3, dead_letters=True)
        assert offsets(group.read(100, ack_ms=FAR)) == list(range(last + 3, last + 103))
        assert group.ack((last + 1, last + 10), last + 50) == 9
        assert group.nack((last + 40, last + 60)) == 20
        again = [offset for offset in range(last + 40, last + 61) if offset != last + 50]
        assert sorted(offsets(group.read(20, ack_ms=FAR))) == again
        info = group.info()
        assert (info.next, info.ack_offset, info.pending) == (last + 103, last + 11, 91)
        assert group.seek(last + 1900) == last + 1900
        assert offsets(group.read(2)) == [last + 1900, last + 1901]

        assert stream.evict(last + 1500) == 1500
        assert stream.retain(max_count=400, force=True).evicted == 68
        assert stream.compact() == 393
        found = [(m.offset, m.tag) for m in stream.read(last + 1, 5000) if m]
        assert found == [(last + i, rows[i - 1][0]) for i in range(1962, 1969)]
        assert stream.evict(last + 1963) == 2
        info_now = stream.info()
        assert (info_now.first, info_now.last) == (last + 1964, last + 1968)
        assert stream.offset_at(0) == last + 1964
        assert stream.write("t", b"v", backlog=2) == last + 1969
