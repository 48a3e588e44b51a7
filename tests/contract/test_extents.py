"""Whoever plans to read much learns where streams stand and where they may be cut, in one call."""

from __future__ import annotations

from itertools import pairwise

import headwater
from headwater.log import reading
from headwater.log.reading import Extent, partitions_of
from headwater.store.many import together
from tests.support.entries import entries


def extent(hw: headwater.Headwater, stream: str) -> Extent:
    return hw.store.run(reading.extent(stream))


def borders(hw: headwater.Headwater, stream: str, *args: int) -> list[int]:
    return hw.store.run(reading.borders(stream, *args))


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


def test_the_extents_of_a_topic_come_together(hw: headwater.Headwater, name: str) -> None:
    topic = hw.topic(name, 12)
    topic.write_many(entries(500, tags=200))
    found = hw.store.run(together(reading.extent(f"{name}/{place}") for place in range(12)))
    assert [each.last for each in found] == [info.last for info in topic.info()]
