"""A message that the store has lost in the middle of a stream is told by every reader.

Offsets between the first and the last that have neither a node nor an entry are damage, unlike
those that compaction emptied.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import redis

import headwater
from headwater import GapError, Headwater, Limits, MissingMessages, Stream, UnreadableNode
from headwater.log.keys import index_key, stream_key, tail_key
from headwater.store import embedded
from tests.support.commands import run
from tests.support.consumers import Desk, drain, numbers
from tests.support.entries import entries, offsets, pairs
from tests.support.servers import Server, until
from tests.support.stores import Stores


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with Server() as server:
        yield server


@pytest.fixture
def hw(server: Server) -> Iterator[Headwater]:
    with Headwater(server.url) as client:
        yield client


def lose_entry(server: Server, name: str, last: int) -> None:
    """Take an entry out of the tail, as a flipped bit in the key of its XADD does."""
    with server.client() as raw:
        assert raw.xdel(tail_key(stream_key(name)), f"0-{last}") == 1


def lose_row(server: Server, name: str, last: int) -> None:
    with server.client() as raw:
        assert raw.zremrangebyscore(index_key(stream_key(name)), last, last) == 1


# What is lost, of how many messages: some are written one by one, some packed, some as nodes.
Loss = tuple[int, int]
LOSSES = {
    "plain": (5, 5),
    "first": (1, 1),
    "last": (9, 9),
    "packed": (4, 23),
    "node": (1001, 2000),
    "newest node": (2001, 3000),
}


def lossy(server: Server, stream: Stream, kind: str) -> Loss:
    if "node" in kind:
        for at in range(1, 3001, 1000):
            stream.write_many(entries(1000, at))
        lose_row(server, stream.name, LOSSES[kind][1])
        stream.write_many(entries(3, 3001))
    elif kind == "packed":
        stream.write_many(entries(3))
        stream.write_many(entries(20, 4))
        stream.write_many(entries(3, 24))
        lose_entry(server, stream.name, 23)
    else:
        for row in entries(9):
            stream.write(*row)
        lose_entry(server, stream.name, LOSSES[kind][0])
    return LOSSES[kind]


def read_on(stream: Stream, *, step: int = 4000) -> list[int]:
    found, at = [], 1
    while at <= stream.info().last:
        passage = stream.read_from(at, step)
        found += offsets(passage.messages)
        at = passage.next
    return found


WAYS: dict[str, Callable[[Stream, Loss], object]] = {
    "read": lambda stream, _: stream.read(1, 5000),
    "read it": lambda stream, lost: stream.read(lost[1], 1),
    "read with info": lambda stream, lost: stream.read(lost[0], 1, with_info=True),
    "blocked": lambda stream, lost: stream.read(lost[0], 1, block_ms=1),
    "read_from": lambda stream, _: read_on(stream),
    "in steps": lambda stream, _: read_on(stream, step=2),
    "scan": lambda stream, _: list(stream.scan()),
    "scan it": lambda stream, lost: list(stream.scan(lost[0], lost[1] + 1)),
    "search": lambda stream, _: stream.search(tag="none"),
    "search back": lambda stream, _: stream.search(tag="none", newest_first=True),
}


@pytest.mark.parametrize("kind", LOSSES)
def test_every_way_of_reading_raises(server: Server, hw: Headwater, name: str, kind: str) -> None:
    stream = hw.stream(name)
    first, last = lossy(server, stream, kind)
    for way, read in WAYS.items():
        if way == "in steps" and last > 1000:
            continue
        with pytest.raises(MissingMessages, match="has lost the messages") as told:
            read(hw.stream(name), (first, last))
        assert told.value.stream == name, way
        assert first <= told.value.first <= told.value.last <= last, way
        assert isinstance(told.value, UnreadableNode)
    # Around it, everything is there.
    end = stream.info().last
    if first > 1:
        assert offsets(stream.read(1, first - 1)) == list(range(1, first))
    assert offsets(stream.read(last + 1, 9)) == list(range(last + 1, end + 1))[:9]
    assert stream.info().missing == ((first, last),)


@pytest.mark.parametrize("ack_ms", [None, 60_000])
@pytest.mark.parametrize("kind", LOSSES)
def test_a_group_counts_what_is_lost_and_delivers_the_rest(
    server: Server, hw: Headwater, name: str, kind: str, ack_ms: int | None
) -> None:
    stream = hw.stream(name)
    first, last = lossy(server, stream, kind)
    there = [n for n in range(1, stream.info().last + 1) if not first <= n <= last]
    group, found = stream.group("g"), []
    while messages := group.read(700, ack_ms=ack_ms):
        found += offsets(messages)
    assert found == there
    info = group.info()
    assert (info.missed, info.pending) == (last - first + 1, len(there) if ack_ms else 0)
    assert (info.gaps[0][0], info.gaps[-1][1]) == (first, last)
    told = stream.info().missing
    assert (told[0][0], told[-1][1]) == (first, last)


@pytest.mark.parametrize("keeping", ["ordered", "limits"])
def test_a_group_that_notes_tags_counts_what_is_lost_once(
    server: Server, hw: Headwater, name: str, keeping: str
) -> None:
    stream = hw.stream(name)
    lossy(server, stream, "plain")
    members = [stream.group("g", ordered=keeping == "ordered", member=m) for m in ("a", "b")]
    if keeping == "limits":
        members[0].limit(Limits(max_in_flight_per_key=1))
    found = []
    while messages := [m for member in members for m in member.read(3, ack_ms=60_000)]:
        found += offsets(messages)
        members[0].ack(*offsets(messages))
    assert sorted(found) == [1, 2, 3, 4, 6, 7, 8, 9]
    info = members[0].info()
    assert (info.missed, info.gaps, info.pending) == (1, ((5, 5),), 0)


def test_a_blocked_member_is_told_what_is_lost(server: Server, hw: Headwater, name: str) -> None:
    stream = hw.stream(name)
    stream.write_many(entries(3))
    group = stream.group("g")
    assert len(group.read(10, ack_ms=60_000)) == 3
    lock, found = threading.Event(), []

    def wait() -> None:
        with Headwater(server.url) as other:
            found.extend(other.stream(name).group("g").read(10, block_ms=60_000, ack_ms=60_000))
        lock.set()

    with server.client() as raw:
        # The next entry is lost before anybody reads it: only the one after it is told.
        raw.hset(stream_key(name), "last", 4)
        thread = threading.Thread(target=wait)
        thread.start()
        until(lambda: group.info().missed == 1)
        stream.write("tag", b"after")
        assert lock.wait(60)
        thread.join()
    assert offsets(found) == [5]
    assert (group.info().missed, group.info().gaps) == (1, ((4, 4),))


def test_sealing_and_compaction_do_not_hide_a_loss(
    server: Server, hw: Headwater, name: str
) -> None:
    stream = hw.stream(name)
    lossy(server, stream, "plain")
    for change in (stream.seal, stream.compact):
        with pytest.raises(MissingMessages):
            change()
    assert stream.info().sealed == 0
    nodes = hw.stream(f"{name}-nodes")
    first, last = lossy(server, nodes, "node")
    assert nodes.compact() > 0
    for offset in (first, last):
        with pytest.raises(MissingMessages):
            nodes.read(offset, 1)
    # All that is left of the seven tags is at the end.
    assert [row[1] for row in pairs(nodes.read(2990, 20)) if row][-1] == b"value-3003"
    assert [d.place for d in hw.scrub(name).defects] == ["offsets 5-5"]
    found = hw.scrub(nodes.name).defects
    assert f"offsets {first}-{last}" in [defect.place for defect in found]
    # The only copy of messages is no leftover.
    assert [defect.cure for defect in found if defect.place == f"node at {first}"] == [
        "restore the stream from a backup; the messages are in this node"
    ]


def test_the_command_line_names_what_is_lost(server: Server, hw: Headwater, name: str) -> None:
    first, last = lossy(server, hw.stream(name), "packed")
    hw.stream(name).group("g").read(100)
    info = run(server.url, "stream", "info", name)
    assert f"{first}-{last}" in info.out
    said = f"the store has lost messages {first} to {last} of stream '{name}'"
    report = run(server.url, "doctor", "--json").row
    assert said in [check["found"] for check in report["checks"]]


def test_eviction_ends_a_loss(server: Server, hw: Headwater, name: str) -> None:
    stream = hw.stream(name)
    lossy(server, stream, "plain")
    with pytest.raises(MissingMessages):
        stream.read(1, 9)
    stream.evict(5)
    assert stream.read(5, 2)[0] is None
    assert stream.info().missing == ()
    assert stream.seal() == 4


def test_a_replay_counts_what_is_lost(server: Server, hw: Headwater, name: str) -> None:
    stream = hw.stream(name)
    lossy(server, stream, "plain")
    done = hw.replay(name, into=f"{name}-copy")
    assert (done.written, done.missed, done.complete) == (8, 1, True)


@pytest.mark.damages
def test_a_sql_consumer_stops_or_counts(desk: Desk, stores: Stores, name: str) -> None:
    stream = desk.hw.stream(name)
    for row in entries(9):
        stream.write(*row)
    with redis.Redis.from_url(stores.url("plain")) as raw:
        raw.xdel(tail_key(stream_key(name)), "0-5")
    with pytest.raises(GapError, match="lost offsets 5 to 5"):
        drain(desk.consumer("c", name))
    assert desk.effects("c") == numbers(1, 4)
    consumer = desk.consumer("c", name, on_gap="skip")
    drain(consumer)
    assert desk.effects("c") == numbers(1, 4) + numbers(6, 9)
    assert (consumer.stats.missed, consumer.stats.gaps) == (1, [(name, 5, 5)])


def test_a_flipped_bit_in_the_file_of_a_store_is_told(tmp_path: Path) -> None:
    directory = tmp_path / "data"
    with headwater.connect(f"embedded://{directory}") as hw:
        for row in entries(9):
            hw.stream("rides").write(*row)
    embedded.stop(directory)
    file = embedded.newest_file(directory)
    assert file is not None
    text = bytearray(file.read_bytes())
    place = text.index(b"hw:s:{rides}:tail\r\n$3\r\n0-5")
    text[place + 7] ^= 1
    file.write_bytes(text)
    with headwater.connect(f"embedded://{directory}") as hw:
        with pytest.raises(MissingMessages, match="messages 5 to 5 of stream 'rides'"):
            hw.stream("rides").read(1, 9)
        assert len(hw.stream("rides").group("g").read(9)) == 8
        assert hw.stream("rides").group("g").info().missed == 1
    embedded.stop(directory)
