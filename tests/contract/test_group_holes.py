"""Groups pass over what compaction emptied, at little cost, and deliver much in parts."""

from __future__ import annotations

import re

import pytest

from headwater import Headwater, Message, Stream
from tests.support.entries import entries, pairs
from tests.support.groups import FAR, take


def calls(client: Headwater) -> int:
    """Count the function calls that the store has served so far."""
    found = [
        re.search(rb"cmdstat_fcall:calls=(\d+)", reply)
        for reply in client.store.command("INFO", "commandstats")
    ]
    return sum(int(match[1]) for match in found if match)


@pytest.mark.parametrize("ack_ms", [None, FAR])
def test_a_group_passes_over_compacted_offsets(stream: Stream, ack_ms: int | None) -> None:
    stream.write_many(entries(3000, tags=1500))
    stream.compact()
    group = stream.group("g")
    seen: list[int] = []
    while got := take(group, 400, ack_ms=ack_ms):
        assert len(got) <= 400
        seen += got
    assert seen == list(range(1501, 3001))
    info = group.info()
    assert (info.pending, info.lag) == (0 if ack_ms is None else 1500, 0)
    assert info.missed == 0
    assert info.ack_offset == (3001 if ack_ms is None else 1501)


@pytest.mark.parametrize("ack_ms", [None, FAR])
def test_holes_cost_no_more_than_a_few_calls(
    client: Headwater, stream: Stream, ack_ms: int | None
) -> None:
    stream.write_many(entries(30_000, tags=3))
    stream.compact()
    group = stream.group("g")
    before = calls(client)
    for expected in ([29998], [29999], [30000], []):
        assert take(group, 1, ack_ms=ack_ms) == expected
    assert calls(client) - before < 40
    assert group.info().pending == (0 if ack_ms is None else 3)


def test_compacted_messages_that_are_due_cost_no_more_than_a_few_calls(
    client: Headwater, stream: Stream
) -> None:
    stream.write_many(entries(5000, tags=5000))
    group = stream.group("g")
    take(group, 5000)
    stream.write_many(entries(4000, tags=5000))
    stream.compact()
    group.nack((1, 5000))
    before = calls(client)
    assert take(group, 1) == [4001]
    assert calls(client) - before < 40
    assert group.info().pending == 1000


def test_pending_messages_that_were_compacted_are_done(stream: Stream) -> None:
    stream.write_many(entries(20, tags=20))
    group = stream.group("g")
    take(group, 20)
    stream.write_many(entries(10, tags=20))
    stream.compact()
    group.nack((1, 20))
    assert sorted(take(group, 100)) == list(range(11, 31))
    info = group.info()
    assert (info.pending, info.ack_offset, info.missed) == (20, 11, 0)


def test_a_read_gives_what_was_asked_for_across_nodes_and_tail(stream: Stream) -> None:
    rows = entries(4350)
    stream.write_many(rows[:3100])
    stream.write_many(rows[3100:3500])
    for at in range(3500, 4350, 50):
        stream.write_many(rows[at : at + 50])
    group = stream.group("g")
    seen: list[Message] = []
    while got := group.read(777, ack_ms=FAR):
        assert len(got) == min(777, 4350 - len(seen))
        seen += got
    assert pairs(seen) == rows


def test_a_large_delivery_comes_in_parts(stream: Stream) -> None:
    rows = [(f"t{i}", bytes([i]) * 1_000_000) for i in range(12)]
    for at in range(0, 12, 4):
        stream.write_many(rows[at : at + 4])
    group = stream.group("g")
    seen: list[Message] = []
    while got := group.read(100, ack_ms=FAR):
        seen += got
    assert pairs(seen) == rows
    assert group.ack((1, 12)) == 12
