"""A bit that changes in an entry at rest is noticed, by whichever way the message is read."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Mapping

import pytest
import redis

from headwater import Headwater, Message, Stream, UnreadableNode
from headwater.log.keys import index_key, stream_key, tail_key
from headwater.store.library import name_in_server
from tests.support.entries import entries
from tests.support.servers import Server

ROWS: list[tuple[str, bytes, dict[str, bytes]]] = [
    ("ride-1", b"moved", {}), ("", b"", {}), ("é", b"0 1 2 3", {}), ("t", b"v", {"a": b"1"})
]  # fmt: skip


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with Server() as server:
        yield server


@pytest.fixture(scope="module")
def client(server: Server) -> Iterator[Headwater]:
    with Headwater(server.url) as client:
        yield client


Row = tuple[int, str, bytes, int, Mapping[str, bytes]]


def as_row(message: Message) -> Row:
    return (message.offset, message.tag, message.value, message.time_ms, message.headers)


def by_read(stream: Stream) -> list[Row]:
    return [as_row(m) for m in stream.read(1, 1000) if m is not None]


def by_read_from(stream: Stream) -> list[Row]:
    return [as_row(m) for m in stream.read_from(1, 1000).messages]


def by_blocking(stream: Stream) -> list[Row]:
    last = stream.info().last
    return [as_row(m) for m in stream.read(last, 1, block_ms=1) if m is not None]


def by_scan(stream: Stream) -> list[Row]:
    rows = [row for batch in stream.scan(headers=True) for row in batch.to_pylist()]
    return [
        (
            r["offset"],
            r["tag"],
            r["value"],
            int(r["time"].timestamp() * 1000 + 0.5),
            dict(r["headers"]),
        )
        for r in rows
    ]


def by_group(stream: Stream) -> list[Row]:
    return [as_row(m) for m in stream.group(secrets.token_hex(4)).read(1000)]


WAYS: dict[str, Callable[[Stream], list[Row]]] = {
    "read": by_read,
    "read_from": by_read_from,
    "blocking": by_blocking,
    "scan": by_scan,
    "group": by_group,
}


def flips(text: bytes) -> Iterator[bytes]:
    """Give the text with each bit of it changed in turn."""
    for bit in range(8 * len(text)):
        changed = bytearray(text)
        changed[bit // 8] ^= 1 << bit % 8
        yield bytes(changed)


def changed_fields(fields: list[bytes], step: int = 1) -> Iterator[list[bytes]]:
    """Give the fields of an entry with each bit of each of them changed in turn."""
    for place, text in enumerate(fields):
        for number, changed in enumerate(flips(text)):
            if number % step == 0:
                yield [*fields[:place], changed, *fields[place + 1 :]]


def put_last(raw: redis.Redis, key: str, entry_id: bytes, fields: list[bytes]) -> None:
    """Put an entry in the place of a tail that has only this one."""
    raw.delete(tail_key(key))
    raw.execute_command("XADD", tail_key(key), entry_id, *fields)


def last_entry(raw: redis.Redis, key: str) -> tuple[bytes, list[bytes]]:
    reply = raw.execute_command("XREVRANGE", tail_key(key), "+", "-", "COUNT", 1)
    entry_id, pairs = reply[0]
    return entry_id, [part for pair in pairs.items() for part in pair]


def assert_none_is_altered(
    stream: Stream, read: Callable[[Stream], list[Row]], right: list[Row], where: object
) -> bool:
    """Fail if a way of reading gives other messages; returns whether the damage was noticed."""
    try:
        found = read(stream)
    except UnreadableNode as error:
        found, place = [], (error.stream, error.offset)
    if not found:
        assert place[0] == stream.name
        assert place[1] in [row[0] for row in right]
        return True
    assert found == right[-len(found) :], where
    return False


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("row", ROWS, ids=["text", "empty", "unicode", "headers"])
def test_no_flipped_bit_of_a_plain_entry_alters_a_message(
    server: Server, client: Headwater, way: str, row: tuple[str, bytes, dict[str, bytes]]
) -> None:
    stream = client.stream(secrets.token_hex(4))
    stream.write(*row[:2], headers=row[2])
    right, key = by_read(stream), stream_key(stream.name)
    noticed = 0
    with server.client() as raw:
        entry_id, fields = last_entry(raw, key)
        for changed in changed_fields(fields):
            put_last(raw, key, entry_id, changed)
            noticed += assert_none_is_altered(stream, WAYS[way], right, changed)
        # Not the names of fields, which tell nothing, but each bit of tag, value, time, checksum.
        assert noticed >= 8 * sum(map(len, fields[1::2]))
        put_last(raw, key, entry_id, fields)
    assert WAYS[way](stream) == right


@pytest.mark.parametrize("way", WAYS)
def test_no_flipped_bit_of_a_packed_entry_alters_a_message(
    server: Server, client: Headwater, way: str
) -> None:
    stream = client.stream(secrets.token_hex(4))
    stream.write_many(entries(20))
    right, key = by_read(stream), stream_key(stream.name)
    with server.client() as raw:
        entry_id, fields = last_entry(raw, key)
        for changed in changed_fields(fields, step=13):
            put_last(raw, key, entry_id, changed)
            assert_none_is_altered(stream, WAYS[way], right, changed)


@pytest.mark.parametrize("count", [1, 20])
def test_a_damaged_entry_is_not_sealed_into_a_node(
    server: Server, client: Headwater, count: int
) -> None:
    stream = client.stream(secrets.token_hex(4))
    stream.write_many(entries(count))
    right, key = by_read(stream), stream_key(stream.name)
    with server.client() as raw:
        entry_id, fields = last_entry(raw, key)
        for place in (1, 3, 5):
            for text in list(flips(fields[place]))[::7]:
                put_last(raw, key, entry_id, [*fields[:place], text, *fields[place + 1 :]])
                with pytest.raises(UnreadableNode):
                    stream.seal()
        assert stream.info().sealed == 0
        put_last(raw, key, entry_id, fields)
    assert stream.seal() == count
    assert by_read(stream) == right


@pytest.mark.parametrize("way", ["read", "read_from", "scan", "group"])
def test_no_flipped_bit_of_a_row_of_the_index_alters_a_message(
    server: Server, client: Headwater, way: str
) -> None:
    name = secrets.token_hex(4)
    client.stream(name).write_many(entries(600))
    right, key = by_read(client.stream(name)), stream_key(name)
    with server.client() as raw:
        ((member, score),) = raw.zrange(index_key(key), 0, -1, withscores=True)
        parts = member.split(b":")
        for place in (0, 3, 5):
            for text in flips(parts[place]):
                if not text.isdigit():
                    continue
                raw.delete(index_key(key))
                changed = b":".join([*parts[:place], text, *parts[place + 1 :]])
                raw.zadd(index_key(key), {changed: score})
                try:
                    found = WAYS[way](client.stream(name))
                except UnreadableNode:
                    continue
                assert found in (right, []), changed


def test_entries_without_a_checksum_stay_readable(server: Server, client: Headwater) -> None:
    stream = client.stream(secrets.token_hex(4))
    key = stream_key(stream.name)
    with server.client() as raw:
        write = name_in_server("hw_stream_write")
        raw.execute_command("FCALL", write, 1, key, "", "", "", "plain", "t", "v")
        _, fields = last_entry(raw, key)
        assert b"-" not in fields[5]
    for way in WAYS.values():
        assert [row[:3] for row in way(stream)] == [(1, "t", b"v")]
