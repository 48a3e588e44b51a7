"""Every limit is stated, and what lies outside is refused with a clear answer before it is sent."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa
import pytest

from headwater import Headwater, HeadwaterError, InvalidInput, Stream
from headwater.log import keys
from tests.support.entries import entries, pairs

pytestmark = pytest.mark.parametrize("client", ["embedded-sync", "plain-async"], indirect=True)

NOT_OFFSETS: list[Any] = [0, -1, 2**53, 1.0, "1", None, True]
NOT_COUNTS: list[Any] = [-1, 1.5, "3", None, True, keys.MAX_READ + 1]
NOT_SPANS: list[Any] = [-1, 1.5, "3", True, keys.MAX_MS + 1]

Use = Callable[[Stream, Any], object]
REFUSED: dict[str, tuple[Use, Sequence[Any]]] = {
    "offset": (lambda s, v: s.read(v, 1), NOT_OFFSETS),
    "count": (lambda s, v: s.read(1, v), NOT_COUNTS),
    "block_ms": (lambda s, v: s.read(1, 1, block_ms=v), (-1, "1", True, math.nan, -math.inf)),
    "scan start": (lambda s, v: list(s.scan(v)), (0, -1, 2**53, 1.5, "1")),
    "scan stop": (lambda s, v: list(s.scan(1, v)), (0, -1, 2**53, 1.5, "1")),
    "evict": (lambda s, v: s.evict(v), (2**53, -(2**53), 1.5, "1", None, True)),
    "backlog": (lambda s, v: s.write("t", b"", backlog=v), (-1, 2**53, 1.5, "1", True)),
    "backlog of a batch": (
        lambda s, v: s.write_many([("t", b"")], backlog=v),
        (-1, 2**53, 1.5, "1", True),
    ),
    "tag": (lambda s, v: s.write(v, b""), (None, b"t", 1, "\ud800", "t" * 4097, "é" * 2049)),
    "tag of a batch": (
        lambda s, v: s.write_many([("t", b""), (v, b"")]),
        (None, b"\xff", 1, "\ud800", "t" * 4097),
    ),
    "value": (lambda s, v: s.write("t", v), (None, 1, ["x"], {"a": 1})),
    "value of a batch": (lambda s, v: s.write_many([("t", v)]), (None, 1, ["x"], {"a": 1})),
    "entries": (
        lambda s, v: s.write_many(v),
        ([1], ["abc"], [("a",)], [("a", b"", 1)], 5, None, {"ab": b""}, "abcd"),
    ),
    "producer": (
        lambda s, v: s.write_many(entries(1), producer=v, sequence=1),
        ("", "a b", "x" * 201, "{p}", "a\n", 5),
    ),
    "sequence": (
        lambda s, v: s.write_many(entries(1), producer="p", sequence=v),
        (-1, 2**53, 1.5, "1", True),
    ),
    "max_count": (lambda s, v: s.retain(max_count=v), (-1, 1.5, "1", 2**53)),
    "max_age_ms": (lambda s, v: s.retain(max_age_ms=v), (-1, 1.5, "1", 2**53)),
    "max_bytes": (lambda s, v: s.retain(max_bytes=v), (-1, 1.5, "1", 2**53)),
    "marker_ms": (lambda s, v: s.compact(marker_ms=v), NOT_SPANS),
    "reader": (lambda s, v: s.register_reader(v, 1), ("", "a b", "x" * 201, "{", 5)),
    "position of a reader": (lambda s, v: s.register_reader("r", v), (-1, 1.5, "1", 2**53)),
    "group": (lambda s, v: s.group(v), ("", "a b", "x" * 201, "{g}", "a\tb", 5, None)),
    "member": (lambda s, v: s.group("g", member=v), ("a b", "x" * 201, "{", 5)),
    "start": (lambda s, v: s.group("g", v), ("middle", 0, -1, 1.5, None, "")),
    "max_pending": (lambda s, v: s.group("g", max_pending=v), (-1, 1.5, "1", True)),
    "dead_letters": (lambda s, v: s.group("g", dead_letters=v), ("", "a b", "x" * 201)),
    "count of a group": (lambda s, v: s.group("g").read(v), NOT_COUNTS),
    "ack_ms": (lambda s, v: s.group("g").read(1, ack_ms=v), (0, *NOT_SPANS)),
    "expire_ms": (lambda s, v: s.group("g").read(1, ack_ms=1, expire_ms=v), (0, *NOT_SPANS)),
    "expire_ms without ack_ms": (lambda s, v: s.group("g").read(1, expire_ms=v), (5,)),
    "block_ms of a group": (
        lambda s, v: s.group("g").read(1, block_ms=v),
        (-1, "1", True, math.nan),
    ),
    "offset of an ack": (lambda s, v: s.group("g").ack(v), NOT_OFFSETS),
    "range of an ack": (
        lambda s, v: s.group("g").ack(v),
        ((2, 1), (0, 5), (1, 2**53), (1, 2, 3), (1,)),
    ),
    "offset of a nack": (lambda s, v: s.group("g").nack(v), NOT_OFFSETS),
    "delay_ms": (lambda s, v: s.group("g").nack(1, delay_ms=v), NOT_SPANS),
    "ack_ms of an extension": (lambda s, v: s.group("g").extend(1, ack_ms=v), (0, *NOT_SPANS)),
    "seek": (lambda s, v: s.group("g").seek(v), ("middle", 0, -1, 1.5, None, 2**53)),
    "count of dead letters": (lambda s, v: s.group("g").dead(v), (-1, 1.5, "1", None)),
    "count to discard": (lambda s, v: s.group("g").discard(count=v), (-1, 1.5, "1")),
    "count of a redrive": (lambda s, v: s.group("g").redrive(v), (-1, 1.5, "1")),
}
NOT_NAMES: list[Any] = [
    *("", "a b", "a\tb", "a\n", "{a}", "a}", "x" * 201, "é" * 101),
    *("\ud800", "\x00", "\u00a0", None, 5, b"a"),
]
NAMES = ["x" * 200, "é" * 100, "a:b/c.d-e_f", "日本", "*?[a]", "'\"\\", "0"]


@pytest.mark.parametrize("what", REFUSED)
def test_what_cannot_be_meant_is_refused_before_it_is_sent(stream: Stream, what: str) -> None:
    use, values = REFUSED[what]
    for value in values:
        with pytest.raises(InvalidInput) as caught:
            use(stream, value)
        assert isinstance(caught.value, HeadwaterError | ValueError)
        assert len(str(caught.value)) > 20
    info = stream.info()
    assert not info.exists
    assert (info.readers, info.groups) == ({}, ())


@pytest.mark.parametrize("name", NOT_NAMES, ids=repr)
def test_a_name_that_cannot_be_is_refused(client: Headwater, name: Any) -> None:
    with pytest.raises(InvalidInput):
        client.stream(name)
    with pytest.raises(InvalidInput):
        client.topic(name)


@pytest.mark.parametrize("given", NAMES)
def test_a_name_may_have_any_printable_characters_but_braces(
    client: Headwater, name: str, given: str
) -> None:
    full = (name + given)[:200] if given.isascii() else given
    stream = client.stream(full)
    stream.delete()
    stream.write("a", b"1")
    assert len(stream.group(given, member=given).read(5)) == 1
    assert full in client.streams()
    assert stream.delete()


def test_the_largest_tag_and_value_are_taken(stream: Stream) -> None:
    tag, value = "t" * keys.MAX_TAG_BYTES, b"v" * keys.MAX_VALUE_BYTES
    stream.write(tag, value)
    stream.write_many([(tag, value), ("é" * (keys.MAX_TAG_BYTES // 2), b"")])
    assert pairs(stream.read(1, 1)) == [(tag, value)]
    assert pairs(stream.read(2, 2)) == [(tag, value), ("é" * (keys.MAX_TAG_BYTES // 2), b"")]
    stream.seal()
    assert pairs(stream.read(1, 2)) == [(tag, value)] * 2
    stream.delete()


def test_a_larger_value_is_refused(stream: Stream) -> None:
    value = b"v" * (keys.MAX_VALUE_BYTES + 1)
    with pytest.raises(InvalidInput, match=f"{keys.MAX_VALUE_BYTES}.*make it smaller"):
        stream.write("t", value)
    with pytest.raises(InvalidInput, match="make it smaller"):
        stream.write_many([("t", b""), ("t", value)])
    with pytest.raises(InvalidInput, match="make it smaller"):
        stream.append(pa.table({"tag": ["t"], "value": [value]}))
    assert not stream.info().exists


def test_the_largest_batch_is_taken_and_a_larger_one_refused(stream: Stream) -> None:
    most = keys.MAX_BATCH_MESSAGES
    assert stream.write_many([("t", b"v")] * most) == range(1, most + 1)
    with pytest.raises(InvalidInput, match="split it"):
        stream.write_many([("t", b"v")] * (most + 1))
    with pytest.raises(InvalidInput, match="split it"):
        stream.append(pa.table({"tag": ["t"] * (most + 1), "value": [b"v"] * (most + 1)}))
    assert stream.info().last == most
    assert len(stream.read(1, keys.MAX_READ)) == most
    assert len(stream.group("g").read(keys.MAX_READ)) == most
    stream.delete()


def test_a_batch_of_too_many_bytes_is_refused(stream: Stream) -> None:
    value = b"v" * (keys.MAX_BATCH_BYTES // 8)
    with pytest.raises(InvalidInput, match="split it"):
        stream.write_many([("t", value)] * 9)
    assert not stream.info().exists


def test_any_number_of_offsets_can_be_acked_at_once(stream: Stream) -> None:
    stream.write_many(entries(20_000))
    group = stream.group("g")
    assert len(group.read(20_000, ack_ms=10**9)) == 20_000
    assert group.nack(*range(1, 20_001, 3), delay_ms=10**9) == 6667
    assert group.ack(*range(2, 20_001, 2)) == 10_000
    assert group.ack(*range(1, 20_001)) == 10_000
    assert group.info().pending == 0
