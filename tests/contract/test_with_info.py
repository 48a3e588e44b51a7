"""A read may ask for the first and last offset of the same moment, at no further round trip."""

from __future__ import annotations

import threading
from typing import Any

import pytest

import headwater
from headwater import Headwater, Stream, TopicWithInfo, WithInfo
from tests.support.entries import entries, offsets
from tests.support.round_trips import RoundTrips
from tests.support.servers import until


def test_a_read_tells_the_bounds_of_its_stream(stream: Stream) -> None:
    assert stream.read(1, 5, with_info=True) == WithInfo([], 1, 0)
    stream.write_many(entries(10))
    stream.evict(3)
    messages, first, last = stream.read(2, 4, with_info=True)
    assert messages == stream.read(2, 4)
    assert (messages[:2], offsets(messages[2:]), first, last) == ([None, None], [4, 5], 4, 10)
    assert stream.read(1, 0, with_info=True) == WithInfo([], 4, 10)
    assert stream.read(11, 5, with_info=True) == WithInfo([], 4, 10)
    assert stream.read(11, 5, block_ms=20, with_info=True) == WithInfo([], 4, 10)


def test_a_group_tells_the_bounds_of_its_stream(client: Headwater, stream: Stream) -> None:
    group = stream.group("g")
    assert group.read(5, with_info=True) == WithInfo([], 1, 0)
    stream.write_many(entries(10))
    stream.evict(3, past_readers=True)
    found = group.read(2, ack_ms=60_000, with_info=True)
    assert (offsets(found.messages), found.first, found.last) == ([4, 5], 4, 10)
    assert group.read(0, with_info=True) == WithInfo([], 4, 10)
    decoding = client.stream(stream.name, codec=(lambda _: b"", len)).group("g")
    assert [m.data for m in decoding.read(1, with_info=True).messages] == [len(entries(6)[5][1])]


def test_a_group_of_a_topic_tells_the_bounds_of_every_partition(
    client: Headwater, name: str
) -> None:
    topic = client.topic(name, partitions=3)
    group = topic.group("g")
    empty = {0: 1, 1: 1, 2: 1}, {0: 0, 1: 0, 2: 0}
    assert group.read(5, block_ms=20, with_info=True) == TopicWithInfo([], *empty)
    for place, count in enumerate((3, 5, 7)):
        topic.partition(place).write_many(entries(count))
    topic.partition(1).evict(2, past_readers=True)
    bounds = {0: 1, 1: 3, 2: 1}, {0: 3, 1: 5, 2: 7}
    for count, taken in ((1, 1), (2, 2), (100, 10), (0, 0), (1, 0)):
        found = group.read(count, ack_ms=60_000, block_ms=20, with_info=True)
        assert (len(found.messages), found.first, found.last) == (taken, *bounds)
    topic.partition(2).write("a", b"12345")
    decoding = client.topic(name, codec=(lambda _: b"", len)).group("g")
    assert [m.data for m in decoding.read(5, with_info=True).messages] == [5]


def test_the_bounds_of_a_read_cost_no_round_trip(
    hw: Headwater, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = hw.stream(name)
    stream.write_many(entries(5))
    group = stream.group("g")
    group.read(1)
    for read in (
        lambda: stream.read(1, 3, with_info=True),
        lambda: stream.read(1, 0, with_info=True),
        lambda: group.read(2, with_info=True),
    ):
        trips = RoundTrips(hw, monkeypatch)
        assert read().last == 5
        assert trips.count == 1
        monkeypatch.undo()


@pytest.mark.parametrize("through", ["stream", "group"])
def test_a_blocked_reader_that_is_woken_has_the_bounds_too(
    store_url: str, name: str, through: str
) -> None:
    found: list[WithInfo[Any]] = []
    with headwater.connect(store_url) as reader, headwater.connect(store_url) as writer:
        stream, group = reader.stream(name), reader.stream(name).group("g")

        def read() -> None:
            if through == "stream":
                found.append(stream.read(1, 5, block_ms=60_000, with_info=True))
            else:
                found.append(group.read(5, block_ms=60_000, with_info=True))

        thread = threading.Thread(target=read)
        thread.start()
        if through == "group":
            until(
                lambda: name in writer.streams() and writer.stream(name).group("g").info().waiting
            )
        writer.stream(name).write("a", b"1")
        thread.join(60)
    assert [(offsets(one.messages), one.first, one.last) for one in found] == [([1], 1, 1)]
