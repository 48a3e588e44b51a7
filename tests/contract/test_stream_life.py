"""Streams are listed while they exist, end, begin anew, and say where they stand."""

from __future__ import annotations

import pytest

from headwater import Headwater, Stream, connect
from tests.support.entries import entries, offsets, pairs
from tests.support.watch import server_ms


def test_streams_are_listed_while_they_exist(client: Headwater, name: str) -> None:
    names = [f"{name}.{i}" for i in (2, 1, 3)]
    for each in names:
        client.stream(each).write("a", b"1")
    assert [n for n in client.streams() if n.startswith(name)] == sorted(names)
    assert client.stream(names[0]).delete()
    assert [n for n in client.streams() if n.startswith(name)] == sorted(names[1:])


@pytest.mark.parametrize("size", [1, 700])
def test_a_stream_that_is_written_again_after_its_end_is_listed_again(
    size: int, store_url: str, name: str
) -> None:
    with connect(store_url) as hw, connect(store_url) as other:
        stream = hw.stream(name)
        stream.write("t", b"before")
        other.stream(name).delete()
        assert name not in hw.streams()
        stream.write_many(entries(size))
        assert name in hw.streams()
        other.stream(name).delete()
        stream.write("t", b"after")
        assert name in hw.streams()


def test_streams_of_similar_names_are_apart(client: Headwater, name: str) -> None:
    names = [name, f"{name}:tail", f"{name}:g:1:g", f"{name}/0", f"{name}.é", f"{name}[*]"]
    for place, each in enumerate(names):
        stream = client.stream(each)
        stream.write_many(entries(place + 1))
        stream.group("g").read(1, ack_ms=60_000)
    assert [client.stream(each).info().last for each in names] == [1, 2, 3, 4, 5, 6]
    assert [client.stream(each).group("g").info().pending for each in names] == [1] * 6


def test_a_deleted_stream_starts_again(client: Headwater, stream: Stream, name: str) -> None:
    stream.write_many(entries(1500), producer="p", sequence=1)
    stream.group("g").read(10, ack_ms=60_000)
    stream.register_reader("spark", 5)
    stream.retain(max_count=5000)
    other = client.stream(name)
    assert offsets(other.read(700, 2)) == [700, 701]

    assert stream.delete()
    assert not stream.delete()
    assert not stream.info().exists
    assert stream.read(1, 10) == []

    fresh = entries(1500, 5001)
    assert stream.write_many(fresh, producer="p", sequence=1) == range(1, 1501)
    assert pairs(other.read(700, 2)) == fresh[699:701]
    assert pairs(stream.group("g").read(1)) == fresh[:1]
    info = stream.info()
    assert (info.readers, info.groups) == ({}, ("g",))
    assert info.retention.max_count is None


def test_info_says_where_the_stream_stands(client: Headwater, stream: Stream) -> None:
    before = server_ms(client)
    stream.write_many(entries(100))
    stream.evict(30)
    stream.group("one").read(1)
    stream.group("two").read(1)
    stream.register_reader("spark", 42)
    stream.retain(max_count=1000, max_age_ms=10**10, max_bytes=10**9)
    info = stream.info()
    assert (info.name, info.first, info.last, info.length) == (stream.name, 31, 100, 70)
    assert info.bytes > 0
    assert set(info.groups) == {"one", "two"}
    assert info.readers == {"spark": 42}
    limits = info.retention
    assert (limits.max_count, limits.max_age_ms, limits.max_bytes) == (1000, 10**10, 10**9)
    assert before <= info.created_ms <= server_ms(client)
    assert info.exists


def test_an_emptied_stream_has_its_last_before_its_first(stream: Stream) -> None:
    stream.write_many(entries(10))
    stream.evict(10)
    info = stream.info()
    assert (info.first, info.last, info.length) == (11, 10, 0)
    assert info.exists
    assert stream.write("a", b"1") == 11
