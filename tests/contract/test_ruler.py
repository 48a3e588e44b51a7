"""A ruler says of every offset what became of it in a group, and costs no more for long ones."""

from __future__ import annotations

import secrets
from dataclasses import replace

import pytest

import headwater
from headwater import Group, Headwater
from headwater.log.handles import GroupHandle, StreamHandle
from headwater.log.inspecting import DeadOffsets, GroupRuler, group_ruler
from headwater.views.overview import life_in_group
from tests.support.servers import Server


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


def buried_every_other(hw: Headwater, name: str, count: int) -> Group:
    """Return a group that has taken so many messages and given up every other one, the last too."""
    stream = hw.stream(name)
    stream.write_many([("t", b"x")] * count)
    group = stream.group("g", dead_letters=True)
    group.read(count, ack_ms=60_000)
    group.bury(*range(2, count + 1, 2))
    group.ack((1, count))
    return group


def test_every_dead_letter_is_shown_however_many_there_are(hw: Headwater, name: str) -> None:
    buried_every_other(hw, name, 1400)
    assert said(hw, name, *range(2, 1401, 2)) == {"dead"}
    for offset in (2, 4, 700, 1400):
        assert said(hw, name, offset) == {"dead"}
    for offset in (1, 3, 701, 1399):
        assert said(hw, name, offset) == {"done"}
    found = ruler(hw, name, 1, 1400, 10)
    assert [(one.first, one.last, one.ranges) for one in found.dead] == [
        (low + 2, low + 140, 70) for low in range(0, 1400, 140)
    ]
    assert found.dead_unknown == 0
    few = ruler(hw, name, 501, 520)
    assert few.dead == [DeadOffsets(at, at, 1) for at in range(502, 521, 2)]


def test_letters_that_are_redriven_or_discarded_are_not_dead(hw: Headwater, name: str) -> None:
    group = buried_every_other(hw, name, 40)
    group.discard([2, 4])
    group.redrive(letters=[6])
    assert said(hw, name, 2) == said(hw, name, 4) == {"done"}
    assert said(hw, name, 6) == {"pending-0"}
    assert said(hw, name, 8, 40) == {"dead"}
    group.discard()
    assert ruler(hw, name, 1, 40).dead == []


def test_a_message_with_two_letters_is_dead_until_both_are_gone(hw: Headwater, name: str) -> None:
    stream = hw.stream(name)
    stream.write_many([("t", b"x")] * 20)
    group = stream.group("g", dead_letters=True)
    group.bury(*group.read(20, ack_ms=60_000))
    group.seek(5)
    again = group.read(16, ack_ms=60_000)
    group.bury(again[0])
    group.ack(again[1:])
    first, *_, last = sorted(group.dead(), key=lambda one: one.offset)
    assert (first.origin, last.origin) == (1, 5)
    assert said(hw, name, 3, 4, 5, 6, 20) == {"dead"}
    assert said(hw, name, 4) == {"dead"}, "the letter of 5 alone is not before it"
    group.discard([last])
    assert said(hw, name, 5) == {"dead"}, "the first letter is left"


def test_letters_of_a_store_without_their_places_are_said_to_be_unknown(
    valkey: Server, name: str
) -> None:
    with headwater.connect(valkey.url) as hw, valkey.client() as raw:
        buried_every_other(hw, name, 20)
        assert raw.delete(f"hw:s:{{{name}}}:g:1:g:origins") == 1
        found = ruler(hw, name, 1, 20)
        assert (found.dead, found.dead_unknown) == ([], 10)
        assert said(hw, name, 1, 2, 20) == {"unknown"}


def test_what_was_missed_before_the_ranges_that_are_kept_is_not_done(
    hw: Headwater, name: str
) -> None:
    stream = hw.stream(name)
    stream.write_many([("t", b"x")] * 100)
    group = stream.group("g")
    for offset in range(1, 80, 4):
        group.read(1)
        stream.evict(offset + 3)
    group.read(1)
    found = ruler(hw, name, 1, 100)
    assert len(found.gaps) == 16
    assert found.missed > sum(high - low + 1 for low, high in found.gaps)
    assert said(hw, name, 2) == {"unknown"}
    assert said(hw, name, found.gaps[0][0]) == {"missed"}
    assert said(hw, name, 81) == {"done"}


def test_a_group_that_is_not_there_has_none(hw: Headwater, name: str) -> None:
    hw.stream(name).write("t", b"x")
    handle = GroupHandle(StreamHandle(name, set()), "g", "test")
    assert hw.store.run(group_ruler(handle, 1, 1)) is None


def test_what_a_group_never_got_is_not_done(hw: Headwater, name: str) -> None:
    stream = hw.stream(name)
    stream.write_many([("t", b"x")] * 1000)
    group = stream.group("g", start=900)
    group.read(10)
    assert said(hw, name, 1, 899) == {"before"}
    assert said(hw, name, 900, 909) == {"done"}
    group.seek(950)
    assert said(hw, name, 909) == {"done"}
    assert said(hw, name, 910, 949) == {"passed"}
    group.seek(800)
    group.read(200, ack_ms=60_000)
    group.seek(980)
    assert said(hw, name, 799) == {"before"}
    assert said(hw, name, 800, 979) == {"passed"}
    assert said(hw, name, 980, 1000) == {"new"}


def test_many_seeks_are_kept_as_few_ranges(hw: Headwater, name: str) -> None:
    stream = hw.stream(name)
    stream.write_many([("t", b"x")] * 1000)
    group = stream.group("g")
    for offset in range(10, 410, 20):
        group.read(1)
        group.seek(offset)
    found = ruler(hw, name, 1, 1000)
    assert len(found.jumps) == 16
    assert found.jumps[0][0] == 2
    assert said(hw, name, 2) == said(hw, name, 389) == {"passed"}
    assert said(hw, name, 1) == {"done"}


def test_where_an_older_group_began_is_not_known(hw: Headwater, name: str) -> None:
    stream = hw.stream(name)
    stream.write_many([("t", b"x")] * 10)
    stream.group("g").read(5)
    older = replace(ruler(hw, name, 1, 10), start=0)
    assert life_in_group(older, None, 3, 0)[0] == "unknown"
    assert life_in_group(older, None, 6, 0)[0] == "new"


def said(hw: Headwater, stream: str, *offsets: int) -> set[str]:
    """Return what is said of these offsets in the group: the states."""
    found = ruler(hw, stream, min(offsets), max(offsets))
    return {life_in_group(found, None, offset, 0)[0] for offset in offsets}
