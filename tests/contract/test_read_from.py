"""Reading on from a position of one's own: nothing twice, nothing left out, every gap exact."""

from __future__ import annotations

import random
import secrets
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import Any

import pytest

import headwater
from headwater import Headwater, Passage, Stream
from headwater.errors import InvalidInput
from headwater.log import reading, retention
from headwater.log.handles import StreamHandle
from headwater.log.keys import stream_key
from headwater.log.reading import Extent, partitions_of
from headwater.store.call import Call, Operation, Wait
from headwater.store.many import together
from tests.support.entries import entries, offsets, pairs
from tests.support.groups import FAR
from tests.support.servers import Server, until
from tests.support.watch import blocked


def test_at_the_end_there_is_nothing_and_the_place_stays(stream: Stream) -> None:
    assert stream.read_from(1, 10) == ([], 1, None, 0)
    stream.write_many(entries(5))
    assert stream.read_from(6, 10) == ([], 6, None, 5)
    assert stream.read_from(6, 10, block_ms=5) == ([], 6, None, 5)
    assert stream.read_from(9, 10, block_ms=5) == ([], 9, None, 5), "beyond the end"


def test_large_messages_come_few_at_a_time(stream: Stream) -> None:
    draw = random.Random(1)
    values = [draw.randbytes(1_000_000) for _ in range(20)]
    for value in values:
        stream.write("t", value)
    at, seen = 1, []
    while (passage := stream.read_from(at, 1000)).messages:
        assert len(passage.messages) < 10
        assert passage.gap is None
        seen += [message.value for message in passage.messages]
        at = passage.next
    assert seen == values


def test_a_gap_is_told_without_waiting(stream: Stream) -> None:
    stream.write_many(entries(20))
    stream.evict(20)
    assert stream.read_from(3, 10, block_ms=60_000) == ([], 21, (3, 20), 20)


def test_many_holes_cost_few_round_trips(
    hw: Headwater, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = hw.stream(name)
    for first in range(1, 60_001, 5000):
        stream.write_many(entries(5000, first, tags=2))
    stream.compact()
    calls: list[Call | Wait] = []
    ask = hw.store.ask

    def counted(request: Call | Wait, *more: Any) -> Any:
        calls.append(request)
        return ask(request, *more)

    monkeypatch.setattr(hw.store, "ask", counted)
    assert offsets(stream.read_from(1, 2).messages) == [59_999, 60_000]
    assert len(calls) < 12


def test_reading_on_equals_what_is_there_whatever_is_evicted_and_compacted(stream: Stream) -> None:
    draw = random.Random(7)
    at, last = 1, 0
    seen: list[int] = []
    missed: list[tuple[int, int]] = []
    expected: list[int] = []
    lost: list[tuple[int, int]] = []
    for _ in range(60):
        match draw.choice(["write", "write", "read", "read", "compact", "evict"]):
            case "write":
                size = draw.choice([1, 5, 60, 700])
                stream.write_many(entries(size, last + 1, tags=draw.choice([3, 100])))
                last += size
            case "compact":
                stream.compact()
            case "evict" if last:
                stream.evict(draw.randrange(1, last + 1))
            case "read":
                count = draw.choice([1, 20, 400])
                first = stream.info().first
                there = [m.offset for m in stream.read(at, 10_000) if m is not None]
                if at < first:
                    lost.append((at, first - 1))
                expected += there[:count]
                passage = stream.read_from(at, count)
                seen += offsets(passage.messages)
                missed += [passage.gap] if passage.gap else []
                at = passage.next
                if len(there) < count:
                    assert at == last + 1
    assert seen == expected
    assert missed == lost


def test_a_gap_that_opens_while_a_read_is_on_its_way_is_told_by_the_next(
    client: Headwater, stream: Stream
) -> None:
    stream.write_many(entries(3000, tags=1))
    stream.compact()
    stream.write_many(entries(3, 3001))
    # The first call sees holes only; then everything goes before the second asks.
    passage = client.store.run(read_from_while_all_is_evicted(stream.name))
    assert (passage.messages, passage.gap) == ([], None)
    assert 1 < passage.next <= 3000
    assert stream.read_from(passage.next, 10).gap == (passage.next, 3003)


def read_from_while_all_is_evicted(name: str) -> Operation[Passage]:
    """Read on from the start of a stream, and evict all of it after the first call."""
    handle = StreamHandle(name, {name})
    reader = reading.read_from(handle, 1, 10, None)
    try:
        reply = yield reader.send(None)
        yield from retention.evict(handle, 3003)
        while True:
            reply = yield reader.send(reply)
    except StopIteration as done:
        passage: Passage = done.value
        return passage


@pytest.mark.parametrize("size", [1, 5, 40, 600])
def test_a_blocked_reader_is_woken_by_a_write(client: Headwater, stream: Stream, size: int) -> None:
    stream.write_many(entries(10))
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(lambda: stream.read_from(11, 1000, block_ms=60_000))
        until(lambda: blocked(client))
        stream.write_many(entries(size, 11))
        passage = waiting.result(60)
    assert pairs(passage.messages) == entries(size, 11)
    assert (passage.next, passage.gap) == (11 + size, None)


def test_arguments_that_cannot_be_meant_are_refused(stream: Stream) -> None:
    for offset, count, block_ms in ((0, 1, None), (1, -1, None), (1, 1, -1)):
        with pytest.raises(InvalidInput):
            stream.read_from(offset, count, block_ms=block_ms)


# A reader that goes on behind the node it read last sees what anybody sees, whatever happened.


def nothing(_: Stream) -> None:
    """Leave all as it is."""


def evict_into_the_next_node(stream: Stream) -> None:
    stream.evict(1500)


def evict_past_the_next_node(stream: Stream) -> None:
    stream.evict(2000)


def compact(stream: Stream) -> None:
    stream.write_many(entries(700, 3001, tags=100))
    stream.compact()


def make_anew(stream: Stream) -> None:
    stream.delete()
    stream.write_many(entries(1000, 1))
    stream.write_many(entries(600, 5001))


def make_anew_shorter(stream: Stream) -> None:
    stream.delete()
    stream.write_many(entries(10, 1))


CHANGES = [
    nothing,
    evict_into_the_next_node,
    evict_past_the_next_node,
    compact,
    make_anew,
    make_anew_shorter,
]


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
@pytest.mark.parametrize("count", [300, 5000])
def test_reading_on_gives_what_a_newcomer_gets(
    client: Headwater, change: Callable[[Stream], None], count: int
) -> None:
    stream = client.stream(secrets.token_hex(8))
    for at in range(1, 3001, 1000):
        stream.write_many(entries(1000, at, tags=100))
    assert len(stream.read(1, 1000)) == 1000
    change(client.stream(stream.name))
    expected = client.stream(stream.name).read(1001, count)
    assert stream.read(1001, count) == expected


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_passing_on_gives_what_a_newcomer_gets(
    client: Headwater, change: Callable[[Stream], None]
) -> None:
    stream = client.stream(secrets.token_hex(8))
    for at in range(1, 3001, 1000):
        stream.write_many(entries(1000, at, tags=100))
    assert stream.read_from(1, 1000).next == 1001
    change(client.stream(stream.name))
    expected = client.stream(stream.name).read_from(1001, 700)
    assert stream.read_from(1001, 700) == expected


def test_a_reader_at_the_end_of_the_nodes_sees_what_comes(client: Headwater) -> None:
    stream = client.stream(secrets.token_hex(8))
    stream.write_many(entries(1000))
    stream.read(1, 1000)
    assert stream.read(1001, 10) == []
    client.stream(stream.name).write("t", b"next")
    assert [m.value for m in stream.read(1001, 10) if m] == [b"next"]


# Whoever plans to read much learns where streams stand and where they may be cut, in one call.


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
