"""A stream with many groups or publishes is gone at once, and its keys are freed in steps."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import headwater
from headwater.log import retention, writing
from headwater.log.keys import DELETED, stream_key
from tests.support.entries import entries, offsets
from tests.support.servers import Server
from tests.support.stagings import table
from tests.support.stepping import abandon_after, handle_of

GROUPS = 200
PUBLISHES = 40
FAR = 10**8


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with Server() as server:
        yield server


@pytest.fixture
def hw(server: Server) -> Iterator[headwater.Headwater]:
    with headwater.connect(server.url) as hw:
        yield hw


@pytest.fixture
def stream(hw: headwater.Headwater, name: str) -> headwater.Stream:
    """A stream with many groups, all of which have something pending."""
    stream = hw.stream(name)
    stream.write_many(entries(10))
    for n in range(GROUPS):
        stream.group(f"g{n}").read(3, ack_ms=FAR)
    return stream


def keys(hw: headwater.Headwater, name: str) -> list[bytes]:
    (found,) = hw.store.command("KEYS", f"{stream_key(name)}*")
    return list(found)


def deleted(hw: headwater.Headwater) -> set[bytes]:
    (found,) = hw.store.command("SMEMBERS", DELETED)
    return set(found)


def test_nothing_is_left_of_a_stream_with_many_groups(
    hw: headwater.Headwater, stream: headwater.Stream
) -> None:
    assert stream.delete()
    assert not stream.delete()
    assert keys(hw, stream.name) == []
    assert stream.name not in hw.streams()
    assert stream.name.encode() not in deleted(hw)


@pytest.mark.parametrize("calls", [1, 2, 3, 4, 5, 6])
def test_a_stream_whose_deletion_was_interrupted_is_gone_and_is_freed_by_a_housekeeper(
    hw: headwater.Headwater, stream: headwater.Stream, calls: int
) -> None:
    abandon_after(hw.store, retention.delete(handle_of(stream.name)), calls)
    info = stream.info()
    assert (info.exists, info.last, info.groups) == (False, 0, ())
    for n in (0, GROUPS - 1):
        with pytest.raises(headwater.errors.UnknownGroup):
            stream.group(f"g{n}").info()
        with pytest.raises(headwater.errors.UnknownGroup):
            stream.group(f"g{n}").ack(1)
    hw.keep()
    assert keys(hw, stream.name) == []
    assert stream.name.encode() not in deleted(hw)


def test_a_new_stream_of_the_same_name_has_nothing_of_the_old_one(
    hw: headwater.Headwater, stream: headwater.Stream
) -> None:
    abandon_after(hw.store, retention.delete(handle_of(stream.name)), 1)
    rows = [("t", b"new")] * 3
    assert stream.write_many(rows) == range(1, 4)
    for n in (0, 77, GROUPS - 1):
        group = stream.group(f"g{n}")
        found = group.read(2, ack_ms=FAR)
        assert [(m.offset, m.attempt, m.value) for m in found] == [(1, 1, b"new"), (2, 1, b"new")]
        info = group.info()
        assert (info.pending, info.next, info.missed) == (2, 3, 0)
    assert stream.evict(3, past_readers=False) == 0
    hw.keep()
    assert set(stream.info().groups) == {"g0", "g77", f"g{GROUPS - 1}"}
    for n in (0, 77, GROUPS - 1):
        group = stream.group(f"g{n}")
        assert group.ack((1, 2)) == 2
        assert offsets(group.read(2)) == [3]
    assert stream.delete()
    hw.keep()
    assert keys(hw, stream.name) == []


def test_a_stream_may_be_deleted_again_before_the_first_one_is_freed(
    hw: headwater.Headwater, stream: headwater.Stream
) -> None:
    for _ in range(3):
        abandon_after(hw.store, retention.delete(handle_of(stream.name)), 1)
        stream.write_many(entries(3))
        for n in range(0, GROUPS, 3):
            assert offsets(stream.group(f"g{n}").read(1, ack_ms=FAR)) == [1]
    hw.keep()
    assert len(stream.info().groups) == len(range(0, GROUPS, 3))
    assert stream.group("g0").info().pending == 1
    stream.delete()
    assert keys(hw, stream.name) == []


def test_all_of_many_groups_are_listed(hw: headwater.Headwater, name: str) -> None:
    stream = hw.stream(name)
    stream.write("t", b"")
    for n in range(1001):
        stream.group(f"g{n}").read(1)
    assert sorted(stream.info().groups) == sorted(f"g{n}" for n in range(1001))
    stream.delete()


def left_publishes(hw: headwater.Headwater, stream: headwater.Stream) -> None:
    """Leave publishes of many producers after their first calls, which wait to be sealed first."""
    stream.write("t", b"small")
    for n in range(PUBLISHES):
        stream.stage(table(entries(1000)), f"s{n}")
        operation = writing.publish(handle_of(stream.name), (f"s{n}",), f"p{n}", 1)
        abandon_after(hw.store, operation, 1)


@pytest.mark.parametrize("calls", [1, 2, 3])
def test_a_stream_with_many_publishes_is_gone_and_all_that_was_staged_is_freed(
    hw: headwater.Headwater, name: str, calls: int
) -> None:
    stream = hw.stream(name)
    left_publishes(hw, stream)
    stream.stage(table(entries(3)), "apart")
    before = keys(hw, name)
    abandon_after(hw.store, retention.delete(handle_of(name)), calls)
    assert not stream.info().exists
    assert len(keys(hw, name)) > len(before) - 40 * calls, "one call drops a few publishes"
    hw.keep()
    left = [f"{stream_key(name)}:{part}" for part in ("staged:apart", "stagings")]
    assert sorted(keys(hw, name)) == sorted(map(str.encode, left))
    for key in left:
        (expires_ms,) = hw.store.command("PTTL", key)
        assert expires_ms > 0, f"{key} goes by itself"
    assert name.encode() not in deleted(hw)


def test_a_producer_publishes_to_the_new_stream_while_the_old_one_is_freed(
    hw: headwater.Headwater, name: str
) -> None:
    stream = hw.stream(name)
    left_publishes(hw, stream)
    abandon_after(hw.store, retention.delete(handle_of(name)), 1)
    for n in (0, PUBLISHES - 1):
        stream.stage(table(entries(2)), f"new{n}")
        stream.publish(f"new{n}", producer=f"p{n}", sequence=1)
    stream.stage(table(entries(1000)), "begun")
    abandon_after(hw.store, writing.publish(handle_of(name), ("begun",), "p1", 2), 1)
    hw.keep()
    stream.publish(producer="p1", sequence=2)
    assert stream.info().last == 1004
    assert not [key for key in keys(hw, name) if b":publish" in key or b":staged" in key]
