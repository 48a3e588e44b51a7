"""Whoever plans to read much learns where streams stand and where they may be cut, in one call."""

from __future__ import annotations

from itertools import pairwise

import pytest

import headwater
from headwater.log.extents import (
    Extent,
    borders_call,
    borders_of,
    extent_call,
    extent_of,
    partitions_of,
)
from tests.support.entries import entries
from tests.support.servers import Server


def extent(hw: headwater.Headwater, stream: str) -> Extent:
    return extent_of(hw.store.ask(extent_call(stream)))


def borders(hw: headwater.Headwater, stream: str, *args: int) -> list[int]:
    return borders_of(hw.store.ask(borders_call(stream, *args)))[1]


def test_an_extent_tells_where_a_stream_stands_and_which_one_it_is(
    hw: headwater.Headwater, name: str
) -> None:
    assert extent(hw, name) == Extent(1, 0, 0)
    stream = hw.stream(name)
    stream.write_many(entries(100))
    stream.evict(40)
    first = extent(hw, name)
    assert (first.first, first.last) == (41, 100)
    stream.delete()
    stream.write("a", b"")
    second = extent(hw, name)
    assert (second.first, second.last) == (1, 1)
    assert second.created > first.created > 0


def test_parts_end_where_nodes_end_and_are_alike(hw: headwater.Headwater, name: str) -> None:
    stream = hw.stream(name)
    for start in range(1, 10_001, 1000):
        stream.write_many(entries(1000, start))
    stream.seal()
    assert stream.info().nodes == 10
    assert borders(hw, name, 1, 10_001, 3, 1) == [2000, 5000, 7000]
    assert borders(hw, name, 1, 10_001, 100, 1) == []
    assert borders(hw, name, 1, 10_001, 100, 5) == [2000, 4000, 6000, 8000]
    assert len(borders(hw, name, 1, 10_001, 1, 50)) == 9
    # Only what lies within the range is cut, and both its ends may lie within a node.
    inner = borders(hw, name, 2500, 7501, 100, 3)
    assert all(2500 <= border < 7500 and border % 1000 == 0 for border in inner)
    assert len(inner) == 2


def test_holes_do_not_count_as_work(hw: headwater.Headwater, name: str) -> None:
    stream = hw.stream(name)
    stream.write_many(entries(5000, tags=3))
    stream.write_many(entries(5000, 5001, tags=5000))
    stream.seal()
    stream.compact()
    cuts = [0, *borders(hw, name, 1, 10_001, 100, 4), 10_000]
    sizes = [
        sum(batch.num_rows for batch in stream.scan(start + 1, stop + 1))
        for start, stop in pairwise(cuts)
    ]
    assert sum(sizes) == stream.info().length
    assert max(sizes) <= 2100, "half of the offsets are empty, and are in nobody's way"


def test_a_topic_is_looked_at_without_being_made(hw: headwater.Headwater, name: str) -> None:
    assert hw.store.run(partitions_of(name)) == 0
    assert name not in hw.topics()
    hw.topic(name, 3)
    assert hw.store.run(partitions_of(name)) == 3


def test_many_calls_go_together_and_their_answers_keep_their_order(
    hw: headwater.Headwater, name: str
) -> None:
    topic = hw.topic(name, 12)
    topic.write_many(entries(500, tags=200))
    calls = [extent_call(f"{name}/{place}") for place in range(12)]
    found = [extent_of(reply).last for reply in hw.store.ask_all(calls)]
    assert found == [info.last for info in topic.info()]
    assert hw.store.ask_all([]) == []


@pytest.mark.fault
def test_calls_that_went_together_recover_one_by_one() -> None:
    with Server(fsync="always") as server, headwater.connect(server.url) as hw:
        hw.stream("a").write_many(entries(10))
        calls = [extent_call("a"), extent_call("b")]
        assert [extent_of(reply).last for reply in hw.store.ask_all(calls)] == [10, 0]
        server.kill()
        server.restart()
        assert [extent_of(reply).last for reply in hw.store.ask_all(calls)] == [10, 0]
