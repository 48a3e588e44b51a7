"""Blocked readers of a stream wake when their offset is written, at once."""

from __future__ import annotations

import math
import time
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest

from headwater import Headwater, Stream
from tests.support.entries import entries, offsets, pairs
from tests.support.servers import until
from tests.support.waking import check_wakes
from tests.support.watch import blocked

LONG = 60_000


@pytest.mark.parametrize("size", [1, 5, 40, 600])
def test_a_write_wakes_a_blocked_reader_within_milliseconds(
    client: Headwater, stream: Stream, pool: ThreadPoolExecutor, size: int
) -> None:
    stream.write("a", b"1")
    reader = client.stream(stream.name)

    def wait() -> list[int]:
        last = reader.info().last
        found = reader.read(last + 1, size, block_ms=LONG)
        assert pairs(found) == entries(size)
        return offsets(found)

    def act() -> None:
        stream.write_many(entries(size))

    check_wakes(pool, wait, lambda: blocked(client), act, within_ms=50)


def test_a_reader_waits_for_the_very_offset_it_asks_for(
    client: Headwater, stream: Stream, pool: ThreadPoolExecutor
) -> None:
    rows = entries(200)
    stream.write_many(rows[:3])
    reader: Future[list[Any]] = pool.submit(stream.read, 103, 10, block_ms=LONG)
    until(lambda: blocked(client))
    for at in (3, 4, 11, 60):
        stream.write_many(rows[at : at + {3: 1, 4: 7, 11: 49, 60: 42}[at]])
        until(lambda: blocked(client))
        assert not reader.done()
    stream.write_many(rows[102:110])
    assert pairs(reader.result(60)) == rows[102 : 102 + len(reader.result())]
    assert reader.result()


@pytest.mark.parametrize("size", [40, 700])
def test_a_batch_wakes_a_reader_that_waits_for_its_middle(
    client: Headwater, stream: Stream, pool: ThreadPoolExecutor, size: int
) -> None:
    reader = pool.submit(stream.read, size // 2, 5, block_ms=LONG)
    until(lambda: blocked(client))
    stream.write_many(entries(size))
    assert pairs(reader.result(60)) == entries(size)[size // 2 - 1 : size // 2 + 4]


def test_a_reader_may_wait_before_the_stream_exists(
    client: Headwater, stream: Stream, pool: ThreadPoolExecutor
) -> None:
    reader = pool.submit(stream.read, 1, 5, block_ms=math.inf)
    until(lambda: blocked(client))
    stream.write("a", b"1")
    assert pairs(reader.result(60)) == [("a", b"1")]


def test_a_reader_that_waits_in_vain_gets_nothing_when_its_time_is_up(stream: Stream) -> None:
    stream.write("a", b"1")
    for wait in (
        lambda: stream.read(2, 5, block_ms=60),
        lambda: stream.group("g", "last").read(5, block_ms=60),
        lambda: stream.group("g", "last").read(5, block_ms=60, ack_ms=10),
    ):
        begun = time.monotonic()
        assert wait() == []
        assert 0.055 <= time.monotonic() - begun < 5


def test_a_reader_that_need_not_wait_does_not(stream: Stream) -> None:
    stream.write_many(entries(3))
    stream.evict(1)
    begun = time.monotonic()
    assert pairs(stream.read(1, 5, block_ms=LONG)) == [None, *entries(2, 2)]
    assert offsets(stream.group("g").read(5, block_ms=LONG)) == [2, 3]
    for block_ms in (None, 0):
        assert stream.read(4, 5, block_ms=block_ms) == []
        assert stream.group("g").read(5, block_ms=block_ms) == []
    assert time.monotonic() - begun < 5


def test_who_follows_the_end_misses_nothing(stream: Stream, pool: ThreadPoolExecutor) -> None:
    def follow() -> list[Any]:
        seen: list[Any] = []
        while len(seen) < 1500:
            seen += stream.read(len(seen) + 1, 100, block_ms=LONG)
        return seen

    follower = pool.submit(follow)
    written = 0
    for place in range(10_000):
        if written >= 1500:
            break
        size = (1, 3, 20, 120)[place % 4]
        written = stream.write_many(entries(size, written + 1)).stop - 1
        if place % 5 == 0:
            stream.seal()
    assert pairs(follower.result(60)) == entries(len(follower.result()))
