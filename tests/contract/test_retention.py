"""Retention keeps a stream in bounds without taking anything from a reader, unless forced."""

from __future__ import annotations

import pyarrow as pa
import pytest

from headwater import Headwater, Stream
from headwater.log.keys import stream_key
from headwater.log.retention import set_reader
from tests.support.entries import entries, offsets
from tests.support.groups import FAR
from tests.support.watch import let_pass, server_ms


def test_a_reader_that_reports_late_does_not_fall_back(client: Headwater, name: str) -> None:
    """Processes of one name report one after the other; only who says so moves it back."""
    stream = client.stream(name)
    stream.write_many(entries(10))
    for position, forward in ((5, True), (3, True), (8, True), (4, False)):
        client.store.run(set_reader(stream_key(name), "r", position, forward=forward))
        expected = {5: 5, 3: 5, 8: 8, 4: 4}[position]
        assert stream.info().readers == {"r": expected}


def test_backlog_keeps_at_least_n(stream: Stream) -> None:
    for i in range(1, 41):
        assert stream.write("t", b"v", backlog=10) == i
        assert stream.info().length >= min(i, 10)
    assert offsets(stream.read(31, 10)) == list(range(31, 41))
    stream.write_many(entries(1200), backlog=100)
    info = stream.info()
    assert 100 <= info.length < 1200
    assert offsets(stream.read(info.last - 99, 100)) == list(range(info.last - 99, info.last + 1))
    stream.append(pa.table({"tag": ["a"], "value": [b""]}), backlog=1)
    assert stream.info().length >= 1


def test_a_backlog_of_zero_keeps_nothing_that_nobody_needs(stream: Stream) -> None:
    stream.write_many(entries(5))
    assert stream.write("t", b"v", backlog=0) == 6
    assert stream.info().length == 0


def test_backlog_never_passes_a_reader(stream: Stream) -> None:
    group = stream.group("g")
    group.read(0)
    stream.register_reader("spark", 4)
    for _ in range(10):
        stream.write("t", b"v", backlog=2)
    assert stream.info().first == 1
    group.read(6, ack_ms=FAR)
    group.ack(1, 2, (4, 6))
    stream.write("t", b"v", backlog=2)
    assert stream.info().first == 3
    group.ack(3)
    stream.write("t", b"v", backlog=2)
    assert stream.info().first == 4
    stream.register_reader("spark", 100)
    stream.write("t", b"v", backlog=2)
    assert stream.info().first == 7


def test_retention_by_count(stream: Stream) -> None:
    stream.write_many(entries(2500))
    assert stream.retain(max_count=700) == (1800, 0, None)
    info = stream.info()
    assert (info.first, info.length) == (1801, 700)
    assert stream.retain(max_count=700).evicted == 0
    assert stream.retain(max_count=0) == (700, 0, None)


@pytest.mark.parametrize("sealed", [False, True])
def test_retention_by_age(client: Headwater, stream: Stream, sealed: bool) -> None:
    now = server_ms(client)
    for age in (50_000, 40_000, 30_000, 20_000):
        times = [now - age] * 10
        stream.append(pa.table({"tag": ["t"] * 10, "value": [b"v"] * 10, "time": times}))
        if sealed:
            stream.seal()
    assert stream.retain(max_age_ms=60_000).evicted == 0
    assert stream.retain(max_age_ms=35_000).evicted == 20
    assert stream.info().first == 21
    assert stream.retain(max_age_ms=10_000).evicted == 20
    assert stream.info().length == 0


def test_age_never_takes_a_message_that_is_young_enough(client: Headwater, stream: Stream) -> None:
    now = server_ms(client)
    times = [now - 90_000, now, now - 90_000, now - 90_000]
    stream.append(pa.table({"tag": ["t"] * 4, "value": [b"v"] * 4, "time": times}))
    stream.retain(max_age_ms=60_000)
    assert 2 in offsets(stream.read(1, 10))
    stream.seal()
    stream.retain(max_age_ms=60_000)
    assert 2 in offsets(stream.read(1, 10))


def test_retention_by_age_of_what_the_server_timed(client: Headwater, stream: Stream) -> None:
    for size in (1, 20, 700):
        stream.write_many(entries(size))
    let_pass(client, 5)
    assert stream.retain(max_age_ms=10**9).evicted == 0
    assert stream.retain(max_age_ms=1).evicted == 721


def test_retention_by_bytes(stream: Stream) -> None:
    for first in range(1, 20_001, 1000):
        stream.write_many(entries(1000, first))
    stream.seal()
    size = stream.info().bytes
    assert stream.retain(max_bytes=size).evicted == 0
    stream.retain(max_bytes=size // 2)
    info = stream.info()
    assert size // 4 < info.bytes <= size // 2
    assert offsets(stream.read(info.first, 5)) == list(range(info.first, info.first + 5))
    assert info.length == info.last - info.first + 1


@pytest.mark.parametrize("rows", [1, 4, 20])
def test_retention_by_bytes_of_what_is_not_sealed_yet(stream: Stream, rows: int) -> None:
    for first in range(0, 80, rows):
        stream.write_many([(f"t{i}", bytes([i]) * 50_000) for i in range(first, first + rows)])
    assert stream.info().sealed == 0 or rows == 20
    assert stream.info().bytes > 3_000_000 or rows == 20
    stream.retain(max_bytes=1_000_000)
    info = stream.info()
    assert info.bytes <= 1_000_000
    assert rows == 20 or info.length >= 10
    assert [m.tag for m in stream.read(info.first, 99) if m] == [
        f"t{i}" for i in range(info.first - 1, 80)
    ]


def test_the_tightest_limit_counts(client: Headwater, stream: Stream) -> None:
    now = server_ms(client)
    for age in (90_000, 0):
        times = [now - age] * 50
        stream.append(pa.table({"tag": ["t"] * 50, "value": [b"v"] * 50, "time": times}))
    assert stream.retain(max_count=80, max_age_ms=60_000).evicted == 50


def test_retention_waits_for_the_slowest_reader_and_names_it(stream: Stream) -> None:
    stream.write_many(entries(100))
    group = stream.group("slow")
    group.read(30, ack_ms=FAR)
    group.ack((1, 19))
    stream.register_reader("spark", 40)
    assert stream.retain(max_count=10) == (19, 71, "slow")
    assert stream.info().first == 20
    group.ack((20, 30))
    assert stream.retain(max_count=10) == (11, 60, "slow")
    group.seek("last")
    assert stream.retain(max_count=10) == (9, 51, "spark")
    stream.forget_reader("spark")
    assert stream.retain(max_count=10) == (51, 0, None)


def test_a_removed_group_is_no_longer_waited_for(stream: Stream) -> None:
    stream.write_many(entries(20))
    group = stream.group("g")
    group.read(0)
    assert stream.retain(max_count=5) == (0, 15, "g")
    group.remove()
    assert stream.retain(max_count=5) == (15, 0, None)


def test_forced_retention_passes_readers_and_they_are_told(stream: Stream) -> None:
    stream.write_many(entries(100))
    group = stream.group("g")
    group.read(10, ack_ms=FAR)
    assert stream.retain(max_count=20, force=True) == (80, 0, None)
    assert offsets(group.read(100, ack_ms=FAR)) == list(range(81, 101))
    assert (group.info().missed, group.info().gaps) == (70, ((11, 80),))
    assert group.nack((1, 10)) == 10
    assert group.read(100) == []
    assert (group.info().missed, group.info().gaps) == (80, ((11, 80), (1, 10)))


def test_the_policy_is_remembered_and_can_be_lifted(stream: Stream) -> None:
    stream.write_many(entries(20))
    stream.retain(max_count=15)
    assert stream.info().retention.max_count == 15
    stream.retain()
    assert stream.info().retention.max_count is None
    assert stream.info().length == 15


def test_readers_are_listed_and_forgotten(stream: Stream) -> None:
    stream.write_many(entries(5))
    stream.register_reader("b", 2)
    stream.register_reader("a", 5)
    stream.register_reader("b", 3)
    assert stream.info().readers == {"a": 5, "b": 3}
    stream.forget_reader("a")
    stream.forget_reader("a")
    assert stream.info().readers == {"b": 3}
