"""Many calls in one round trip: in order, each recovered by itself, on every kind of store."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

import headwater
from headwater.errors import OutcomeUnknown, StoreUnreachable
from headwater.log.handles import StreamHandle
from headwater.log.keys import stream_key
from headwater.log.reading import Extent, extent
from headwater.store import faults
from headwater.store.call import Call, Look, Many, Operation
from headwater.store.faults import Refusal
from headwater.store.many import CHUNK_BYTES, together
from tests.support.entries import entries
from tests.support.forwarder import Forwarder
from tests.support.servers import Cluster, Server, move_of, slot_of, until
from tests.support.stores import Stores
from tests.support.watch import RoundTrips

Dial = Callable[[str | None], headwater.Headwater]
KINDS = ["embedded", "plain", pytest.param("cluster", marks=pytest.mark.cluster)]


@pytest.fixture(params=KINDS)
def hw(request: pytest.FixtureRequest, stores: Stores, dial: Dial) -> headwater.Headwater:
    """Each kind of store, by both clients."""
    return dial(stores.url(request.param))


@pytest.fixture
def door() -> Iterator[Forwarder]:
    with Server(tcp=True) as server, Forwarder(server.port) as door:
        yield door


def many(hw: headwater.Headwater, calls: Sequence[Call]) -> list[Any]:
    def operation() -> Operation[list[Any]]:
        replies: list[Any] = yield Many(calls)
        return replies

    return hw.store.run(operation())


def write(stream: str, value: bytes, sequence: int) -> Call:
    """A write that may be repeated."""
    args = ("p", sequence, "", "plain", "t", value)
    return Call("hw_stream_write", stream_key(stream), args, repeatable=True)


def offsets(replies: list[Any]) -> list[int]:
    return [reply[0] for reply in replies]


def extents(hw: headwater.Headwater, names: Sequence[str]) -> list[Extent]:
    return hw.store.run(together(map(extent, names)))


def test_replies_come_in_the_order_of_the_calls(hw: headwater.Headwater, name: str) -> None:
    names = [f"{name}-{place}" for place in range(40)]
    for place, each in enumerate(names[:8], 1):
        hw.stream(each).write_many(entries(place))
    found = extents(hw, names)
    assert [each.last for each in found] == [1, 2, 3, 4, 5, 6, 7, 8] + [0] * 32
    assert many(hw, []) == []
    assert extents(hw, []) == []


def test_a_call_that_is_refused_costs_the_others_nothing(
    hw: headwater.Headwater, name: str
) -> None:
    hw.stream(name).write("t", b"v")
    hw.stream(name).group("g").read(1)
    calls = [
        Call("hw_group_info", stream_key(name), (group,), read_only=True)
        for group in ("g", "unknown", "g")
    ]
    first, refused, last = many(hw, calls)
    assert first == last
    assert isinstance(refused, Refusal)
    assert refused.code == "NO_GROUP"


def test_operations_side_by_side_end_each_in_its_own_time(
    hw: headwater.Headwater, name: str
) -> None:
    stream = hw.stream(name)
    stream.write_many(entries(10))
    handle = StreamHandle(name, set())

    def looking(groups: int) -> Operation[list[str]]:
        found = []
        for group in range(groups):
            try:
                yield Call("hw_group_info", handle.key, (f"g{group}",), read_only=True)
            except Refusal as refusal:
                found.append(refusal.code)
        # A write that must not be repeated goes alone.
        yield Call("hw_stream_write", handle.key, ("", "", "", "plain", "t", b"v"))
        return found

    assert hw.store.run(together(map(looking, (2, 0, 3)))) == [
        ["NO_GROUP"] * 2,
        [],
        ["NO_GROUP"] * 3,
    ]
    assert stream.info().last == 13


def test_a_call_that_must_not_be_repeated_is_not_taken(hw: headwater.Headwater, name: str) -> None:
    plain = Call("hw_stream_write", stream_key(name), ("", "", "", "plain", "t", b"v"))
    with pytest.raises(ValueError, match="must be sent alone"):
        many(hw, [extent_call(name), plain])
    assert hw.stream(name).info().last == 0


def extent_call(stream: str) -> Call:
    return Call("hw_stream_read", stream_key(stream), (0, ""), read_only=True)


@pytest.mark.damages
def test_what_is_large_is_sent_in_parts(
    hw: headwater.Headwater, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    counted = RoundTrips(hw, monkeypatch)
    value = bytes(CHUNK_BYTES // 2 - 100)
    calls = [write(name, value, sequence) for sequence in range(1, 13)]
    assert offsets(many(hw, calls)) == list(range(1, 13))
    assert counted.count == 6


@pytest.mark.parametrize("loss", ["request", "reply"])
def test_a_connection_that_breaks_loses_no_reply_and_writes_nothing_twice(
    loss: Any, door: Forwarder, dial: Dial, name: str
) -> None:
    hw = dial(f"redis://127.0.0.1:{door.port}")
    names = [f"{name}-{place}" for place in range(2000)]
    for sequence in (1, 2):
        # In the middle of what is sent: some calls have happened, some have not.
        door.lose(loss, f"{names[1200]}}}".encode())
        assert offsets(many(hw, [write(each, b"v", sequence) for each in names])) == [
            sequence
        ] * len(names)
        assert door.lost.is_set()
    assert {each.last for each in extents(hw, names)} == {2}


def test_a_server_that_is_killed_is_waited_for(dial: Dial, name: str) -> None:
    with Server(tcp=True, fsync="always") as server:
        hw = dial(server.url)
        names = [f"{name}-{place}" for place in range(100)]
        many(hw, [write(each, b"v", 1) for each in names])
        server.kill()
        server.restart()
        assert {each.last for each in extents(hw, names)} == {1}


def test_commands_sent_together_do_not_fail_over_a_connection_that_was_closed_idle(
    door: Forwarder, dial: Dial, name: str
) -> None:
    hw = dial(f"redis://127.0.0.1:{door.port}")
    look = Look(stream_key(name), (("EXISTS", stream_key(name)),))
    for _ in range(20):
        assert hw.store.ask(look) == [0]
        door.cut()


def test_a_server_that_stays_away_is_said_in_the_end(
    door: Forwarder, dial: Dial, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(faults, "PATIENCE_S", 0.3)
    hw = dial(f"redis://127.0.0.1:{door.port}")
    reads, writes = [extent_call(name)] * 3, [write(name, b"v", 1)] * 3
    many(hw, reads)
    door.lose("reply", name.encode())
    door.switch(1)
    with pytest.raises(OutcomeUnknown):
        many(hw, writes)
    with pytest.raises(StoreUnreachable):
        many(hw, writes)
    with pytest.raises(StoreUnreachable):
        many(hw, reads)


@pytest.mark.damages
@pytest.mark.parametrize("kind", ["plain", pytest.param("cluster", marks=pytest.mark.cluster)])
def test_a_library_that_is_lost_is_brought_back(
    kind: str, stores: Stores, dial: Dial, name: str
) -> None:
    hw = dial(stores.url(kind))
    hw.store.command("FUNCTION", "FLUSH")
    calls = [write(f"{name}-{place}", b"v", 1) for place in range(60)]
    assert offsets(many(hw, calls)) == [1] * 60


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(node_timeout_ms=1000) as cluster:
        yield cluster


def in_one_slot(name: str, count: int) -> list[str]:
    """Names of streams that share a slot."""
    names = (f"{name}-{place}" for place in itertools.count())
    return list(itertools.islice((n for n in names if slot_of(n) == slot_of(name)), count))


@pytest.mark.cluster
def test_calls_wait_for_a_slot_that_moves_and_are_done_once(
    cluster: Cluster, dial: Dial, name: str
) -> None:
    hw = dial(cluster.url)
    names = [name, *in_one_slot(name, 3), *(f"{name}+{place}" for place in range(300))]

    def write_to_all(sequence: int) -> list[int]:
        return offsets(many(hw, [write(each, b"v", sequence) for each in names]))

    assert write_to_all(1) == [1] * len(names)
    with move_of(cluster, name) as move, ThreadPoolExecutor(1) as pool:
        move.begin()
        move.one_key()
        before = move.refusals("ASK", "TRYAGAIN")
        writing = pool.submit(write_to_all, 2)
        until(lambda: move.refusals("ASK", "TRYAGAIN") > before + 2)
        move.finish()
        assert writing.result() == [2] * len(names)
    assert {each.last for each in extents(hw, names)} == {2}


@pytest.mark.cluster
def test_calls_follow_a_slot_that_has_moved(cluster: Cluster, dial: Dial, name: str) -> None:
    hw = dial(cluster.url)
    names = [name, *in_one_slot(name, 3), *(f"{name}+{place}" for place in range(300))]
    many(hw, [write(each, b"v", 1) for each in names])
    with move_of(cluster, name) as move:
        move.begin()
        move.finish()
        before = move.refusals("MOVED")
        assert {each.last for each in extents(hw, names)} == {1}
        # Now and then one of the others lies in the slot by chance.
        moved = sum(slot_of(each) == slot_of(name) for each in names)
        assert moved >= 4
        assert move.refusals("MOVED") == before + moved, "each of the slot was redirected, once"
