"""The longest call of each kind on large objects: nobody else is served while it runs.

The server measures, not the client: every command is in its slow log, and the longest call of a
function counts. A row is judged against 5 ms, whatever the machine.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import redis

import headwater
from bench.events import events
from bench.harness import Row, server, socket_url
from bench.longest_calls_queues import Case, of_a_queue, of_dirty_lists
from headwater.log import grouping
from headwater.log.handles import GroupHandle, StreamHandle
from headwater.log.keys import group_key
from headwater.store.many import together
from headwater.timeline import Farm

BOUND_US = 5000
# More than any case makes calls: the slow log keeps the newest.
MOST_CALLS = 200_000
CHUNK = 1000
FAR_MS = 10**9


class Sizes(NamedTuple):
    """How large the objects are.

    Pending ranges of a group, groups of a stream, messages of a queue, members of a dirty list
    and of a timeline.
    """

    fragments: int
    groups: int
    messages: int
    members: int


def longest_us(native: redis.Redis, work: Callable[[], object]) -> int:
    """Do some work and return how long the longest call of a function took in the server."""
    native.slowlog_reset()
    work()
    calls = native.slowlog_get(MOST_CALLS)
    return max(int(call["duration"]) for call in calls if call["command"].startswith(b"FCALL"))


def fragmented(hw: headwater.Headwater, native: redis.Redis, count: int) -> headwater.Group:
    """Return a group in which each of ``count`` messages is pending as a range of its own."""
    stream = hw.stream("fragments")
    if not stream.info().last:
        pairs = events(CHUNK)
        for _ in range(0, count, CHUNK):
            stream.write_many(pairs)
    group = stream.group("g")
    group.read(0)
    group.seek("last")
    key = group_key(stream._handle.key, group.name)
    for at in range(1, count + 1, CHUNK):
        starts = range(at, min(at + CHUNK, count + 1))
        with native.pipeline(transaction=False) as pipe:
            pipe.zadd(f"{key}:pending", {f"{n}:{n}:1:0": n for n in starts})
            # Each at a time of its own, as they come due in a group that was read one by one.
            pipe.zadd(f"{key}:due", {str(n): FAR_MS * 10**4 + n for n in starts})
            pipe.execute()
    native.hset(key, mapping={"pending": count, "due": 0})
    return group


def of_a_group(hw: headwater.Headwater, native: redis.Redis, count: int) -> Iterator[Case]:
    """Calls on a group with many pending ranges; a tenth of them is touched."""
    group, part = fragmented(hw, native, count), count // 10
    yield Case("ack", lambda: group.ack((1, part)))
    yield Case("nack", lambda: group.nack((part + 1, 2 * part)))
    yield Case("extend", lambda: group.extend((2 * part + 1, 3 * part), retry_ms=FAR_MS))
    yield Case("read what is due", lambda: group.read(1000, retry_ms=FAR_MS))
    yield Case("info", group.info)
    yield Case("seek", lambda: group.seek("last"))
    group = fragmented(hw, native, count)
    yield Case("remove", group.remove)


def crowded(hw: headwater.Headwater, count: int) -> headwater.Stream:
    """Return a stream with ``count`` groups, all of which have read what is there."""
    stream = hw.stream("crowd")
    stream.write_many(events(10))
    handle = StreamHandle(stream.name, {stream.name})
    terms = grouping.Terms.of(None, None)
    for at in range(0, count, CHUNK):
        groups = [GroupHandle(handle, f"g{n}", "m") for n in range(at, min(at + CHUNK, count))]
        hw.store.run(together(grouping.read_now(group, 10, terms) for group in groups))
    return stream


def of_many_groups(hw: headwater.Headwater, count: int) -> Iterator[Case]:
    """Calls on a stream with many groups."""
    stream = crowded(hw, count)

    def write() -> None:
        for _ in range(20):
            stream.write("t", b"v", backlog=5)

    yield Case("write with a backlog", write)
    yield Case("evict", lambda: stream.evict(5, past_readers=False))
    yield Case("retain", lambda: stream.retain(max_count=5))
    yield Case("info of the stream", stream.info)
    yield Case("keep", lambda: hw.keep(stream.name))
    yield Case("delete of the stream", stream.delete)


def of_a_timeline(native: redis.Redis, count: int) -> Iterator[Case]:
    """Calls on a full timeline: ``count`` members are inserted, as many deleted."""
    for at in range(0, count, CHUNK):
        numbers = range(at, min(at + CHUNK, count))
        native.zadd("k+", {f"a{n}": n for n in numbers})
        native.zadd("k-", {f"d{n}": n for n in numbers})
    batch = range(2 * CHUNK)
    with Farm.open(socket_url(native), max_size=count, timeout_ms=60_000) as farm:
        yield Case("insert", lambda: farm.insert([("k", count + n, f"i{n}") for n in batch]))
        yield Case(
            "insert what is too old", lambda: farm.insert([("k", -1 - n, f"o{n}") for n in batch])
        )
        yield Case("delete", lambda: farm.delete([("k", 2 * count + n, f"i{n}") for n in batch]))
        yield Case("score", lambda: farm.score([("k", f"a{n}") for n in range(count)]))
        yield Case("select by cursor", lambda: farm.select_range(["k"], (count, ""), limit=count))
        yield Case("repair", lambda: farm.repair(["k"]))
    with Farm.open(socket_url(native), max_size=count // 10, timeout_ms=60_000) as farm:
        yield Case("repair of a key far over its size", lambda: farm.repair(["k"]))


def run(sizes: Sizes) -> list[Row]:
    """Measure all kinds on one server without fsync."""
    rows = []
    with server("off") as native, headwater.connect(socket_url(native)) as hw:
        native.config_set("slowlog-max-len", MOST_CALLS)
        native.config_set("slowlog-log-slower-than", 0)
        cases: list[tuple[str, Iterator[Case]]] = [
            (f"{sizes.fragments:,} pending ranges", of_a_group(hw, native, sizes.fragments)),
            (f"{sizes.groups:,} groups", of_many_groups(hw, sizes.groups)),
            (f"queue of {sizes.messages:,}", of_a_queue(hw, native, sizes.messages)),
            (f"{sizes.members:,} members", of_dirty_lists(hw, sizes.members)),
            (f"timeline of {sizes.members:,}", of_a_timeline(native, sizes.members)),
        ]
        for size, kinds in cases:
            for kind in kinds:
                took = longest_us(native, kind.work)
                name = f"longest call, {size}: {kind.name}, us"
                rows.append(Row.of(name, "off", took, BOUND_US, 4, 1, higher_is_better=False))
    return rows
