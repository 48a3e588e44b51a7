"""A ruler says of every offset what became of it in a group, and costs no more for long ones."""

from __future__ import annotations

import secrets

import pytest

from headwater import Headwater
from headwater.log.handles import GroupHandle, StreamHandle
from headwater.log.ruler import DeadOffsets, GroupRuler, group_ruler


def ruler(hw: Headwater, stream: str, first: int, last: int, cells: int = 256) -> GroupRuler:
    handle = GroupHandle(StreamHandle(stream, set()), "g", "test")
    found = hw.store.run(group_ruler(handle, first, last, cells))
    assert found is not None
    return found


@pytest.fixture
def name() -> str:
    return f"ruler-{secrets.token_hex(6)}"


def test_ranges_are_exact_while_they_are_few(hw: Headwater, name: str) -> None:
    stream = hw.stream(name)
    stream.write_many([("t", b"x")] * 1000)
    group = stream.group("g", dead_letters=True)
    held = group.read(600, ack_ms=60_000)
    group.ack(held[:100], held[200:300], held[400:])
    group.bury(held[250], held[150])
    found = ruler(hw, name, 1, 1000)
    assert found.next == 601
    assert found.ack_offset == 101
    assert [(one.first, one.last) for one in found.pending] == [(101, 150), (152, 200), (301, 400)]
    assert {(one.attempt, one.ranges) for one in found.pending} == {(1, 1)}
    assert found.dead == [DeadOffsets(151, 151, 1)]
    part = ruler(hw, name, 120, 160)
    assert [(one.first, one.last) for one in part.pending] == [(101, 150), (152, 200)]
    assert ruler(hw, name, 601, 1000).pending == []


def test_ranges_of_one_cell_are_one_when_they_are_many(hw: Headwater, name: str) -> None:
    stream = hw.stream(name)
    stream.write_many([("t", b"x")] * 1000)
    group = stream.group("g")
    group.read(1000, ack_ms=60_000)
    group.ack(*range(1, 1001, 2))
    found = ruler(hw, name, 1, 1000, 10)
    assert [(one.first, one.last, one.ranges) for one in found.pending] == [
        (low + 2, low + 100, 50) for low in range(0, 1000, 100)
    ]


def test_a_group_that_is_not_there_has_none(hw: Headwater, name: str) -> None:
    hw.stream(name).write("t", b"x")
    handle = GroupHandle(StreamHandle(name, set()), "g", "test")
    assert hw.store.run(group_ruler(handle, 1, 1)) is None
