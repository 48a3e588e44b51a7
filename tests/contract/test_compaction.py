"""Compaction keeps the last message of every tag; offsets stay."""

from __future__ import annotations

import random
import secrets
from collections.abc import Callable

import pyarrow as pa
import pytest

from headwater import Headwater, Stream
from headwater.log import retention
from headwater.log.handles import StreamHandle
from headwater.log.keys import HOT_MESSAGES
from headwater.log.retention import cool
from headwater.store.call import Operation
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


# ── Sealing repacks history into compressed nodes; nobody can tell from what is read ─────────────


@pytest.mark.parametrize("size", [1, 5, 8, 9, 60, 400, 499])
def test_a_log_without_housekeeper_is_sealed_as_it_is_written(stream: Stream, size: int) -> None:
    if size == 1:
        stream.write_many(entries(499))
        stream.write_many(entries(499, 500))
        stream.write_many(entries(499, 999))
        stream.write_many(entries(499, 1498))
    written = stream.info().last
    while written < 2600:
        if size == 1:
            stream.write(*entries(1, written + 1)[0])
        else:
            stream.write_many(entries(size, written + 1))
        written += size
    info = stream.info()
    assert info.sealed >= 1000
    assert info.last - info.sealed < 2000
    rows = entries(written)
    assert pairs(stream.read(1, 5000)) == rows
    for at in (1, 990, 999, 1000, 1001, 1002, 1990, info.sealed, info.sealed + 1):
        assert pairs(stream.read(at, 25)) == rows[at - 1 : at + 24]


def test_sealing_keeps_messages_offsets_and_times(stream: Stream) -> None:
    for size in (1, 3, 30, 700, 2, 450, 450, 450, 9):
        stream.write_many(entries(size, stream.info().last + 1))
    before = stream.read(1, 5000)
    sealed = stream.info().sealed
    assert stream.seal() == len(before) - sealed
    info = stream.info()
    assert (info.sealed, info.length, info.first) == (len(before), len(before), 1)
    assert stream.read(1, 5000) == before
    for at in range(1, len(before), 97):
        assert stream.read(at, 10) == before[at - 1 : at + 9]


def test_sealing_again_does_nothing(stream: Stream) -> None:
    stream.write_many(entries(30))
    assert (stream.seal(), stream.seal()) == (30, 0)
    stream.write("a", b"1")
    assert stream.seal() == 1
    assert stream.info().nodes == 2


def test_sealing_makes_history_smaller(stream: Stream) -> None:
    for first in range(1, 901, 4):
        stream.write_many([(tag, value * 10) for tag, value in entries(4, first)])
    before = stream.info().bytes
    stream.seal()
    assert stream.info().bytes < before / 2


def test_writing_continues_after_sealing(stream: Stream) -> None:
    for first in range(1, 100, 10):
        stream.write_many(entries(10, first))
        stream.seal()
        stream.write(*entries(1, first)[0])
        stream.evict(stream.info().last)
    assert stream.info().last == 110
    assert stream.write_many(entries(3)) == range(111, 114)


def test_pending_messages_survive_sealing(stream: Stream) -> None:
    rows = entries(40)
    stream.write_many(rows)
    group = stream.group("g")
    group.read(20, ack_ms=10**9)
    stream.seal()
    assert group.nack((1, 20)) == 20
    assert pairs(group.read(100, ack_ms=10**9)) == rows


def test_who_reads_while_others_seal_sees_everything_once(
    client: Headwater, stream: Stream
) -> None:
    """The reader holds a node that is replaced under it, again and again."""
    reader = client.stream(stream.name)
    rows = entries(60)
    for at in range(60):
        stream.write(*rows[at])
        if at % 7 == 0:
            stream.seal()
        assert pairs(reader.read(max(1, at - 20), 100)) == rows[max(1, at - 20) - 1 : at + 1]


# Nodes that writers packed to be fast are packed again to be small; nobody can tell by reading.


def handle(stream: Stream) -> StreamHandle:
    return StreamHandle(stream.name, {stream.name})


def fill(stream: Stream, nodes: int) -> None:
    for at in range(nodes):
        stream.write_many(entries(1000, at * 1000 + 1))


def test_sealing_packs_large_batches_smaller_and_changes_no_message(stream: Stream) -> None:
    fill(stream, 3)
    group = stream.group("g")
    group.read(1500, ack_ms=10**9)
    before, hot = stream.read(1, 5000), stream.info().bytes
    stream.seal()
    assert stream.read(1, 5000) == before
    assert stream.info().bytes < 0.8 * hot
    assert [m.offset for m in group.read(5000)] == list(range(1501, 3001))
    assert group.nack((1, 1500)) == 1500
    assert [m.value for m in group.read(1500)] == [m.value for m in before[:1500] if m]


def test_the_newest_messages_may_stay_hot(client: Headwater, stream: Stream) -> None:
    fill(stream, 5)
    assert client.store.run(cool(handle(stream), 2000)) == 3000
    assert client.store.run(cool(handle(stream), 2000)) == 0
    assert client.store.run(cool(handle(stream), 0)) == 2000
    assert client.store.run(cool(handle(stream), 0)) == 0


def test_a_housekeeper_cools_what_is_old(connect: Callable[[str], Headwater]) -> None:
    hw = connect("plain-sync")
    stream = hw.stream("kept")
    fill(stream, 70)
    assert hw.keep(stream.name)[0].cooled == 6000
    assert hw.keep(stream.name)[0].cooled == 0
    stream.delete()


def test_small_batches_are_cold_once_they_are_sealed(client: Headwater, stream: Stream) -> None:
    for at in range(1, 3001, 100):
        stream.write_many(entries(100, at))
    stream.seal()
    assert client.store.run(cool(handle(stream), 0)) == 0


def test_a_log_without_housekeeper_has_a_bounded_number_of_hot_messages(
    connect: Callable[[str], Headwater],
) -> None:
    hw = connect("plain-sync")
    stream = hw.stream("unkept")
    batch = entries(1000)
    for _ in range(HOT_MESSAGES // 1000 + 20):
        stream.write_many(batch)
    sizes = [bytes_of_node(hw, stream, base) for base in (1, HOT_MESSAGES - 999)]
    later = bytes_of_node(hw, stream, HOT_MESSAGES + 10_001)
    assert all(later < 0.8 * size for size in sizes)
    # A housekeeper makes room again, for this writer, too.
    hw.keep(stream.name)
    first = stream.write_many(batch)[0]
    assert bytes_of_node(hw, stream, first) < 0.8 * sizes[0]
    first = stream.write_many(batch)[0]
    assert bytes_of_node(hw, stream, first) == sizes[0]
    stream.delete()


def bytes_of_node(hw: Headwater, stream: Stream, base: int) -> int:
    return len(hw.store.command("HGET", f"hw:s:{{{stream.name}}}:nodes", base)[0])


def evict(stream: StreamHandle) -> Operation[object]:
    return (yield from retention.evict(stream, 1500))


def compact(stream: StreamHandle) -> Operation[object]:
    return (yield from retention.compact(stream, 0))


def cool_too(stream: StreamHandle) -> Operation[object]:
    return (yield from cool(stream, 0))


def delete(stream: StreamHandle) -> Operation[object]:
    return (yield from retention.delete(stream))


@pytest.mark.parametrize("step", range(1, 9))
@pytest.mark.parametrize("meanwhile", [evict, compact, cool_too, delete])
@pytest.mark.parametrize(
    "kind", ["plain-sync", pytest.param("cluster-async", marks=pytest.mark.cluster)]
)
def test_what_happens_between_two_steps_of_cooling_is_not_undone(
    connect: Callable[[str], Headwater],
    kind: str,
    meanwhile: Callable[[StreamHandle], Operation[object]],
    step: int,
) -> None:
    client = connect(kind)
    stream = client.stream(secrets.token_hex(8))
    for at in range(3):
        stream.write_many(entries(1000, at * 1000 + 1, tags=700))
    client.store.run(cool_with(handle(stream), meanwhile, step))
    twin = client.stream(f"{stream.name}-twin")
    for at in range(3):
        twin.write_many(entries(1000, at * 1000 + 1, tags=700))
    client.store.run(meanwhile(handle(twin)))
    ours, theirs = stream.read(1, 5000), twin.read(1, 5000)
    assert [m and m[:3] for m in map(fields, ours)] == [m and m[:3] for m in map(fields, theirs)]
    assert stream.info().length == twin.info().length
    twin.delete()
    stream.delete()


def fields(message: object) -> tuple[object, ...] | None:
    return message and tuple(getattr(message, n) for n in ("offset", "tag", "value"))  # type: ignore[return-value]


def cool_with(
    stream: StreamHandle, meanwhile: Callable[[StreamHandle], Operation[object]], step: int
) -> Operation[None]:
    """Cool a stream, and let something else happen after so many of its requests."""
    work = cool(stream, 0)
    reply, requests = None, 0
    while True:
        try:
            request = work.send(reply)
        except StopIteration:
            break
        reply = yield request
        requests += 1
        if requests == step:
            yield from meanwhile(StreamHandle(stream.name, {stream.name}))
    if requests < step:
        yield from meanwhile(StreamHandle(stream.name, {stream.name}))


# ── Eviction is exact, whatever it cuts through; offsets never move ──────────────────────────────


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
