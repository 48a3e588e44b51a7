"""What a newer release has written is refused as a whole, before anything is changed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis

import headwater
from headwater.errors import FormatTooNew
from headwater.log.node import batch_of
from headwater.store.library import FORMAT
from tests.support.servers import Server

NEWER = FORMAT + 1
RECEIPT = "1733000000000123:0:1:1.1733000000000001"
Dial = Callable[[str | None], headwater.Headwater]
Work = Callable[[headwater.Headwater], Any]


@pytest.fixture(scope="module")
def own_server() -> Iterator[Server]:
    with Server() as server:
        yield server


def fill(hw: headwater.Headwater, name: str) -> None:
    """Make one object of each kind."""
    stream = hw.stream(name)
    stream.write_many([("t", b"1"), ("t", b"2"), ("t", b"3")])
    stream.group("g").read(1, ack_ms=60_000)
    stream.stage(batch_of(["t"], [b"staged"]), f"st-{name}")
    hw.queue(name).push(b"1")
    hw.topic(name, partitions=1).write("t", b"1")
    hw.ick_channel(name, shards=1).add({"a": 1.0, "b": 2.0})


def all_bytes(admin: redis.Redis) -> dict[bytes, Any]:
    """Return what lies under each key; the record of the store is no object."""
    return {key: admin.dump(key) for key in admin.scan_iter("hw:*") if key != b"hw:{store}"}


def work_of(name: str) -> dict[str, tuple[str, str, Work]]:
    """Return calls: the key of the hash, how the error names the object, the call."""
    stream, group, queue = f"hw:s:{{{name}}}", f"hw:s:{{{name}}}:g:1:g", f"hw:q:{{{name}}}"
    channel, shard = f"hw:c:{{{name}}}", f"hw:cs:{{{name}/<epoch>/0}}"
    return {
        "write": (stream, "stream", lambda hw: hw.stream(name).write("t", b"4")),
        "batch": (stream, "stream", lambda hw: hw.stream(name).write_many([("t", b"4")] * 2000)),
        "read": (stream, "stream", lambda hw: hw.stream(name).read(1, 10)),
        "seal": (stream, "stream", lambda hw: hw.stream(name).seal()),
        "evict": (stream, "stream", lambda hw: hw.stream(name).evict(2)),
        "info": (stream, "stream", lambda hw: hw.stream(name).info()),
        "group read of a stream": (stream, "stream", lambda hw: hw.stream(name).group("g").read(1)),
        "group read": (group, "stream", lambda hw: hw.stream(name).group("g").read(1)),
        "ack": (group, "stream", lambda hw: hw.stream(name).group("g").ack(1)),
        "nack": (group, "stream", lambda hw: hw.stream(name).group("g").nack(1)),
        "seek": (group, "stream", lambda hw: hw.stream(name).group("g").seek(1)),
        "delete of a stream": (stream, "stream", lambda hw: hw.stream(name).delete()),
        "retain": (stream, "stream", lambda hw: hw.stream(name).retain(max_count=1)),
        "compact": (stream, "stream", lambda hw: hw.stream(name).compact()),
        "stage": (
            f"{stream}:staged:st-{name}",
            "stream",
            lambda hw: hw.stream(name).stage(batch_of(["t"], [b"more"]), f"st-{name}"),
        ),
        "push": (queue, "queue", lambda hw: hw.queue(name).push(b"2")),
        "pop": (queue, "queue", lambda hw: hw.queue(name).pop(ack_ms=60_000)),
        "settle": (queue, "queue", lambda hw: hw.queue(name).ack(RECEIPT)),
        "purge": (queue, "queue", lambda hw: hw.queue(name).purge()),
        "delete of a queue": (queue, "queue", lambda hw: hw.queue(name).delete()),
        "stats": (queue, "queue", lambda hw: hw.queue(name).stats()),
        "topic": (f"hw:t:{{{name}}}", "topic", lambda hw: hw.topic(name).write("t", b"2")),
        "open": (channel, "channel", lambda hw: hw.ick_channel(name).add({"c": 3.0})),
        "add": (shard, "channel", lambda hw: hw.ick_channel(name).add({"c": 3.0})),
        "delete of a channel": (channel, "channel", lambda hw: hw.ick_channel(name).delete()),
        "reserve": (shard, "channel", lambda hw: hw.ick_channel(name).reserve(1)),
    }


@pytest.mark.parametrize("call", work_of(""))
def test_an_object_of_a_newer_format_is_refused_and_nothing_is_changed(
    call: str, dial: Dial, own_server: Server, name: str
) -> None:
    hw = dial(own_server.url)
    fill(hw, name)
    key, kind, work = work_of(name)[call]
    with own_server.client() as admin:
        epoch: Any = admin.hget(f"hw:c:{{{name}}}", "epoch")
        admin.hset(key.replace("<epoch>", epoch.decode()), "format", NEWER)
        before = all_bytes(admin)
        with pytest.raises(FormatTooNew, match="upgrade the headwater package") as caught:
            work(hw)
        assert all_bytes(admin) == before
    assert caught.value.what.startswith(f"{kind} {name!r} at ")
    assert (caught.value.found, caught.value.known) == (NEWER, FORMAT)


def test_objects_without_a_format_are_of_the_first(
    dial: Dial, own_server: Server, name: str
) -> None:
    hw = dial(own_server.url)
    fill(hw, name)
    with own_server.client() as admin:
        admin.hdel(f"hw:s:{{{name}}}", "format")
    assert hw.stream(name).write("t", b"4") == 4
    for call, (_, _, work) in work_of(name).items():
        if call != "batch":
            work(hw)
