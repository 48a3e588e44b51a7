"""Operations run in a time of their own: what blocks for long takes no time to test."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import headwater
from headwater.errors import AccessDenied, StoreUnreachable, UnknownGroup
from headwater.log import grouping, reading, topics, writing
from headwater.log.handles import GroupHandle, GroupOptions, StreamHandle
from headwater.log.topics import TopicGroupHandle, TopicHandle
from headwater.queue import moving
from headwater.queue.handles import QueueHandle
from headwater.store.aio_store import AsyncStore
from headwater.store.call import Clock, Operation, Request, Token
from headwater.store.store import Store
from tests.support.blocking import Loop
from tests.support.servers import Server
from tests.support.stores import Stores
from tests.support.virtual_time import VirtualTime

# Longer than any test may take.
LONG_MS = 10 * 60 * 1000


@pytest.fixture
def world(stores: Stores) -> Iterator[VirtualTime]:
    with headwater.connect(stores.url("plain")) as hw:
        yield VirtualTime(hw.store.ask)


def values(messages: list[Any]) -> list[bytes]:
    return [message.value for message in messages]


def stream_of(name: str) -> StreamHandle:
    return StreamHandle(name, {name})


def write(name: str, value: bytes) -> Operation[int]:
    return writing.write(stream_of(name), "t", value, None)


def queue_of(name: str) -> QueueHandle:
    return QueueHandle(name, set(), "m")


def push(name: str, value: bytes) -> Operation[list[str]]:
    return moving.push_many(queue_of(name), [value], 0, 0, None, None, 0, None, None)


# ── Blocked, and woken or not ────────────────────────────────────────────────────────────────

Blocked = Callable[[str, float], Operation[Any]]


def read(name: str, block_ms: float) -> Operation[Any]:
    found, _, _ = yield from reading.read(stream_of(name), 1, 1, block_ms)
    return found


def member(name: str, block_ms: float) -> Operation[list[headwater.Message]]:
    group = GroupHandle(stream_of(name), "g", "m")
    return grouping.read(group, 1, block_ms, None, None)


def consumer(name: str, block_ms: float) -> Operation[list[headwater.Delivery]]:
    return moving.pop(queue_of(name), 1, None, block_ms)


WAYS = [
    pytest.param(read, write, id="stream"),
    pytest.param(member, write, id="group"),
    pytest.param(consumer, push, id="queue"),
]


@pytest.mark.parametrize(("waits", "_"), WAYS)
def test_who_waits_ends_when_the_time_is_over_and_not_before(
    world: VirtualTime, name: str, waits: Blocked, _: object
) -> None:
    waiting = world.start(waits(name, LONG_MS))
    world.advance(LONG_MS - 1)
    assert not waiting.done
    world.advance(1)
    assert waiting.result() == []


@pytest.mark.parametrize(("waits", "wakes"), WAYS)
def test_who_waits_is_woken_by_what_comes_in_the_meantime(
    world: VirtualTime, name: str, waits: Blocked, wakes: Callable[[str, bytes], Operation[object]]
) -> None:
    waiting = world.start(waits(name, LONG_MS))
    world.advance(LONG_MS / 2)
    assert not waiting.done
    world.start(wakes(name, b"v"))
    assert values(waiting.result()) == [b"v"]
    assert world.now_ms == LONG_MS / 2


def test_blocked_members_are_served_in_turn(world: VirtualTime, name: str) -> None:
    groups = [GroupHandle(stream_of(name), "g", f"m{place}") for place in range(3)]
    waiting = [world.start(grouping.read(group, 1, LONG_MS, None, None)) for group in groups]
    for place in (0, 1, 2):
        assert not waiting[place].done
        world.start(write(name, b"%d" % place))
        assert values(waiting[place].result()) == [b"%d" % place]


def test_a_member_of_a_topic_waits_for_all_its_partitions(world: VirtualTime, name: str) -> None:
    topic = TopicHandle(name, 4, set())
    group = TopicGroupHandle(topic, "g", "m", GroupOptions(), one_server=True)
    waiting = world.start(topics.read(group, 10, LONG_MS, None, None))
    world.advance(LONG_MS - 1)
    assert not waiting.done
    world.start(topics.write(topic, "a tag", b"v", None))
    assert values(waiting.result()) == [b"v"]


# ── What the drivers give ────────────────────────────────────────────────────────────────────


def test_operations_do_the_same_each_time(stores: Stores, name: str) -> None:
    def life(stream: str) -> list[list[Request]]:
        with headwater.connect(stores.url("plain")) as hw:
            world = VirtualTime(hw.store.ask)
            members = [world.start(member(stream, LONG_MS)) for _ in range(2)]
            world.advance(LONG_MS / 3)
            written = world.start(write(stream, b"v"))
            world.advance(LONG_MS)
            hw.stream(stream).delete()
            return [each.requests for each in (*members, written)]

    assert life(name) == life(name)


def test_an_error_of_the_store_reaches_the_operation_as_with_a_store(
    world: VirtualTime, name: str
) -> None:
    group = GroupHandle(stream_of(name), "g", "m")
    with pytest.raises(UnknownGroup):
        world.start(grouping.info(group)).result()

    def refused(_: Request) -> object:
        raise AccessDenied("here", "no", "ask for it")

    with pytest.raises(AccessDenied):
        VirtualTime(refused).start(grouping.info(group)).result()


@pytest.fixture(params=["sync", "async"])
def run(request: pytest.FixtureRequest, loop: Loop) -> Iterator[Callable[..., Any]]:
    """Run an operation by a store of each kind, with a clock and tokens from outside."""
    with contextlib.ExitStack() as opened:

        def run(url: str, operation: Operation[Any], **outside: Any) -> Any:
            if request.param == "sync":
                store = Store(url, **outside)
                opened.callback(store.close)
                return store.run(operation)
            other = loop.wait(AsyncStore.open(url, **outside))
            opened.callback(lambda: loop.wait(other.close()))
            return loop.wait(other.run(operation))

        yield run


def test_a_store_takes_time_and_names_from_outside(stores: Stores, run: Callable[..., Any]) -> None:
    def operation() -> Operation[tuple[float, str]]:
        return (yield Clock()), (yield Token())

    url = stores.url("plain")
    assert run(url, operation(), clock=lambda: 17.0, token=lambda: "name") == (17_000.0, "name")


def test_the_patience_of_a_store_is_counted_by_its_clock(
    name: str, run: Callable[..., Any]
) -> None:
    now = itertools.count(0, 31)
    with Server(tcp=True) as server:

        def operation() -> Operation[Any]:
            server.kill()
            return (yield from reading.info(stream_of(name)))

        with pytest.raises(StoreUnreachable):
            run(server.url, operation(), clock=lambda: next(now))
