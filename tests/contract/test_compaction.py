"""Compaction keeps the last message of every tag; offsets stay."""

from __future__ import annotations

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


def test_sealing_makes_history_smaller(stream: Stream) -> None:
    for first in range(1, 901, 4):
        stream.write_many([(tag, value * 10) for tag, value in entries(4, first)])
    before = stream.info().bytes
    stream.seal()
    assert stream.info().bytes < before / 2


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
