"""Nothing dirty is forgotten and nothing is with two consumers, while everything is killed."""

from __future__ import annotations

import os
import random
import secrets
import signal
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import pytest

import headwater
from headwater import Headwater, IckChannel
from headwater.ick import channels
from headwater.ick.channels import ChannelHandle
from headwater.store.call import Operation
from headwater.store.store import Store
from tests.support.drainers import Table
from tests.support.servers import Server, until
from tests.support.stepping import Stepper, abandon_after
from tests.support.stores import Stores
from tests.support.zygote import Zygote

pytestmark = pytest.mark.fault
SEED = int(os.environ.get("HEADWATER_SEED") or secrets.randbits(32))
LONG = int(os.environ.get("HEADWATER_LONG") or 1)
LEASE_MS = 150
MEMBERS = [f"m{number}" for number in range(40)]


@pytest.fixture(scope="module")
def zygote() -> Iterator[Zygote]:
    with Zygote("tests.support.drainers") as zygote:
        yield zygote


class Crew:
    """Consumers in processes of their own, and the rows that they follow."""

    def __init__(self, zygote: Zygote, store: str, name: str) -> None:
        self._zygote = zygote
        self._order = {"name": name, "ack_ms": LEASE_MS, "n": 5}
        self._store = store
        self._count = 0
        self.table = Table(store, name)

    def start(self, manner: str, **order: Any) -> int:
        self._count += 1
        order |= self._order | {"manner": manner, "who": self._count}
        return self._zygote.start("", self._store, **order)

    def wait(self, pid: int) -> int:
        return self._zygote.wait(pid)

    def end(self, pid: int, number: int = signal.SIGTERM) -> int:
        return self._zygote.end(pid, number)

    def dirty(self, channel: IckChannel, members: list[str], version: int) -> None:
        self.table.raise_versions(members, version)
        channel.add(dict.fromkeys(members, float(version)))

    def check(self, channel: IckChannel) -> None:
        """The index is what the rows are, nothing is left, and no lease had two holders."""
        until(lambda: (facts := channel.stats()) and not (facts.ready or facts.reserved))
        assert self.table.index() == self.table.rows()
        assert max(Counter(self.table.leases()).values()) == 1


@pytest.mark.parametrize("step", ["reserved", "worked", "committed"])
@pytest.mark.parametrize("manner", ["sync", "async"])
def test_a_consumer_may_die_at_any_step(
    zygote: Zygote, stores: Stores, name: str, manner: str, step: str
) -> None:
    store = stores.url("plain")
    with headwater.connect(store) as hw:
        crew, channel = Crew(zygote, store, name), hw.ick_channel(name, shards=2)
        crew.dirty(channel, MEMBERS, 1)
        victims = [crew.start(manner, step=step, times=times) for times in (1, 2)]
        assert [crew.wait(victim) for victim in victims] == [-signal.SIGKILL] * 2
        crew.dirty(channel, MEMBERS[::2], 2)
        last = crew.start(manner)
        crew.check(channel)
        assert crew.end(last) == 0


@pytest.mark.timeout(300 + 60 * LONG)
def test_consumers_server_and_layout_may_go_and_come_at_any_time(zygote: Zygote, name: str) -> None:
    print(f"HEADWATER_SEED={SEED}")
    chance = random.Random(SEED)
    with Server(fsync="always") as server, headwater.connect(server.url) as hw:
        crew, channel = Crew(zygote, server.url, name), hw.ick_channel(name, shards=3)
        working = [crew.start(manner) for manner in ("sync", "async")]
        for version in range(1, 12 * LONG):
            crew.dirty(channel, chance.sample(MEMBERS, 15), version)
            until(lambda: len(crew.table.index()) > 5)
            fate = version % 4
            if fate == 1:
                assert crew.end(working.pop(0), signal.SIGKILL) == -signal.SIGKILL
                working.append(crew.start(chance.choice(["sync", "async"])))
            elif fate == 2:
                server.kill()
                server.restart()
            elif fate == 3:
                channel.reshard(chance.randrange(1, 6))
        crew.check(channel)
        assert [crew.end(pid) for pid in working] == [0, 0]


def test_no_member_is_with_two_consumers_while_shards_change(client: Headwater, name: str) -> None:
    """Leases are long here: whatever is in two hands is in them by mistake."""
    working: dict[str, str] = {}
    versions = dict.fromkeys(MEMBERS, 0)
    index = dict.fromkeys(MEMBERS, 0)
    lock, done = threading.Lock(), threading.Event()
    client.ick_channel(name, shards=2).add({"first": 0})

    def consume(_: int) -> None:
        channel = client.ick_channel(name)
        while True:
            finished = done.is_set()
            batch = channel.reserve(4)
            if not batch and finished:
                return
            members = [str(member) for member in batch.members if member != "first"]
            with lock:
                assert not working.keys() & set(members), "with one consumer at a time"
                working.update(dict.fromkeys(members, channel.consumer))
                index.update({member: versions[member] for member in members})
            with lock:
                for member in members:
                    del working[member]
            channel.commit(batch)

    def produce(seed: int) -> None:
        channel, chance = client.ick_channel(name), random.Random(seed)
        for _ in range(25):
            members = chance.sample(MEMBERS, 8)
            with lock:
                versions.update({member: versions[member] + 1 for member in members})
            channel.add(dict.fromkeys(members, float(chance.randrange(100))))

    with ThreadPoolExecutor(8) as pool:
        consumers = [pool.submit(consume, number) for number in range(4)]
        try:
            producers = [pool.submit(produce, seed) for seed in range(2)]
            for shards in (5, 1, 3):
                client.ick_channel(name).reshard(shards)
            for task in producers:
                task.result()
        finally:
            done.set()
        for task in consumers:
            task.result()
    settle(client.ick_channel(name))
    for batch in iter(lambda: client.ick_channel(name).reserve(100), ()):
        if not batch:
            break
        index.update({str(m): versions[str(m)] for m in batch.members})
        client.ick_channel(name).commit(batch)
    assert index == versions, "nothing dirty was forgotten"


def settle(channel: IckChannel) -> None:
    facts = channel.stats()
    assert facts is not None
    until(lambda: channel.reshard(len(facts.shards)).settled)


# ── Operations of several calls, stopped after each of them ──────────────────────────────────


@pytest.fixture
def store(stores: Stores) -> Iterator[Store]:
    store = Store.open(stores.url("plain"))
    yield store
    store.close()


def handle(name: str) -> ChannelHandle:
    return ChannelHandle(name, 3, "stopped", LEASE_MS, set())


Make = Callable[[], Operation[Any]]


def test_whatever_stops_half_way_is_finished_by_others(
    stores: Stores, store: Store, name: str
) -> None:
    scores = {f"m{number}": float(number) for number in range(700)}
    with headwater.connect(stores.url("plain")) as hw:
        finished, calls = False, 0
        while not finished:
            calls += 1
            channel = hw.ick_channel(f"{name}.{calls}", shards=3)
            channel.add(scores)
            make = channels.reshard(handle(channel.name), 2)
            finished = abandon_after(store, make, calls)
            channel.add({"m0": -1.0})
            taken: list[str] = []
            while batch := channel.reserve(200):
                taken += map(str, batch.members)
                channel.commit(batch)
            assert set(taken) == set(scores)
            # Who has looked before, and meets nothing that is closed, does not know of the change.
            hw.keep_channels(channel.name)
            facts = channel.stats()
            assert facts is not None
            assert facts.left_behind == ()
            channel.delete()
    assert calls > 12, "it was stopped at every step"


def test_a_delete_that_stops_half_way_is_finished_by_whoever_comes(
    stores: Stores, store: Store, name: str
) -> None:
    with headwater.connect(stores.url("plain")) as hw:
        finished, calls = False, 0
        while not finished:
            calls += 1
            channel = hw.ick_channel(f"{name}.{calls}", shards=3)
            channel.add({f"m{number}": 1 for number in range(50)})
            finished = abandon_after(store, channels.delete(handle(channel.name)), calls)
            began = finished or calls > 1
            hw.keep_channels(channel.name)
            assert (channel.stats() is None) == began
            assert channel.add({"new": 1}).new == 1
            found = {row.member for row in channel.scan()}
            assert found == {"new"} if began else "new" in found
            channel.delete()


@pytest.mark.parametrize("seed", range(4))
def test_changes_adds_and_reserves_may_take_turns_in_any_order(
    stores: Stores, store: Store, name: str, seed: int
) -> None:
    chance = random.Random(seed)
    with headwater.connect(stores.url("plain")) as hw:
        channel = hw.ick_channel(name, shards=2)
        dirty = {f"m{number}" for number in range(60)}
        channel.add(dict.fromkeys(dirty, 1.0))
        held: dict[str, int] = {}
        for turn in range(6):
            more = {f"n{turn}.{number}": 2.0 for number in range(5)}
            dirty |= set(more)
            makes: list[Make] = [
                lambda: channels.reshard(handle(name), chance.randrange(1, 5)),
                lambda: channels.reshard(handle(name), chance.randrange(1, 5)),
                lambda more=more: channels.add(handle(name), more, None),  # type: ignore[misc]
                lambda: channels.finish_change(handle(name)),
            ]
            steppers = [Stepper(store, make()) for make in makes]
            while steppers:
                stepper = chance.choice(steppers)
                if stepper.step():
                    steppers.remove(stepper)
                if chance.random() < 0.2 and (batch := channel.reserve(7)):
                    held.update(dict.fromkeys(map(str, batch.members), batch.token))
                    with suppress(headwater.LeaseLost):
                        channel.commit(batch)
        settle(channel)
        while batch := channel.reserve(100):
            held.update(dict.fromkeys(map(str, batch.members), batch.token))
            channel.commit(batch)
        assert set(held) == dirty
