"""A group or reader that nobody uses any more is named, and can be given an age limit."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

import headwater
from headwater.log.keys import group_key, stream_key
from headwater.log.types import IDLE_MS
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
    old.read(2, retry_ms=FAR)
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
