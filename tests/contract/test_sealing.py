"""Sealing repacks history into compressed nodes; nobody can tell from what is read."""

from __future__ import annotations

import pytest

from headwater import Headwater, Stream
from tests.support.entries import entries, pairs


@pytest.mark.parametrize("size", [1, 5, 8, 9, 60, 400, 499])
def test_a_log_without_housekeeper_is_sealed_as_it_is_written(stream: Stream, size: int) -> None:
    if size == 1:
        stream.write_many(entries(499))
        stream.write_many(entries(499, 500))
        stream.write_many(entries(499, 999))
        stream.write_many(entries(499, 1498))
    written = stream.info().last
    while written < 2600:
        if size == 1:
            stream.write(*entries(1, written + 1)[0])
        else:
            stream.write_many(entries(size, written + 1))
        written += size
    info = stream.info()
    assert info.sealed >= 1000
    assert info.last - info.sealed < 2000
    rows = entries(written)
    assert pairs(stream.read(1, 5000)) == rows
    for at in (1, 990, 999, 1000, 1001, 1002, 1990, info.sealed, info.sealed + 1):
        assert pairs(stream.read(at, 25)) == rows[at - 1 : at + 24]


def test_sealing_keeps_messages_offsets_and_times(stream: Stream) -> None:
    for size in (1, 3, 30, 700, 2, 450, 450, 450, 9):
        stream.write_many(entries(size, stream.info().last + 1))
    before = stream.read(1, 5000)
    sealed = stream.info().sealed
    assert stream.seal() == len(before) - sealed
    info = stream.info()
    assert (info.sealed, info.length, info.first) == (len(before), len(before), 1)
    assert stream.read(1, 5000) == before
    for at in range(1, len(before), 97):
        assert stream.read(at, 10) == before[at - 1 : at + 9]


def test_sealing_again_does_nothing(stream: Stream) -> None:
    stream.write_many(entries(30))
    assert (stream.seal(), stream.seal()) == (30, 0)
    stream.write("a", b"1")
    assert stream.seal() == 1
    assert stream.info().nodes == 2


def test_sealing_makes_history_smaller(stream: Stream) -> None:
    for first in range(1, 901, 4):
        stream.write_many([(tag, value * 10) for tag, value in entries(4, first)])
    before = stream.info().bytes
    stream.seal()
    assert stream.info().bytes < before / 2


def test_writing_continues_after_sealing(stream: Stream) -> None:
    for first in range(1, 100, 10):
        stream.write_many(entries(10, first))
        stream.seal()
        stream.write(*entries(1, first)[0])
        stream.evict(stream.info().last)
    assert stream.info().last == 110
    assert stream.write_many(entries(3)) == range(111, 114)


def test_pending_messages_survive_sealing(stream: Stream) -> None:
    rows = entries(40)
    stream.write_many(rows)
    group = stream.group("g")
    group.read(20, ack_ms=10**9)
    stream.seal()
    assert group.nack((1, 20)) == 20
    assert pairs(group.read(100, ack_ms=10**9)) == rows


def test_who_reads_while_others_seal_sees_everything_once(
    client: Headwater, stream: Stream
) -> None:
    """The reader holds a node that is replaced under it, again and again."""
    reader = client.stream(stream.name)
    rows = entries(60)
    for at in range(60):
        stream.write(*rows[at])
        if at % 7 == 0:
            stream.seal()
        assert pairs(reader.read(max(1, at - 20), 100)) == rows[max(1, at - 20) - 1 : at + 1]
