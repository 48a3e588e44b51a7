"""Reading on from a position of one's own: nothing twice, nothing left out, every gap exact."""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from headwater import Headwater, Passage, Stream
from headwater.errors import InvalidInput
from headwater.log import reading, retention
from headwater.log.handles import StreamHandle
from headwater.store.call import Call, Operation, Wait
from tests.support.entries import entries, offsets, pairs
from tests.support.servers import until
from tests.support.watch import blocked


def test_reading_on_gives_all_of_it_once(stream: Stream) -> None:
    for size in (3, 700, 1, 1500, 40):
        stream.write_many(entries(size, stream.info().last + 1))
    for count in (1, 7, 999, 5000):
        at, seen = 1, []
        while (passage := stream.read_from(at, count)).messages:
            assert passage.gap is None
            assert len(passage.messages) <= count
            assert passage.next == passage.messages[-1].offset + 1
            seen += passage.messages
            at = passage.next
            if count == 1 and at > 50:
                break
        assert pairs(seen) == entries(len(seen))
        assert count == 1 or len(seen) == 2244
        assert passage.last == 2244


def test_at_the_end_there_is_nothing_and_the_place_stays(stream: Stream) -> None:
    assert stream.read_from(1, 10) == ([], 1, None, 0)
    stream.write_many(entries(5))
    assert stream.read_from(6, 10) == ([], 6, None, 5)
    assert stream.read_from(6, 10, block_ms=5) == ([], 6, None, 5)
    assert stream.read_from(9, 10, block_ms=5) == ([], 9, None, 5), "beyond the end"


def test_what_was_evicted_is_an_exact_gap(stream: Stream) -> None:
    stream.write_many(entries(2000))
    stream.evict(1234)
    passage = stream.read_from(100, 10)
    assert passage.gap == (100, 1234)
    assert offsets(passage.messages) == list(range(1235, 1245))
    assert passage.next == 1245
    assert stream.read_from(1235, 10).gap is None
    assert stream.read_from(1234, 0) == ([], 1235, (1234, 1234), 2000)
    stream.evict(2000)
    assert stream.read_from(1245, 10) == ([], 2001, (1245, 2000), 2000)
    assert stream.read_from(2001, 10) == ([], 2001, None, 2000)


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


def test_holes_are_no_gap_and_are_passed_over(stream: Stream) -> None:
    stream.write_many(entries(3000, tags=1))
    stream.compact()
    assert offsets(stream.read_from(1, 10).messages) == [3000]
    stream.write_many(entries(400, 3001, tags=1))
    stream.compact()
    passage = stream.read_from(5, 10)
    assert (offsets(passage.messages), passage.next, passage.gap) == ([3400], 3401, None)


def test_holes_at_the_end_are_passed_over_too(stream: Stream) -> None:
    stream.write_many([("a", b"1"), ("b", b"2"), ("b", b"")])
    stream.compact(marker_ms=0)
    until(lambda: stream.compact(marker_ms=0) or stream.info().length == 1)
    assert stream.read_from(2, 10, block_ms=60_000) == ([], 4, None, 3)


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
