"""Eviction is exact, whatever it cuts through; offsets never move."""

from __future__ import annotations

import pyarrow as pa
import pytest

from headwater import Stream
from tests.support.entries import entries, offsets, pairs


def write_layout(stream: Stream, layout: str) -> int:
    """Fill a stream with about 2000 messages that lie in nodes, in the tail, or in both."""
    if layout == "nodes":
        stream.write_many(entries(2000))
    elif layout == "packed tail":
        for first in range(1, 1201, 60):
            stream.write_many(entries(60, first))
    elif layout == "plain tail":
        for first in range(1, 201, 8):
            stream.write_many(entries(8, first))
    else:
        stream.write_many(entries(1500))
        stream.write_many(entries(300, 1501))
        for first in range(1801, 1901, 5):
            stream.write_many(entries(5, first))
    return stream.info().last


@pytest.mark.parametrize("layout", ["nodes", "packed tail", "plain tail", "mixed"])
def test_evict_up_to_an_offset_is_exact(stream: Stream, layout: str) -> None:
    last = write_layout(stream, layout)
    rows = entries(last)
    gone = 0
    for limit in (1, 2, 59, 60, 61, 150, last // 2, last - 30, last - 1):
        assert stream.evict(limit) == max(limit - gone, 0)
        gone = max(gone, limit)
        info = stream.info()
        assert (info.first, info.last, info.length) == (gone + 1, last, last - gone)
        assert pairs(stream.read(1, last)) == [None] * gone + rows[gone:]
        assert sum(batch.num_rows for batch in stream.scan()) == last - gone


@pytest.mark.parametrize("layout", ["nodes", "packed tail", "plain tail", "mixed"])
def test_evict_of_minus_n_keeps_the_newest_n(stream: Stream, layout: str) -> None:
    last = write_layout(stream, layout)
    assert stream.evict(-last) == 0
    assert stream.evict(-(last + 5)) == 0
    assert stream.evict(-100) == last - 100
    assert stream.evict(-100) == 0
    assert stream.evict(-1) == 99
    assert offsets(stream.read(1, last)) == [last]


def test_evicting_beyond_the_end_empties_the_stream(stream: Stream) -> None:
    stream.write_many(entries(1200))
    assert stream.evict(2**53 - 1) == 1200
    assert stream.info().length == 0
    assert stream.info().bytes == 0
    assert stream.read(1, 3) == [None] * 3
    assert stream.write_many(entries(3)) == range(1201, 1204)
    assert offsets(stream.read(1190, 30)) == [1201, 1202, 1203]


def test_evicting_nothing_is_nothing(stream: Stream) -> None:
    stream.write_many(entries(5))
    assert stream.evict(0) == 0
    assert stream.evict(3) == 3
    assert stream.evict(2) == 0
    assert offsets(stream.read(1, 9)) == [4, 5]


def test_eviction_cuts_through_compacted_nodes(stream: Stream) -> None:
    stream.write_many(entries(60, tags=20))
    stream.write_many(entries(10, 61, tags=5))
    assert stream.compact() == 50
    left = offsets(stream.read(1, 100))
    for limit in (1, 45, 46, 47, 50, 58, 63, 66, 69):
        kept = [offset for offset in left if offset > limit]
        assert stream.evict(limit) == len(left) - len(kept)
        left = kept
        assert offsets(stream.read(1, 100)) == left
        info = stream.info()
        assert (info.first, info.length) == (limit + 1, len(left))


@pytest.mark.parametrize("client", ["plain-async"], indirect=True)
def test_hundreds_of_nodes_go_at_once(stream: Stream) -> None:
    tags, values = pa.array(["t"] * 90_000), pa.array([b"v"] * 90_000)
    for _ in range(4):
        stream.append(pa.table({"tag": tags, "value": values}))
    assert stream.info().nodes == 360
    assert stream.evict(355_500) == 355_500
    info = stream.info()
    assert (info.nodes, info.first, info.length) == (5, 355_501, 4500)
    assert stream.evict(-7) == 4493
    assert stream.info().length == 7


@pytest.mark.parametrize("compacted", [False, True])
def test_eviction_that_respects_readers_stops_before_the_slowest(
    stream: Stream, compacted: bool
) -> None:
    stream.write_many(entries(1000, tags=400))
    stream.write_many(entries(1000, 1001, tags=400))
    if compacted:
        stream.compact()
    kept = [m for m in stream.read(1, 2000) if m is not None]
    stream.register_reader("ahead", 1900)
    stream.register_reader("behind", 1700)
    group = stream.group("slower", 1650)
    group.read(10)
    for wanted, first in ((1600, 1601), (1680, 1660), (-1, 1660), (2000, 1660)):
        stream.evict(wanted, past_readers=False)
        assert stream.info().first == first
        assert stream.read(first, 1000)[-1] == kept[-1]
    group.remove()
    stream.forget_reader("behind")
    stream.evict(2000, past_readers=False)
    assert stream.info().first == 1900
    stream.evict(2000)
    assert stream.info().first == 2001
