"""A read may ask for the first and last offset of the same moment, at no further round trip."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pyarrow as pa
import pytest

import headwater
from headwater import (
    Headwater,
    InvalidInput,
    ReusedSequence,
    Stream,
    TopicWithInfo,
    WithInfo,
)
from headwater.log.keys import nodes_key, stream_key
from headwater.log.node import FLAGS_AT, HAS_HEADERS
from tests.support.entries import entries, offsets
from tests.support.groups import FAR
from tests.support.scrubbed import assert_sound
from tests.support.servers import Server, until
from tests.support.waking import wait_for_members
from tests.support.watch import RoundTrips, let_pass


def test_a_read_tells_the_bounds_of_its_stream(stream: Stream) -> None:
    assert stream.read(1, 5, with_info=True) == WithInfo([], 1, 0)
    stream.write_many(entries(10))
    stream.evict(3)
    messages, first, last = stream.read(2, 4, with_info=True)
    assert messages == stream.read(2, 4)
    assert (messages[:2], offsets(messages[2:]), first, last) == ([None, None], [4, 5], 4, 10)
    assert stream.read(1, 0, with_info=True) == WithInfo([], 4, 10)
    assert stream.read(11, 5, with_info=True) == WithInfo([], 4, 10)
    assert stream.read(11, 5, block_ms=20, with_info=True) == WithInfo([], 4, 10)


def test_a_group_tells_the_bounds_of_its_stream(client: Headwater, stream: Stream) -> None:
    group = stream.group("g")
    assert group.read(5, with_info=True) == WithInfo([], 1, 0)
    stream.write_many(entries(10))
    stream.evict(3, past_readers=True)
    found = group.read(2, ack_ms=60_000, with_info=True)
    assert (offsets(found.messages), found.first, found.last) == ([4, 5], 4, 10)
    assert group.read(0, with_info=True) == WithInfo([], 4, 10)
    decoding = client.stream(stream.name, codec=(lambda _: b"", len)).group("g")
    assert [m.data for m in decoding.read(1, with_info=True).messages] == [len(entries(6)[5][1])]


def test_a_group_of_a_topic_tells_the_bounds_of_every_partition(
    client: Headwater, name: str
) -> None:
    topic = client.topic(name, partitions=3)
    group = topic.group("g")
    empty = {0: 1, 1: 1, 2: 1}, {0: 0, 1: 0, 2: 0}
    assert group.read(5, block_ms=20, with_info=True) == TopicWithInfo([], *empty)
    for place, count in enumerate((3, 5, 7)):
        topic.partition(place).write_many(entries(count))
    topic.partition(1).evict(2, past_readers=True)
    bounds = {0: 1, 1: 3, 2: 1}, {0: 3, 1: 5, 2: 7}
    for count, taken in ((1, 1), (2, 2), (100, 10), (0, 0), (1, 0)):
        found = group.read(count, ack_ms=60_000, block_ms=20, with_info=True)
        assert (len(found.messages), found.first, found.last) == (taken, *bounds)
    topic.partition(2).write("a", b"12345")
    decoding = client.topic(name, codec=(lambda _: b"", len)).group("g")
    assert [m.data for m in decoding.read(5, with_info=True).messages] == [5]


def test_the_bounds_of_a_read_cost_no_round_trip(
    hw: Headwater, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = hw.stream(name)
    stream.write_many(entries(5))
    group = stream.group("g")
    group.read(1)
    for read in (
        lambda: stream.read(1, 3, with_info=True),
        lambda: stream.read(1, 0, with_info=True),
        lambda: group.read(2, with_info=True),
    ):
        trips = RoundTrips(hw, monkeypatch)
        assert read().last == 5
        assert trips.count == 1
        monkeypatch.undo()


@pytest.mark.parametrize("through", ["stream", "group"])
def test_a_blocked_reader_that_is_woken_has_the_bounds_too(
    store_url: str, name: str, through: str
) -> None:
    found: list[WithInfo[Any]] = []
    with headwater.connect(store_url) as reader, headwater.connect(store_url) as writer:
        stream, group = reader.stream(name), reader.stream(name).group("g")

        def read() -> None:
            if through == "stream":
                found.append(stream.read(1, 5, block_ms=60_000, with_info=True))
            else:
                found.append(group.read(5, block_ms=60_000, with_info=True))

        thread = threading.Thread(target=read)
        thread.start()
        if through == "group":
            until(
                lambda: name in writer.streams() and writer.stream(name).group("g").info().waiting
            )
        writer.stream(name).write("a", b"1")
        thread.join(60)
    assert [(offsets(one.messages), one.first, one.last) for one in found] == [([1], 1, 1)]


Row = tuple[str, bytes, dict[str, bytes]]
MAP = pa.map_(pa.string(), pa.binary())
STRUCTS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


@pytest.fixture(scope="module")
def own() -> Iterator[Server]:
    with Server() as server:
        yield server


def rows(count: int, first: int = 1) -> list[Row]:
    """Make rows of which every third has no headers."""
    headers = {"traceparent": b"00-0af7651916cd43dd8448eb211c80319c-01", "content-type": b"json"}
    return [
        (tag, value, {**headers, "n": b"%d" % i} if i % 3 else {})
        for i, (tag, value) in enumerate(entries(count, first), first)
    ]


def as_rows(messages: Iterable[Any]) -> list[Row]:
    return [(m.tag, m.value, m.headers) for m in messages if m is not None]


def found_in(stream: Stream, offset: int = 1) -> list[Row]:
    return as_rows(stream.read(offset, 10_000))


def table(given: list[Row], kind: pa.DataType) -> pa.Table:
    tags, values, headers = zip(*given, strict=True)
    column: Any = [list(one.items()) for one in headers]
    if kind == STRUCTS:
        column = [[{"key": n, "value": v} for n, v in one] or None for one in column]
    return pa.table({"tag": tags, "value": values, "headers": pa.array(column, kind)})


def publish(stream: Stream, given: list[Row]) -> None:
    stream.stage(table(given, MAP), "x")
    stream.publish("x", producer="p", sequence=1)


WAYS: dict[str, Callable[[Stream, list[Row]], object]] = {
    "write": lambda stream, given: [stream.write(t, v, headers=h) for t, v, h in given[:20]],
    "write_many": lambda stream, given: stream.write_many(given),
    "maps": lambda stream, given: stream.append(table(given, MAP)),
    "structs": lambda stream, given: stream.append(table(given, STRUCTS)),
    "publish": publish,
}


@pytest.mark.parametrize("size", [5, 60, 1600])
@pytest.mark.parametrize("way", WAYS)
def test_headers_come_back_by_every_way(
    stream: Stream, client: Headwater, way: str, size: int
) -> None:
    given = rows(size)
    WAYS[way](stream, given)
    given = given[:20] if way == "write" else given
    assert found_in(stream) == given
    assert as_rows(stream.group("g").read(10_000)) == given
    for _ in "before", "after":
        scanned = [row for batch in stream.scan(headers=True) for row in batch.to_pylist()]
        assert [(r["tag"], r["value"], dict(r["headers"])) for r in scanned] == given
        assert "headers" not in next(iter(stream.scan())).schema.names
        stream.seal()
    assert found_in(client.stream(stream.name)) == given
    if way == "publish":
        assert_sound(client, stream.name)


def test_a_message_without_headers_has_the_shared_empty_ones(stream: Stream) -> None:
    stream.write("t", b"1")
    stream.write("t", b"1", headers={})
    stream.write_many([("t", b"1"), ("t", b"2", None)])
    found = [message for message in stream.read(1, 9) if message]
    assert len({id(message.headers) for message in found}) == 1
    assert all(message.headers == {} for message in found)
    assert {type(message) for message in found} == {headwater.Message}


def test_rewritten_nodes_keep_headers(client: Headwater, stream: Stream) -> None:
    given = rows(2600)
    stream.write_many(entries(500))
    stream.write_many(given)
    client.keep(stream.name)
    assert found_in(stream, 501) == given
    stream.compact()
    last_of_tags = {row[0]: row for row in given}
    assert sorted(found_in(stream), key=str) == sorted(last_of_tags.values(), key=str)
    stream.write_many(rows(30))
    stream.evict(3102)
    assert found_in(stream, 3103) == rows(30)[2:]


def test_only_nodes_with_headers_have_the_column(own: Server) -> None:
    with headwater.connect(own.url) as hw, own.client() as admin:
        stream = hw.stream("mixed")
        given: list[Row] = [(tag, value, {}) for tag, value in entries(3000)]
        given[1500] = ("t", b"1", {"a": b"1"})
        stream.write_many(given)
        blobs = admin.hgetall(nodes_key(stream_key("mixed")))
        headed = {base for base, blob in blobs.items() if blob[FLAGS_AT] & HAS_HEADERS}
        assert headed == {b"1001"}
        assert found_in(stream) == given


def test_a_blocked_member_gets_headers(stream: Stream, pool: ThreadPoolExecutor) -> None:
    group = stream.group("g")
    group.read(0)
    for given in ({"a": b"1"}, {"a": b"x" * 4000}):
        waiting = pool.submit(group.read, 1, block_ms=20_000, ack_ms=FAR)
        wait_for_members(group, 1)
        stream.write("t", b"value", headers=given)
        assert as_rows(waiting.result(60)) == [("t", b"value", given)]
    reading = pool.submit(stream.read, 3, 1, block_ms=20_000)
    stream.write("t", b"value", headers={"b": b"2"})
    assert as_rows(reading.result(60)) == [("t", b"value", {"b": b"2"})]


def test_dead_letters_keep_headers_and_so_does_a_redrive(client: Headwater, stream: Stream) -> None:
    given = rows(12)
    stream.write_many(given)
    group = stream.group("g", dead_letters=True)
    group.read(12, ack_ms=FAR, expire_ms=1)
    let_pass(client, 1)
    assert group.bury() == 12
    assert as_rows(group.dead()) == given
    assert found_in(client.stream(f"{stream.name}.g.dead")) == given
    group.redrive()
    assert as_rows(group.read(12, ack_ms=FAR)) == given


def test_messages_of_topics_and_typed_messages_have_headers(client: Headwater, name: str) -> None:
    topic: Any = client.topic(name, partitions=2, codec="json")
    topic.write("t", {"n": 1}, headers={"a": "1"})
    topic.write_many([("t", [2], {"a": "2"}), ("t", 3)])
    found = topic.group("g").read(10)
    assert [(m.data, m.headers) for m in found] == [
        ({"n": 1}, {"a": b"1"}),
        ([2], {"a": b"2"}),
        (3, {}),
    ]
    plain = client.topic(name).group("h").read(10)
    assert [m.headers for m in plain] == [{"a": b"1"}, {"a": b"2"}, {}]
    scanned = [row for batch in topic.scan(headers=True) for row in batch.to_pylist()]
    assert [dict(row["headers"]) for row in scanned] == [{"a": b"1"}, {"a": b"2"}, {}]


def test_messages_that_were_read_are_copied_with_their_headers(
    client: Headwater, stream: Stream
) -> None:
    given = rows(20)
    stream.write_many(given)
    copy = client.stream(f"{stream.name}-copy")
    copy.write_many(message for message in stream.read(1, 20) if message)
    assert found_in(copy) == given


def test_a_repeat_has_the_same_headers(stream: Stream) -> None:
    at = stream.write_many([("t", b"1", {"a": b"1", "b": b"2"})], producer="p", sequence=1)
    assert stream.write_many([("t", b"1", {"b": b"2", "a": b"1"})], producer="p", sequence=1) == at
    for other in ({"a": b"1"}, {"a": b"1", "b": b"3"}, None):
        with pytest.raises(ReusedSequence):
            stream.write_many([("t", b"1", other)], producer="p", sequence=1)


@pytest.mark.parametrize("given", [{"hw.mine": b""}, {"": b""}, {"a": bytes(4096)}, [("a", b"")]])
def test_what_is_refused_is_not_sent(stream: Stream, given: Any) -> None:
    for write in (
        lambda: stream.write("t", b"1", headers=given),
        lambda: stream.write_many([("t", b"1"), ("t", b"2", given)]),
    ):
        with pytest.raises(InvalidInput, match="header"):
            write()
    assert stream.info().last == 0


@pytest.mark.parametrize(
    "entry", ["abc", b"abc", ("t",), ("t", b"1", {}, 4), 7, ("t", b"1", "x")], ids=repr
)
def test_an_entry_of_another_form_is_refused(stream: Stream, entry: Any) -> None:
    with pytest.raises(InvalidInput):
        stream.write_many([("t", b"1"), entry])


def test_a_column_of_another_type_is_refused(stream: Stream) -> None:
    for column in (pa.array([b"a"]), pa.array([[1, 2]]), pa.array([{"a": 1}])):
        with pytest.raises(InvalidInput, match="headers must be map"):
            stream.append(pa.table({"tag": ["t"], "value": [b"1"], "headers": column}))
    twice = pa.array([[("a", b"1"), ("a", b"2")]], MAP)
    with pytest.raises(InvalidInput, match="two headers of one name"):
        stream.append(pa.table({"tag": ["t"], "value": [b"1"], "headers": twice}))
