"""A group or reader that nobody uses any more is named, and can be given an age limit."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

import headwater
from headwater.log.keys import group_key, stream_key
from headwater.log.retention import preview, set_reader
from headwater.log.types import IDLE_MS, Retention
from headwater.metrics.retention_forecasts import forecast
from tests.support.commands import run
from tests.support.entries import entries, offsets
from tests.support.servers import Server
from tests.support.watch import server_ms

FAR = 10**8
Age = Callable[[str, str], None]


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with Server() as server:
        yield server


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
