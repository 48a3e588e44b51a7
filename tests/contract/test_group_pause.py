"""A paused group delivers nothing until it is resumed; what members hold they may settle."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from headwater import Headwater, Stream, UnknownGroup
from tests.support.entries import entries
from tests.support.groups import FAR
from tests.support.servers import until


def test_members_of_a_paused_group_get_nothing_new_and_nothing_again(stream: Stream) -> None:
    stream.write_many(entries(4))
    group = stream.group("g", max_pending=3)
    group.read(2, ack_ms=FAR)
    assert (group.pause(), group.pause(), group.info().paused) == (True, False, True)
    assert group.nack(1) == 1
    assert group.read(4, ack_ms=FAR) == []
    assert group.ack(2) == 1
    assert stream.group("g", max_pending=2).read(4, ack_ms=FAR) == [], "a limit does not resume it"
    assert (group.info().max_pending, group.info().pending) == (2, 1)
    assert (group.resume(), group.resume(), group.info().paused) == (True, False, False)
    assert [(m.offset, m.attempt) for m in stream.group("g").read(4, ack_ms=FAR)] == [
        (1, 2),
        (3, 1),
    ]


def test_blocked_members_wait_until_the_group_is_resumed(stream: Stream) -> None:
    group = stream.group("g")
    group.read(0)
    group.pause()
    with ThreadPoolExecutor(1) as pool:
        blocked = pool.submit(stream.group("g").read, 1, block_ms=60_000, ack_ms=FAR)
        until(lambda: group.info().waiting == 1)
        stream.write("a", b"1")
        stream.write("b", b"2")
        assert group.info().lag == 2
        assert not blocked.done()
        group.resume()
        assert [message.offset for message in blocked.result()] == [1]
    assert group.info().waiting == 0


def test_other_groups_of_the_stream_continue(stream: Stream) -> None:
    stream.write_many(entries(2))
    for name in ("one", "two"):
        stream.group(name).read(0)
    stream.group("one").pause()
    assert stream.group("one").read(2) == []
    assert len(stream.group("two").read(2)) == 2
    with pytest.raises(UnknownGroup):
        stream.group("nobody").pause()


def test_a_group_of_a_topic_is_paused_in_every_partition(client: Headwater, name: str) -> None:
    topic = client.topic(name, partitions=2)
    topic.write_many(entries(6))
    group = topic.group("g")
    group.read(0)
    assert group.pause()
    assert group.read(6) == []
    assert all(info.paused for info in group.info())
    assert (group.resume(), group.resume()) == (True, False)
    assert len(group.read(6)) == 6
