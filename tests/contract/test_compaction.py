"""Compaction keeps the last message of every tag; offsets stay."""

from __future__ import annotations

import random

import pyarrow as pa
import pytest

from headwater import Headwater, Stream
from tests.support.entries import entries, offsets, pairs
from tests.support.groups import FAR
from tests.support.watch import server_ms


def last_of_tags(rows: list[tuple[str, bytes]]) -> dict[int, tuple[str, bytes]]:
    newest = {tag: offset for offset, (tag, _) in enumerate(rows, 1)}
    return {offset: rows[offset - 1] for offset in sorted(newest.values())}


@pytest.mark.parametrize("size", [1, 7, 50, 1000, 3500])
@pytest.mark.parametrize("tags", [1, 7, 900])
def test_the_last_message_of_every_tag_stays_at_its_offset(
    stream: Stream, size: int, tags: int
) -> None:
    rows = entries(size, tags=tags)
    for at in range(0, size, 450):
        stream.write_many(rows[at : at + 450])
    kept = last_of_tags(rows)
    assert stream.compact() == size - len(kept)
    assert pairs(stream.read(1, size)) == [kept.get(offset) for offset in range(1, size + 1)]
    info = stream.info()
    assert (info.first, info.last, info.length) == (1, size, len(kept))


def test_compacting_again_removes_nothing(stream: Stream) -> None:
    stream.write_many(entries(300))
    assert stream.compact() == 293
    assert stream.compact() == 0
    assert stream.info().length == 7


def test_times_stay_too(stream: Stream) -> None:
    times = list(range(1000, 1030))
    tags = [f"t{i % 4}" for i in range(30)]
    stream.append(pa.table({"tag": tags, "value": [b"v"] * 30, "time": times}))
    stream.compact()
    assert [(m.offset, m.time_ms) for m in stream.read(1, 30) if m] == [
        (i, 999 + i) for i in range(27, 31)
    ]


def test_writing_and_compacting_in_turns_equals_a_dict(stream: Stream) -> None:
    draw = random.Random(3)
    rows: list[tuple[str, bytes]] = []
    for _ in range(25):
        fresh = [
            (f"t{draw.randrange(40)}", b"%d" % draw.randrange(10**6))
            for _ in range(draw.choice([1, 4, 30, 200, 700]))
        ]
        assert stream.write_many(fresh).start == len(rows) + 1
        rows += fresh
        if draw.random() < 0.5:
            stream.compact()
    stream.compact()
    assert {m.offset: (m.tag, m.value) for m in stream.read(1, len(rows)) if m} == last_of_tags(
        rows
    )
    assert stream.info().length == len(last_of_tags(rows))


def test_an_empty_value_marks_a_tag_as_deleted(stream: Stream) -> None:
    stream.write_many([("a", b"1"), ("b", b"1"), ("a", b""), ("c", b"1")])
    assert stream.compact() == 1
    assert pairs(stream.read(1, 9)) == [None, ("b", b"1"), ("a", b""), ("c", b"1")]


def test_an_old_marker_goes(client: Headwater, stream: Stream) -> None:
    now = server_ms(client)
    tags, values = ["a", "b", "a", "c", "c"], [b"1", b"1", b"", b"1", b""]
    times = [now - 9000, now - 8000, now - 7000, now - 100, now]
    stream.append(pa.table({"tag": tags, "value": values, "time": times}))
    assert stream.compact(marker_ms=10_000) == 2
    assert offsets(stream.read(1, 9)) == [2, 3, 5]
    assert stream.compact(marker_ms=5_000) == 1
    assert offsets(stream.read(1, 9)) == [2, 5]


def test_a_marker_stays_until_every_reader_has_passed_it(stream: Stream) -> None:
    times = [1000, 2000, 3000, 10**9]
    tags, values = ["a", "a", "b", "z"], [b"1", b"", b"", b"1"]
    stream.append(pa.table({"tag": tags, "value": values, "time": times}))
    group = stream.group("g")
    group.read(2, ack_ms=FAR)
    stream.register_reader("spark", 3)
    stream.compact(marker_ms=5)
    assert offsets(stream.read(1, 9)) == [2, 3, 4]
    group.ack((1, 2))
    stream.compact(marker_ms=5)
    assert offsets(stream.read(1, 9)) == [3, 4]
    stream.register_reader("spark", 4)
    stream.compact(marker_ms=5)
    assert offsets(stream.read(1, 9)) == [3, 4]
    group.seek(4)
    stream.compact(marker_ms=5)
    assert offsets(stream.read(1, 9)) == [4]


def test_a_tag_that_came_back_after_its_marker_stays(stream: Stream) -> None:
    times = [1000, 2000, 3000, 10**9]
    tags, values = ["a", "a", "a", "z"], [b"1", b"", b"2", b"1"]
    stream.append(pa.table({"tag": tags, "value": values, "time": times}))
    stream.compact(marker_ms=5)
    assert pairs(stream.read(1, 9)) == [None, None, ("a", b"2"), ("z", b"1")]


def test_a_stream_of_old_markers_becomes_empty_but_keeps_its_offsets(stream: Stream) -> None:
    tags = [f"t{i}" for i in range(20)]
    stream.append(pa.table({"tag": tags, "value": [b""] * 20, "time": [1000] * 19 + [10**9]}))
    stream.append(pa.table({"tag": ["t19"], "value": [b""], "time": [2 * 10**9]}))
    stream.compact(marker_ms=0)
    assert stream.read(1, 30) == [None] * 21
    info = stream.info()
    assert (info.length, info.last) == (0, 21)
    assert stream.write("t", b"v") == 22
    assert offsets(stream.group("g").read(10)) == [22]
    assert stream.evict(21) == 0
    assert stream.info().first == 22


@pytest.mark.parametrize("sealed", [False, True])
def test_evicted_messages_are_not_counted(stream: Stream, sealed: bool) -> None:
    stream.write_many(entries(100, tags=10))
    if sealed:
        stream.seal()
    stream.evict(55)
    assert stream.compact() == 35
    info = stream.info()
    assert (info.first, info.length) == (56, 10)


def test_what_compaction_left_counts_as_messages_not_as_offsets(stream: Stream) -> None:
    """Ten messages far apart are ten messages, however many offsets lie between them."""
    for first in range(1, 5001, 500):
        stream.write_many([(f"only-{first}", b"v"), *entries(499)])
    stream.compact()
    kept = offsets(stream.read(1, 5000))
    assert len(kept) == 17
    assert stream.retain(max_count=17) == (0, 0, None)
    assert stream.evict(-17) == 0
    stream.write("new", b"v", backlog=18)
    assert offsets(stream.read(1, 6000)) == [*kept, 5001]
    stream.write_many(entries(700), backlog=702)
    assert offsets(stream.read(1, 6000))[-702:] == [5000, *range(5001, 5702)]
    stream.evict(-300)
    assert offsets(stream.read(1, 6000)) == list(range(5402, 5702))


def test_many_small_leftovers_share_a_node(stream: Stream) -> None:
    for first in range(1, 8001, 1000):
        stream.write_many(entries(1000, first, tags=40))
    assert stream.info().nodes == 8
    stream.compact()
    assert stream.info().nodes == 1
    assert stream.info().length == 40


def test_who_reads_while_others_compact_sees_the_change(client: Headwater, stream: Stream) -> None:
    stream.write_many(entries(1000, tags=10))
    reader = client.stream(stream.name)
    assert len(offsets(reader.read(500, 5))) == 5
    stream.compact()
    assert offsets(reader.read(500, 5)) == []
    assert offsets(reader.read(985, 100)) == list(range(991, 1001))
