"""A little of everything that is done to objects of a kind, for tests of what lies in the store."""

from __future__ import annotations

import pyarrow as pa

from headwater import Headwater, Queue, Stream
from tests.support.entries import entries
from tests.support.groups import FAR
from tests.support.watch import let_pass


def use_stream(hw: Headwater, name: str) -> Stream:
    """Write a stream in all forms, seal, compact and evict; leave nodes, holes and a tail."""
    stream = hw.stream(name)
    for at in range(3):
        stream.write_many(entries(1000, at, tags=700), producer="bulk", sequence=at)
    stream.compact()
    stream.write_many(entries(600))
    stream.write_many(entries(40), producer="small", sequence=1)
    stream.evict(1200)
    for at in range(9):
        stream.write(f"t{at}", b"v" * at)
    stream.register_reader("warehouse", 1500)
    batch = pa.RecordBatch.from_pydict({"tag": ["a", "b"], "value": [b"1", b"2"]})
    stream.stage(batch, "left")
    stream.stage(batch, "right")
    stream.publish("right", producer="spark", sequence=1)
    return stream


def use_group(hw: Headwater, stream: Stream) -> None:
    """Read by groups with all that can become of a message: done, due, late, given back, dead."""
    group = stream.group("workers", dead_letters=True, max_pending=500)
    group.read(20, ack_ms=FAR)
    group.read(30, ack_ms=1, expire_ms=1)
    let_pass(hw, 2)
    messages = [m.offset for m in group.read(40, ack_ms=FAR)]
    group.ack(*messages[3:9])
    group.nack(*messages[12:20], delay_ms=FAR)
    group.extend(*messages[22:25], ack_ms=FAR)
    hw.keep(stream.name)
    assert group.info().dead > 0
    group.redrive(5)
    group.discard(count=1)
    stream.group("plain").read(10)


def use_queue(hw: Headwater, name: str) -> Queue:
    """Push in all forms and let messages take every way: acked, late, given back, dead, delayed."""
    queue = hw.queue(name)
    queue.configure(max_attempts=2, backoff="none")
    queue.push_many([b"bulk-%d" % at for at in range(100)], producer="p", sequence=1)
    queue.push_many([b"later-%d" % at for at in range(12)], delay_ms=FAR)
    queue.push(b"urgent", priority=5)
    queue.push(b"short", ttl_ms=FAR)
    queue.push(b"once", dedupe="key", dedupe_ms=FAR)
    taken = queue.pop(30, ack_ms=FAR)
    queue.ack(*taken[:7])
    queue.nack(*taken[7:12], delay_ms=FAR)
    queue.extend(*taken[14:16], ack_ms=2 * FAR)
    for _ in range(2):
        queue.pop(5, ack_ms=1)
        let_pass(hw, 2)
        hw.keep_queues(name)
    assert queue.stats().dead > 0
    return queue


def use_ick(hw: Headwater, name: str) -> None:
    """Make members of an Ick dirty, reserve and commit some."""
    ick = hw.ick(name)
    ick.add({f"m{at}": at for at in range(50)})
    ick.reserve(10)
    ick.commit("m1", "m2")
    ick.add({"m3": 1})


def use_channel(hw: Headwater, name: str, members: int = 100) -> None:
    """Make members of a channel dirty, now and later; reserve, commit, release, reshard."""
    channel = hw.ick_channel(name, 2, consumer="c1")
    channel.add({f"m{at}": at for at in range(members)})
    channel.add({f"later{at}": at for at in range(5)}, not_before=2 * 10**12)
    for _ in range(2):
        batch = channel.reserve(20)
        taken = list(batch.members)
        channel.commit(batch, *taken[:5])
        channel.release(batch, *taken[5:8], delay_ms=FAR)
        channel.release(batch, *taken[8:10])
        channel.add(dict.fromkeys(taken[10:13], 1))
