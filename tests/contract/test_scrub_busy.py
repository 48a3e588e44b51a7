"""A scrub of a store in use raises no false alarm, however it meets the work of others."""

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

from headwater import Headwater, UnknownGroup
from headwater.ick import scrubbing as ick_scrubbing
from headwater.log import group_scrubbing, scrubbing
from headwater.queue import scrubbing as queue_scrubbing
from tests.support.entries import entries

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
    rooms = (scrubbing, scrubbing, group_scrubbing, queue_scrubbing, ick_scrubbing)
    for room in rooms:
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
