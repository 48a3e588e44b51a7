"""A reader that goes on behind the node it read last sees what anybody sees, whatever happened."""

from __future__ import annotations

import secrets
from collections.abc import Callable

import pytest

from headwater import Headwater, Stream
from tests.support.entries import entries


def nothing(_: Stream) -> None:
    """Leave all as it is."""


def evict_into_the_next_node(stream: Stream) -> None:
    stream.evict(1500)


def evict_past_the_next_node(stream: Stream) -> None:
    stream.evict(2000)


def compact(stream: Stream) -> None:
    stream.write_many(entries(700, 3001, tags=100))
    stream.compact()


def make_anew(stream: Stream) -> None:
    stream.delete()
    stream.write_many(entries(1000, 1))
    stream.write_many(entries(600, 5001))


def make_anew_shorter(stream: Stream) -> None:
    stream.delete()
    stream.write_many(entries(10, 1))


CHANGES = [
    nothing,
    evict_into_the_next_node,
    evict_past_the_next_node,
    compact,
    make_anew,
    make_anew_shorter,
]


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
@pytest.mark.parametrize("count", [300, 5000])
def test_reading_on_gives_what_a_newcomer_gets(
    client: Headwater, change: Callable[[Stream], None], count: int
) -> None:
    stream = client.stream(secrets.token_hex(8))
    for at in range(1, 3001, 1000):
        stream.write_many(entries(1000, at, tags=100))
    assert len(stream.read(1, 1000)) == 1000
    change(client.stream(stream.name))
    expected = client.stream(stream.name).read(1001, count)
    assert stream.read(1001, count) == expected


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_passing_on_gives_what_a_newcomer_gets(
    client: Headwater, change: Callable[[Stream], None]
) -> None:
    stream = client.stream(secrets.token_hex(8))
    for at in range(1, 3001, 1000):
        stream.write_many(entries(1000, at, tags=100))
    assert stream.read_from(1, 1000).next == 1001
    change(client.stream(stream.name))
    expected = client.stream(stream.name).read_from(1001, 700)
    assert stream.read_from(1001, 700) == expected


def test_a_reader_at_the_end_of_the_nodes_sees_what_comes(client: Headwater) -> None:
    stream = client.stream(secrets.token_hex(8))
    stream.write_many(entries(1000))
    stream.read(1, 1000)
    assert stream.read(1001, 10) == []
    client.stream(stream.name).write("t", b"next")
    assert [m.value for m in stream.read(1001, 10) if m] == [b"next"]
