"""The longest call of each kind on large objects: nobody else is served while it runs.

The server measures, not the client: what takes long is in its slow log, and the longest command
counts. A row is judged against 5 ms, whatever the machine. That is wall time, so the server runs
before all other programs where this process may ask for it; and a row over the bound is measured
again, and the shortest of its rounds counts: what the work itself takes is in each of them, what a
busy machine added is not.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple

import redis

import headwater
from bench.events import events
from bench.harness import Row, server, socket_url
from bench.longest_calls_queues import Case, of_a_queue, of_dirty_lists
from headwater.log import grouping
from headwater.log.grouping import Terms
from headwater.log.handles import GroupHandle, StreamHandle
from headwater.log.keys import group_key
from headwater.store.many import together
from headwater.timeline import Farm

BOUND_US = 5000
# What is shorter is not logged, and shown as this: later calls would pay for freeing a long log.
SLOW_US = 1000
# More than any case makes slow calls: the slow log keeps the newest.
MOST_CALLS = 50_000
ROUNDS = 3
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


def prefer(native: redis.Redis) -> None:
    """Let a server run before all other programs, where this process has the right to ask."""
    pid = native.info("server")["process_id"]
    with contextlib.suppress(OSError):
        os.sched_setscheduler(pid, os.SCHED_FIFO, os.sched_param(1))


def longest_us(native: redis.Redis, work: Callable[[], object]) -> int:
    """Do some work and return how long the longest command of it took in the server."""
    native.config_set("slowlog-log-slower-than", SLOW_US)
    work()
    native.config_set("slowlog-log-slower-than", -1)
    calls = native.slowlog_get(MOST_CALLS)
    native.slowlog_reset()
    ours = (call for call in calls if not call["command"].startswith((b"SLOWLOG", b"CONFIG")))
    return max((int(call["duration"]) for call in ours), default=SLOW_US)


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
    scattered = range(5 * part, 8 * part, max(3 * part // CHUNK, 1))
    yield Case("nack of 1,000 here and there", lambda: group.nack(*scattered, delay_ms=FAR_MS))
    yield Case("ack of 1,000 here and there", lambda: group.ack(*scattered))
    yield Case("ack of what is acknowledged", lambda: group.ack(*scattered))
    yield Case("nack", lambda: group.nack((part + 1, 2 * part)))
    yield Case("extend", lambda: group.extend((2 * part + 1, 3 * part), ack_ms=FAR_MS))
    yield Case("read what is due", lambda: group.read(1000, ack_ms=FAR_MS))
    yield Case("info", group.info)
    yield Case("seek", lambda: group.seek("last"))
    group = fragmented(hw, native, count)
    yield Case("remove", group.remove)


def crowded(hw: headwater.Headwater, count: int) -> headwater.Stream:
    """Return a stream with ``count`` groups, all of which have read what is there."""
    stream = hw.stream("crowd")
    stream.write_many(events(10))
    handle = StreamHandle(stream.name, {stream.name})
    terms = Terms(ack_ms=None, expire_ms=None)
    for at in range(0, count, CHUNK):
        groups = [GroupHandle(handle, f"g{n}", "m") for n in range(at, min(at + CHUNK, count))]
        hw.store.run(together(grouping.read_now(group, 10, terms) for group in groups))
    return stream


def block_in_groups(native: redis.Redis, stream: headwater.Stream, count: int) -> None:
    """Note a member of each group as one that is blocked until something is written."""
    key, until = stream._handle.key, FAR_MS * 10**4
    with native.pipeline(transaction=False) as pipe:
        for name in (f"g{n}" for n in range(count)):
            pipe.zadd(f"{group_key(key, name)}:waiters", {"w": 1})
            pipe.hset(group_key(key, name), "w:w", f"{until}:1:::1")
        pipe.hset(key, "waiting", "".join(f" g{n}" for n in range(count)) + " ")
        pipe.execute()


def begin_publishes(native: redis.Redis, stream: headwater.Stream, count: int) -> None:
    """Note publishes that were begun and left, each with one staging."""
    key = stream._handle.key
    with native.pipeline(transaction=False) as pipe:
        for name in (f"p{n}" for n in range(count)):
            pipe.hset(f"{key}:publishing", name, "1:1:0:0:0:1:1")
            pipe.rpush(f"{key}:publish:{name}", name)
            pipe.hset(f"{key}:staged:{name}", mapping={"n": 1, "0": b"x" * 100, "begun": 1})
        pipe.execute()


def of_many_groups(hw: headwater.Headwater, native: redis.Redis, count: int) -> Iterator[Case]:
    """Calls on a stream with many groups."""
    stream = crowded(hw, count)

    def write() -> None:
        for _ in range(20):
            stream.write("t", b"v", backlog=5)

    yield Case("write with a backlog", write)
    block_in_groups(native, stream, count)
    yield Case("write to a blocked member of each", lambda: stream.write("t", b"v"))
    yield Case("evict", lambda: stream.evict(5, past_readers=False))
    yield Case("retain", lambda: stream.retain(max_count=5))
    yield Case("info of the stream", stream.info)
    yield Case("keep", lambda: hw.keep(stream.name))
    begin_publishes(native, stream, count)
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
        yield Case(
            "select by rank", lambda: farm.select(["k"], offset=9 * count // 10, limit=CHUNK)
        )
        yield Case("select of the most", lambda: farm.select(["k"], limit=count))
        yield Case("repair", lambda: farm.repair(["k"]))
    with Farm.open(socket_url(native), max_size=count // 10, timeout_ms=60_000) as farm:
        yield Case("repair of a key far over its size", lambda: farm.repair(["k"]))


def round_of(native: redis.Redis, cases: Callable[[], Iterator[Case]]) -> dict[str, int]:
    """Measure all kinds of one object, which is made for it; returns the longest call of each."""
    return {case.name: longest_us(native, case.work) for case in cases()}


def shortest_rounds(measure: Callable[[], dict[str, int]]) -> dict[str, int]:
    """Measure again as long as something is over the bound; returns the shortest of each kind."""
    best = measure()
    for _ in range(ROUNDS - 1):
        if max(best.values()) <= BOUND_US:
            break
        best = {kind: min(took, best[kind]) for kind, took in measure().items()}
    return best


def run(sizes: Sizes) -> list[Row]:
    """Measure all kinds on one server without fsync; an object of size 0 is left out."""
    rows = []
    with server("off") as native, headwater.connect(socket_url(native)) as hw:
        prefer(native)
        native.config_set("slowlog-max-len", MOST_CALLS)
        native.config_set("slowlog-log-slower-than", -1)
        cases: list[tuple[int, str, Callable[[int], Iterator[Case]]]] = [
            (sizes.fragments, "{:,} pending ranges", partial(of_a_group, hw, native)),
            (sizes.groups, "{:,} groups", partial(of_many_groups, hw, native)),
            (sizes.messages, "queue of {:,}", partial(of_a_queue, hw, native)),
            (sizes.members, "{:,} members", partial(of_dirty_lists, hw)),
            (sizes.members, "timeline of {:,}", partial(of_a_timeline, native)),
        ]
        for size, label, kinds in cases:
            if not size:
                continue
            found = shortest_rounds(partial(round_of, native, partial(kinds, size)))
            for kind, took in found.items():
                name = f"longest call, {label.format(size)}: {kind}, us"
                rows.append(Row.of(name, "off", took, BOUND_US, 4, 1, higher_is_better=False))
            native.flushall()
    return rows
