"""A scrub finds keys that belong to no object, and a repair frees them or gives them back."""

from __future__ import annotations

import os
import random
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import TypeAlias

import pyarrow as pa
import pytest
import redis

from headwater import Headwater, UnknownGroup
from headwater.ick import scrubbing as ick_scrubbing
from headwater.ick.keys import shard_key
from headwater.log import scrubbing as log_scrubbing
from headwater.log.keys import group_key, stream_key
from headwater.queue import scrubbing as queue_scrubbing
from headwater.queue.keys import queue_key
from headwater.store import scrubbing as store_scrubbing
from tests.support.entries import entries
from tests.support.groups import FAR
from tests.support.scrubbed import Break, assert_found_and_repaired, assert_sound
from tests.support.servers import Server
from tests.support.traffic import use_channel, use_group, use_ick, use_queue, use_stream

S, Q, C, T = "kept", "jobs", "dirty", "cities"
K, QUEUE = stream_key(S), queue_key(Q)
G = group_key(K, "workers")


def _forget_stream(raw: redis.Redis, _: str) -> None:
    raw.srem("hw:{streams}", S)
    raw.hset(K, "created", 1)


def _staged(raw: redis.Redis, _: str) -> None:
    raw.hset(f"{K}:staged:left", "begun", 1)
    raw.persist(f"{K}:staged:left")


KEYS: dict[str, Break[str]] = {
    "a key of nobody": Break(
        lambda raw, _: raw.set("hw:what", 1),
        ("store", "key hw:what", "an object that it belongs to", "none"),
        repairs=False,
    ),
    "a registry that is none": Break(
        lambda raw, _: raw.set("hw:{others}", 1),
        ("store", "key hw:{others}", "an object that it belongs to", "none"),
        repairs=False,
    ),
    "a part that streams do not have": Break(
        lambda raw, _: raw.set(f"{K}:extra", 1),
        ("stream", f"key {K}:extra", "a part of a stream", "no such part"),
        repairs=False,
    ),
    "a part of another type": Break(
        lambda raw, _: raw.set(f"{K}:staged:x", 1),
        ("stream", f"key {K}:staged:x", "a hash", "string"),
        repairs=False,
    ),
    "a stream that is not registered": Break(
        _forget_stream, ("stream", "key hw:{streams}", f"the name {S!r}", "not there")
    ),
    "what is left of a stream": Break(
        lambda raw, _: raw.zadd(f"{stream_key('gone')}:index", {"1:1:1:1:1:1": 1}),
        ("stream", "key hw:s:{gone}:index", "a stream that was written", "none"),
    ),
    "what is left of a group": Break(
        lambda raw, _: raw.zadd(f"{group_key(K, 'gone')}:due", {"1": 1}),
        ("stream", f"key {K}:g:4:gone:due", "the group 'gone'", "none"),
    ),
    "a group that is not listed": Break(
        lambda raw, _: raw.zrem(f"{K}:groups", "plain"),
        ("stream", "list of groups, 'plain'", "the group", "not listed"),
    ),
    "a box of nobody": Break(
        lambda raw, _: raw.rpush(f"{G}:box:m.1", "poke"),
        ("stream", "box m.1", "a member that looks into it", "none"),
    ),
    "a staging of no publish": Break(
        _staged, ("stream", "staging 'left'", "a publish that it belongs to", "none, and it does")
    ),
    "a list of no publish": Break(
        lambda raw, _: raw.rpush(f"{K}:publish:spark", "x"),
        ("stream", f"key {K}:publish:spark", "an unfinished publish", "none"),
    ),
    "a part that queues do not have": Break(
        lambda raw, _: raw.set(f"{QUEUE}:extra", 1),
        ("queue", f"key {QUEUE}:extra", "a part of a queue", "no such part"),
        repairs=False,
    ),
    "what is left of a queue": Break(
        lambda raw, _: raw.rpush(f"{queue_key('gone')}:ready:0", "x"),
        ("queue", "key hw:q:{gone}:ready:0", "a queue that was pushed to", "none"),
    ),
    "a box of a queue that stays": Break(
        lambda raw, _: raw.rpush(f"{QUEUE}:box:m.1", "poke"),
        ("queue", f"key {QUEUE}:box:m.1", "a time to live", "none"),
    ),
    "members of a shard of no channel": Break(
        lambda raw, _: raw.zadd(f"{shard_key('gone', 1, 0)}:ready", {"m": 1}),
        ("channel", "key hw:cs:{gone/1/0}:ready", "a shard of the channel 'gone'", "none"),
        repairs=False,
    ),
    "ages of a shard of no channel": Break(
        lambda raw, _: raw.zadd(f"{shard_key('gone', 1, 0)}:since", {"m": 1}),
        ("channel", "key hw:cs:{gone/1/0}:since", "a shard of the channel 'gone'", "none"),
    ),
    "a channel that is not registered": Break(
        lambda raw, _: raw.srem("hw:{channels}", C),
        ("channel", "key hw:{channels}", f"the name {C!r}", "not there"),
    ),
}


def use_everything(hw: Headwater) -> None:
    use_group(hw, use_stream(hw, S))
    use_queue(hw, Q)
    use_ick(hw, "an/ick")
    use_channel(hw, C, members=30)
    hw.topic(T, 2).write("t", b"v")


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as server:
        yield server


@pytest.mark.parametrize("what", KEYS)
def test_each_stray_key_is_found(server: Server, what: str) -> None:
    with Headwater(server.url) as hw, server.client() as raw:
        use_everything(hw)
        assert_found_and_repaired(hw, raw, "", KEYS[what])


def test_a_priority_that_no_pop_looks_at_is_found(server: Server) -> None:
    with Headwater(server.url) as hw, server.client() as raw:
        queue = hw.queue(Q)
        queue.push(b"low", priority=-3)
        queue.push(b"high", priority=7)
        raw.hset(QUEUE, "priorities", "7,")
        report = hw.repair(dry_run=False)
        assert [d.place for d in report.repaired] == [f"key {QUEUE}:ready:-3"]
        assert [d.value for d in queue.pop(9, ack_ms=FAR)] == [b"high", b"low"]
        assert_sound(hw)


@pytest.mark.cluster
def test_all_servers_of_a_cluster_are_looked_at(connect: object) -> None:
    hw: Headwater = connect("cluster-sync")  # type: ignore[operator]
    names = [f"spread-{at}" for at in range(40)]
    for name in names:
        hw.stream(name).write("t", b"v")
    seen: list[str] = []
    report = hw.scrub(progress=lambda at: seen.append(at.name))
    assert set(names) <= set(seen)
    # Other tests may have left streams on these servers that no registry names.
    assert not [defect for defect in report.defects if defect.name in names]


# ── A scrub of a store in use raises no false alarm, however it meets the work of others ─────────


Work: TypeAlias = Callable[[Headwater, str, random.Random], None]
ROUNDS = 3 if "HEADWATER_LONG" in os.environ else 1


@pytest.fixture(
    params=[
        pytest.param(200, id="pages of 200"),
        pytest.param(4, id="pages of 4", marks=pytest.mark.long),
    ]
)
def page(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Read objects in pages of this size; small ones take many calls for every object."""
    for room in (store_scrubbing, log_scrubbing, queue_scrubbing, ick_scrubbing):
        monkeypatch.setattr(room, "PAGE", request.param)


def write(hw: Headwater, name: str, chance: random.Random) -> None:
    stream = hw.stream(name)
    for count in (1, 30, 600):
        stream.write_many(entries(count, chance.randrange(9), tags=chance.choice([3, 900])))
    stream.write("t", b"v" * chance.randrange(100))
    if chance.random() < 0.3:
        staging = f"s{chance.getrandbits(60)}"
        stream.stage(pa.RecordBatch.from_pydict({"tag": ["a"], "value": [b"1"]}), staging)
        stream.publish(staging, producer=staging, sequence=1)
    if chance.random() < 0.2:
        stream.compact()
    if chance.random() < 0.3:
        stream.evict(-chance.randrange(500, 3000))
    if chance.random() < 0.3:
        stream.seal()


def read(hw: Headwater, name: str, chance: random.Random) -> None:
    group = hw.stream(name).group(chance.choice(["g1", "g2"]), dead_letters=chance.random() < 0.5)
    ack_ms, expire_ms = chance.choice([1, 5000]), chance.choice([None, 1, 10_000])
    found = group.read(chance.randrange(1, 300), ack_ms=ack_ms, expire_ms=expire_ms)
    offsets = [message.offset for message in found]
    chance.shuffle(offsets)
    with suppress(UnknownGroup):
        group.ack(*offsets[: len(offsets) // 2])
        if offsets:
            group.nack(*offsets[-5:], delay_ms=chance.choice([0, 1000]))
        if chance.random() < 0.1:
            group.redrive(10)
        if chance.random() < 0.05:
            group.remove()


def queue(hw: Headwater, name: str, chance: random.Random) -> None:
    jobs = hw.queue(name)
    values = [b"v%d" % at for at in range(chance.randrange(1, 40))]
    jobs.push_many(values, delay_ms=chance.choice([0, 0, 2]), priority=chance.choice([0, 0, 3, -2]))
    taken = jobs.pop(chance.randrange(1, 60), ack_ms=chance.choice([1, 5000]))
    jobs.ack(*taken[::2])
    jobs.nack(*taken[1::4])
    if taken and chance.random() < 0.3:
        jobs.extend(*taken[3::4], ack_ms=9000)
    if chance.random() < 0.02:
        jobs.purge()


def channel(hw: Headwater, name: str, chance: random.Random) -> None:
    dirty = hw.ick_channel(name, 2)
    dirty.add({f"m{chance.randrange(300)}": at for at in range(20)})
    batch = dirty.reserve(15)
    members = list(batch.members)
    dirty.commit(batch, *members[::2])
    dirty.release(batch, *members[1::2], delay_ms=chance.choice([0, 1]))


def come_and_go(hw: Headwater, name: str, chance: random.Random) -> None:
    stream = hw.stream(f"{name}-{chance.randrange(3)}")
    stream.write_many(entries(20))
    stream.group("g").read(5, ack_ms=5000)
    stream.delete()
    jobs = hw.queue(f"{name}-{chance.randrange(3)}")
    jobs.push(b"v", dedupe=str(chance.random()))
    jobs.delete()


def keep(hw: Headwater, name: str, _: random.Random) -> None:
    hw.keep(name)
    hw.keep_queues(name)


@contextmanager
def busy(
    url: str, name: str, *works: Callable[[Headwater, str, random.Random], None]
) -> Iterator[None]:
    """Let threads work on objects of a name; raises what one of them raised."""
    ended = threading.Event()

    def go(work: Work) -> None:
        chance = random.Random(work.__name__)
        with Headwater(url) as hw:
            while not ended.is_set():
                work(hw, name, chance)

    with ThreadPoolExecutor(len(works)) as threads:
        running = [threads.submit(go, work) for work in works]
        try:
            yield
        finally:
            ended.set()
        for each in running:
            each.result()


@pytest.mark.slow
@pytest.mark.usefixtures("page")
@pytest.mark.parametrize(
    "client",
    [
        "embedded-sync",
        pytest.param("plain-async", marks=pytest.mark.long),
        pytest.param("redis-sync", marks=pytest.mark.long),
        pytest.param("cluster-async", marks=[pytest.mark.cluster, pytest.mark.long]),
    ],
    indirect=True,
)
def test_a_store_in_use_is_sound_at_every_moment(client: Headwater, name: str) -> None:
    where = client.store.where
    with busy(where, name, write, read, read, queue, queue, channel, come_and_go, keep):
        for _ in range(ROUNDS):
            report = client.scrub()
            mine = [defect for defect in report.defects if name in defect.name]
            assert not mine, "\n".join(map(str, mine))
