"""Nodes that writers packed to be fast are packed again to be small; nobody can tell by reading."""

from __future__ import annotations

import secrets
from collections.abc import Callable

import pytest

from headwater import Headwater, Stream
from headwater.log import retention
from headwater.log.handles import StreamHandle
from headwater.log.keys import HOT_MESSAGES
from headwater.log.retention import cool
from headwater.store.call import Operation
from tests.support.entries import entries


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
