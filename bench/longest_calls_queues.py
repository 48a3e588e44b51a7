"""The longest calls on a large queue and on large dirty lists; see longest_calls."""

from __future__ import annotations

import itertools
import struct
from collections.abc import Callable, Iterator
from typing import NamedTuple

import redis

import headwater
from headwater.queue.keys import MAX_DEDUPE_MESSAGES, MAX_PUSH_MESSAGES, queue_key

CHUNK = 1000
FAR_MS = 10**9
VALUE = b"x" * 100
# Where the counts of a queue have what this page changes; see queue/lua/shared/10-layout.lua.
_COUNTS = struct.Struct(">17d")
_LAST, _UNACKED, _SOONEST = 0, 6, 14


class Case(NamedTuple):
    """One kind of call: its row, and the operation that makes such calls."""

    name: str
    work: Callable[[], object]


def filled(hw: headwater.Headwater, name: str, count: int) -> headwater.Queue:
    """Return a queue with so many messages that nobody has taken."""
    queue = hw.queue(name)
    for _ in range(0, count, CHUNK):
        queue.push_many([VALUE] * min(CHUNK, count))
    return queue


def held_one_by_one(
    hw: headwater.Headwater, native: redis.Redis, name: str, count: int
) -> headwater.Queue:
    """Return a queue whose messages were taken one by one, and whose deadlines are over."""
    queue = hw.queue(name)
    queue.push(b"first")
    queue.pop()
    key = queue_key(name)
    found = native.hget(key, "counts")
    assert isinstance(found, bytes)
    counts = list(_COUNTS.unpack(found))
    first = int(counts[_LAST]) + 1
    for at in range(first, first + count, CHUNK):
        numbers = range(at, min(at + CHUNK, first + count))
        with native.pipeline(transaction=False) as pipe:
            pipe.zadd(f"{key}:unacked:0", {f"{n:016d}:0:1:1": i for i, n in enumerate(numbers)})
            texts = [word for n in numbers for word in (f"{n:016d}", b"%016dm" % n + VALUE)]
            pipe.hset(f"{key}:bundles", items=texts)
            pipe.execute()
    counts[_LAST], counts[_UNACKED], counts[_SOONEST] = first + count, count, 0
    native.hset(key, mapping={"counts": _COUNTS.pack(*counts), "priorities": "0,"})
    return queue


def of_a_queue(hw: headwater.Headwater, native: redis.Redis, count: int) -> Iterator[Case]:
    """Calls on a queue with many messages; some are of the largest size that one call has."""
    queue = filled(hw, "large", count)
    many, most = [VALUE] * CHUNK, min(10_000, count // 10)
    yield Case("push of 1,000", lambda: queue.push_many(many))
    most_values, keys = [VALUE] * MAX_PUSH_MESSAGES, [f"d{i}" for i in range(MAX_DEDUPE_MESSAGES)]
    yield Case("push of the most", lambda: queue.push_many(most_values))
    yield Case("push of the most, delayed", lambda: queue.push_many(most_values, delay_ms=FAR_MS))
    yield Case("push of the most dedupe keys", lambda: queue.push_many(keys, dedupe=keys))
    yield Case("pop", lambda: queue.pop(most))
    taken = list(
        itertools.chain.from_iterable(
            queue.pop(50, ack_ms=FAR_MS) for _ in range(min(600, count // 100))
        )
    )
    yield Case("pop with deadlines", lambda: queue.pop(most, ack_ms=FAR_MS))
    yield Case("extend", lambda: queue.extend(*taken, ack_ms=FAR_MS))
    yield Case("extend every second", lambda: queue.extend(*taken[::2], ack_ms=FAR_MS))
    yield Case("ack every third", lambda: queue.ack(*taken[::3]))
    yield Case("nack every third", lambda: queue.nack(*taken[1::3]))
    yield Case("ack", lambda: queue.ack(*taken))
    yield Case("stats", queue.stats)
    yield Case("peek", lambda: queue.peek(1000))
    yield Case("scan", lambda: list(itertools.islice(queue.scan(), count // 10)))
    yield Case("purge", queue.purge)
    queue.delete()
    queue = held_one_by_one(hw, native, "held", count)
    yield Case("stats of what is over", queue.stats)
    yield Case("pop of what is over", lambda: queue.pop(CHUNK, ack_ms=FAR_MS))
    queue.configure(max_attempts=1)
    yield Case("keep", lambda: hw.keep_queues(queue.name))
    yield Case("redrive", lambda: queue.redrive(count=count // 10))
    yield Case("discard", queue.discard)
    keys = [f"k{i}" for i in range(count)]
    for at in range(0, count, CHUNK):
        queue.push_many(keys[at : at + CHUNK], dedupe=keys[at : at + CHUNK])
    yield Case("delete", queue.delete)


def of_dirty_lists(hw: headwater.Headwater, count: int) -> Iterator[Case]:
    """Calls on dirty lists with many members."""
    scores = {f"member-{i:09d}": float(i) for i in range(count)}
    ick = hw.ick("large-ick")
    yield Case("add to an Ick", lambda: ick.add(scores))
    yield Case("stats of an Ick", ick.stats)
    yield Case("reserve", lambda: ick.reserve(count))
    yield Case("reserve with backwash", lambda: ick.reserve(count, backwash=True))
    yield Case("exchange", lambda: ick.exchange(100, *list(scores)[: count // 10]))
    yield Case("commit", lambda: ick.commit(*scores))
    ick.add(scores)
    yield Case("delete of an Ick", ick.delete)
    channel = hw.ick_channel("large-channel", shards=1)
    yield Case("add to a channel", lambda: channel.add(scores))
    yield Case("stats of a channel", channel.stats)
    batches: list[headwater.Batch] = []
    yield Case("reserve of a channel", lambda: batches.append(channel.reserve(count)))
    yield Case("commit of a channel", lambda: channel.commit(batches[0]))
    channel.add(scores)
    yield Case("reshard", lambda: channel.reshard(2))
    batches.append(channel.reserve(count))
    yield Case("release", lambda: channel.release(batches[1]))
    yield Case("delete of a channel", channel.delete)
