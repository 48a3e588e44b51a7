"""A group or reader that nobody uses any more is named, and can be given an age limit."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

import headwater
from headwater.log import retention, writing
from headwater.log.keys import DELETED, group_key, stream_key
from headwater.log.retention import preview, set_reader
from headwater.log.types import IDLE_MS, Retention
from headwater.metrics.sweeps import forecast
from tests.support.commands import run
from tests.support.entries import entries, offsets
from tests.support.servers import Server
from tests.support.stagings import table
from tests.support.stepping import abandon_after, handle_of
from tests.support.watch import server_ms

FAR = 10**8
Age = Callable[[str, str], None]


@pytest.fixture
def hw(server: Server) -> Iterator[headwater.Headwater]:
    with headwater.connect(server.url) as hw:
        yield hw


@pytest.fixture
def age(hw: headwater.Headwater) -> Age:
    """Make a group look as if nobody had read in it for two days."""

    def age(name: str, group: str) -> None:
        key = group_key(stream_key(name), group)
        seen = server_ms(hw) - 2 * IDLE_MS
        hw.store.command("DEL", f"{key}:members")
        hw.store.command("HSET", key, "created", seen, "seen", seen)

    return age


def test_retention_does_not_wait_for_a_group_that_was_silent_for_too_long(
    hw: headwater.Headwater, name: str, age: Age
) -> None:
    stream = hw.stream(name)
    stream.write_many(entries(10))
    old, used = stream.group("old"), stream.group("used")
    old.read(2, ack_ms=FAR)
    used.read(6)
    assert stream.retain(max_count=2) == (0, 8, "old")
    age(name, "old")
    assert stream.retain(max_count=2, max_idle_ms=IDLE_MS) == (6, 2, "used")
    assert (old.info().abandoned, used.info().abandoned) == (True, False)
    assert (stream.info().abandoned, stream.info().slowest) == (1, "used")
    used.read(6)
    assert stream.retain(max_count=2, max_idle_ms=IDLE_MS).evicted == 2

    # What it missed is in its ledger once it reads again, and it is waited for from then on.
    assert offsets(old.read(1)) == [9]
    info = old.info()
    assert (info.missed, info.abandoned, info.pending) == (6, False, 2)
    assert info.gaps == ((3, 8),)
    old.nack((1, 2))
    old.read(1)
    assert old.info().missed == 8
    assert stream.retain(max_count=0, max_idle_ms=IDLE_MS).held_by is None


def test_retention_does_not_wait_for_a_reader_that_was_silent_for_too_long(
    hw: headwater.Headwater, name: str
) -> None:
    stream = hw.stream(name)
    stream.write_many(entries(10))
    stream.register_reader("spark", 3)
    assert stream.retain(max_count=2, max_idle_ms=IDLE_MS) == (2, 6, "spark")
    seen = server_ms(hw) - 2 * IDLE_MS
    hw.store.command("ZADD", f"{stream_key(name)}:seen", seen, "spark")
    assert stream.info().slowest_idle_ms in range(2 * IDLE_MS, 2 * IDLE_MS + 10**6)
    assert stream.retain(max_count=2, max_idle_ms=IDLE_MS) == (6, 0, None)


def test_a_backlog_does_not_wait_either(hw: headwater.Headwater, name: str, age: Age) -> None:
    stream = hw.stream(name)
    stream.write_many(entries(10))
    stream.group("old").read(1)
    stream.retain(max_idle_ms=IDLE_MS)
    stream.write("t", b"", backlog=2)
    assert stream.info().first == 2
    age(name, "old")
    stream.write("t", b"", backlog=2)
    assert stream.info().first == 11


def test_doctor_info_and_keep_name_who_holds_up_retention(
    hw: headwater.Headwater, name: str, age: Age
) -> None:
    stream = hw.stream(name)
    stream.write_many(entries(10))
    stream.group("old").read(3)
    stream.retain(max_count=2)
    url = hw.store.where
    assert stream.info().idle_holder is None, "it has just read"
    age(name, "old")
    assert stream.info().idle_holder == "old"
    shown = run(url, "stream", "info", name).out
    assert "held up by" in shown
    assert "for 48 hours" in shown
    assert (
        f"stream '{name}': 5 messages are held for 'old'"
        in run(url, "keep", "--once", "--stream", name).err
    )
    assert f"stream '{name}' is held up at 4 by 'old'" in run(url, "doctor", "--json").out
    done = run(url, "stream", "retain", name, "--max-count", "2", "--max-idle", "1d")
    assert "evicted 5 messages" in done.out
    assert stream.info().idle_holder is None


def test_a_stream_with_many_silent_groups_is_evicted_in_steps(
    hw: headwater.Headwater, name: str, age: Age
) -> None:
    stream = hw.stream(name)
    stream.write_many(entries(10))
    for n in range(100):
        stream.group(f"g{n}").read(1)
        if n != 50:
            age(name, f"g{n}")
    assert stream.retain(max_count=2, max_idle_ms=IDLE_MS) == (1, 7, "g50")
    # Only those that were in the way are looked at: among equals, by name.
    assert stream.info().abandoned == sum(f"g{n}" < "g50" for n in range(100))
    assert stream.evict(9, past_readers=False) == 0
    stream.group("g50").read(9)
    assert stream.evict(9, past_readers=False) == 8


def silence(hw: headwater.Headwater, name: str, readers: list[str]) -> None:
    """Make readers outside the log look as if nobody had seen them for two days."""
    seen = server_ms(hw) - 2 * IDLE_MS
    key = f"{stream_key(name)}:seen"
    hw.store.command("ZADD", key, *(word for reader in readers for word in (seen, reader)))


SILENT = [f"s{n:02}" for n in range(70)]


@pytest.fixture
def crowd(hw: headwater.Headwater, name: str) -> headwater.Stream:
    """Seventy silent readers outside the log are behind one that is active, at 11."""
    stream = hw.stream(name)
    stream.write_many(entries(100))
    for reader in SILENT:
        stream.register_reader(reader, 5)
    stream.register_reader("active", 11)
    silence(hw, name, SILENT)
    return stream


def test_retention_waits_for_an_active_reader_behind_any_number_of_silent_ones(
    crowd: headwater.Stream,
) -> None:
    assert crowd.retain(max_count=10, max_idle_ms=IDLE_MS) == (10, 80, "active")
    assert len(crowd.read(11, 100)) == 90
    assert crowd.info().slowest == "active"
    assert crowd.info().readers == dict.fromkeys(SILENT, 5) | {"active": 11}, "none is forgotten"


def test_a_forecast_names_the_active_reader_whether_or_not_the_others_were_passed_over(
    hw: headwater.Headwater, crowd: headwater.Stream
) -> None:
    policy = Retention(max_count=10, max_idle_ms=IDLE_MS)
    for _ in range(2):
        info = replace(crowd.info(), retention=policy)
        seen = hw.store.run(preview(stream_key(crowd.name), policy))
        assert forecast(info, seen, [], server_ms(hw)).held_by == "active"
        crowd.retain(max_count=90, max_idle_ms=IDLE_MS)


def test_a_call_that_has_not_looked_at_all_silent_readers_evicts_nothing(
    hw: headwater.Headwater, crowd: headwater.Stream
) -> None:
    crowd.retain(max_idle_ms=IDLE_MS)
    crowd.write("t", b"", backlog=10)
    assert crowd.info().first == 5, "what the last reader it looked at needs is kept"
    for _ in range(3):
        crowd.write("t", b"", backlog=10)
    assert crowd.info().first == 11
    # A silent reader is passed over once; then it costs nothing.
    key = stream_key(crowd.name)
    assert hw.store.command("ZCARD", f"{key}:readers") == [1]
    assert hw.store.command("ZCARD", f"{key}:silent") == [len(SILENT)]


def test_an_eviction_that_spares_readers_looks_at_all_of_them(crowd: headwater.Stream) -> None:
    crowd.retain(max_idle_ms=IDLE_MS)
    assert crowd.evict(90, past_readers=False) == 10
    assert crowd.info().first == 11


def test_a_silent_reader_that_comes_back_is_waited_for_again(
    hw: headwater.Headwater, crowd: headwater.Stream
) -> None:
    crowd.retain(max_count=10, max_idle_ms=IDLE_MS)
    crowd.register_reader("active", 101)
    crowd.register_reader("s07", 21)
    assert crowd.retain(max_count=10, max_idle_ms=IDLE_MS) == (10, 70, "s07")
    assert crowd.info().readers["s07"] == 21
    # One that reports late, through another process of its name, does not fall back.
    hw.store.run(set_reader(stream_key(crowd.name), "s08", 3, forward=True))
    assert crowd.info().readers["s08"] == 5
    crowd.forget_reader("s09")
    assert "s09" not in crowd.info().readers


def test_all_silent_readers_and_groups_are_waited_for_again_without_the_limit(
    crowd: headwater.Stream, age: Age
) -> None:
    lost = crowd.group("lost")
    lost.read(2)
    age(crowd.name, "lost")
    assert crowd.retain(max_count=10, max_idle_ms=IDLE_MS) == (10, 80, "active")
    assert lost.info().abandoned
    assert crowd.retain(max_count=10) == (0, 80, "lost")
    assert not lost.info().abandoned
    lost.remove()
    assert crowd.retain(max_count=10).held_by in SILENT


def test_groups_consumers_and_readers_are_waited_for_together(
    hw: headwater.Headwater, crowd: headwater.Stream, age: Age
) -> None:
    for n in range(70):
        crowd.group(f"g{n:02}").read(2)
        if n != 69:
            age(crowd.name, f"g{n:02}")
    for reader in ("sql", "spark-1"):
        crowd.register_reader(reader, 4)
    assert crowd.retain(max_count=10, max_idle_ms=IDLE_MS) == (2, 88, "g69")
    crowd.group("g69").read(90)
    assert crowd.retain(max_count=10, max_idle_ms=IDLE_MS).held_by in ("sql", "spark-1")
    assert crowd.info().first == 4
    silence(hw, crowd.name, ["sql", "spark-1"])
    assert crowd.retain(max_count=10, max_idle_ms=IDLE_MS) == (7, 80, "active")


# ── A stream with many groups or publishes is gone at once, and its keys are freed in steps ──────


GROUPS = 200
PUBLISHES = 40


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
