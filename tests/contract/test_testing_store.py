"""Private stores for tests: empty, met by nobody else, with a clock to move and with faults."""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import itertools
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import headwater
from headwater import testing
from headwater.errors import (
    AccessDenied,
    InvalidInput,
    OutcomeUnknown,
    StoreUnreachable,
    UnknownGroup,
)
from headwater.log import grouping, reading, topics, writing
from headwater.log.handles import GroupHandle, GroupOptions, StreamHandle
from headwater.log.topics import TopicGroupHandle, TopicHandle
from headwater.queue import moving
from headwater.queue.handles import QueueHandle
from headwater.store.aio_store import AsyncStore
from headwater.store.call import Clock, Operation, Request, Token
from headwater.store.store import Store
from headwater.testing import PrivateStore
from tests.support.blocking import Loop
from tests.support.servers import Server, until
from tests.support.stores import Stores
from tests.support.virtual_time import VirtualTime

HOUR = dt.timedelta(hours=1)


@pytest.fixture
def hw() -> Iterator[PrivateStore]:
    with testing.store() as hw:
        yield hw


# ── Private ──────────────────────────────────────────────────────────────────────────────────


def test_a_store_is_empty_and_its_server_is_used_again() -> None:
    with testing.store() as first:
        first.stream("rides").write("t", b"v")
        first.clock.advance(HOUR)
        first.faults.fail("stream.info")
        pid = first.store.command("INFO", "server")[0].split(b"process_id:")[1].split()[0]
    with testing.store() as second:
        assert second.streams() == []
        assert second.stream("rides").info().last == 0
        assert second.clock.ahead == dt.timedelta(0)
        written = second.stream("rides").write("t", b"v")
        (message,) = second.stream("rides").read(written, 1)
        assert message is not None
        assert abs(message.time_ms / 1000 - dt.datetime.now(dt.UTC).timestamp()) < 600
        assert pid in second.store.command("INFO", "server")[0]


def test_two_stores_at_once_never_meet() -> None:
    with testing.store() as one, testing.store() as other:
        one.queue("mail").push(b"one")
        one.clock.advance(HOUR)
        assert other.queue("mail").pop() == []
        assert one.url != other.url
        assert other.clock.ahead == dt.timedelta(0)


def test_what_a_test_leaves_behind_does_not_reach_the_next_store() -> None:
    ended: list[BaseException] = []
    with testing.store() as first:
        left = headwater.connect(first.url)
        group = left.stream("rides").group("workers")

        def wait() -> None:
            try:
                group.read(1, block_ms=60_000)
            except headwater.StoreError as error:
                ended.append(error)

        thread = threading.Thread(target=wait, daemon=True)
        thread.start()
        until(lambda: b"cmd=blpop" in first.store.command("CLIENT", "LIST")[0])
    with testing.store() as second:
        second.stream("rides").write("t", b"v")
        assert second.stream("rides").info().groups == ()
        with pytest.raises(headwater.StoreError):
            headwater.connect(first.url, wait_ms=0)
        left.close()
        thread.join(60)
        assert ended


# ── The clock ────────────────────────────────────────────────────────────────────────────────


def test_what_is_due_later_is_due_when_the_clock_is_moved(hw: PrivateStore) -> None:
    mail, rides = hw.queue("mail"), hw.stream("rides")
    mail.push(b"later", delay_ms=HOUR)
    mail.push(b"once", dedupe="key", dedupe_ms=HOUR)
    rides.write("t", b"v")
    workers = rides.group("workers", dead_letters=True)
    assert [m.attempt for m in workers.read(9, ack_ms=HOUR, expire_ms=HOUR * 2)] == [1]
    assert [d.value for d in mail.pop(9)] == [b"once"]
    before = hw.clock.now()
    hw.clock.advance(HOUR)
    assert hw.clock.now() - before >= HOUR
    assert [d.value for d in mail.pop(9)] == [b"later"]
    assert [m.attempt for m in workers.read(9, ack_ms=HOUR, expire_ms=HOUR * 2)] == [2]
    mail.push(b"again", dedupe="key", dedupe_ms=HOUR)
    assert [d.value for d in mail.pop(9)] == [b"again"]
    hw.clock.move_to(hw.clock.now() + HOUR)
    assert workers.read(9, ack_ms=HOUR) == []
    assert len(workers.dead()) == 1
    hw.clock.advance(0)
    with pytest.raises(InvalidInput, match="cannot be moved back"):
        hw.clock.move_to(before)


def test_a_blocked_reader_notices_that_the_clock_was_moved(hw: PrivateStore) -> None:
    mail = hw.queue("mail")
    mail.push(b"later", delay_ms=HOUR)
    found: list[bytes] = []
    reader = threading.Thread(
        target=lambda: found.extend(d.value for d in mail.pop(1, block_ms=60_000))
    )
    reader.start()
    until(lambda: b"cmd=blpop" in hw.store.command("CLIENT", "LIST")[0])
    hw.clock.advance(HOUR)
    reader.join(60)
    assert found == [b"later"]


# ── Faults ───────────────────────────────────────────────────────────────────────────────────


def test_an_operation_fails_loses_its_answer_or_is_cut_off_as_often_as_asked(
    hw: PrivateStore,
) -> None:
    rides, mail = hw.stream("rides"), hw.queue("mail")
    hw.faults.fail("stream.write", times=2)
    for _ in range(2):
        with pytest.raises(StoreUnreachable):
            rides.write("t", b"not written")
    hw.faults.lose("stream.write")
    with pytest.raises(OutcomeUnknown):
        rides.write("t", b"written")
    hw.faults.disconnect("stream.write")
    with pytest.raises(OutcomeUnknown):
        rides.write("t", b"written too")
    assert [m and m.value for m in rides.read(1, 9)] == [b"written", b"written too"]
    mail.push_many([b"1", b"2"])
    first, second = mail.pop(2, ack_ms=HOUR)
    hw.faults.fail("queue.ack")
    assert mail.extend(first, ack_ms=HOUR) == 1
    with pytest.raises(StoreUnreachable):
        mail.ack(first)
    hw.faults.lose("*.ack")
    with pytest.raises(OutcomeUnknown):
        mail.ack(first)
    # It is harmless to send an ack again, and so the client does.
    hw.faults.disconnect("queue.ack")
    assert mail.ack(second) == 0
    assert mail.stats().unacked == 0
    hw.faults.slow("queue.push", 1)
    hw.faults.fail("queue.pop")
    assert hw.faults.pending == ["queue.push", "queue.pop"]
    hw.faults.clear()
    assert mail.pop() == []
    with pytest.raises(InvalidInput, match=r"queue\.ack"):
        hw.faults.fail("stream.ack")


def test_faults_meet_async_clients_in_whatever_loop_they_run(hw: PrivateStore) -> None:
    client = hw.async_client()

    async def test() -> int:
        hw.faults.lose("stream.write")
        with pytest.raises(OutcomeUnknown):
            await client.stream("rides").write("t", b"v")
        hw.faults.fail("queue.push", times=1)
        with pytest.raises(StoreUnreachable):
            await client.queue("mail").push(b"v")
        return (await client.stream("rides").info()).last

    assert [asyncio.run(test()), asyncio.run(test())] == [1, 2]


def test_a_killed_store_comes_back_with_what_it_acknowledged(hw: PrivateStore) -> None:
    rides = hw.stream("rides")
    rides.write("t", b"v")
    hw.clock.advance(HOUR)
    hw.kill()
    with pytest.raises(headwater.StoreError):
        headwater.connect(hw.url, wait_ms=0)
    hw.start()
    assert rides.info().last == 1
    assert hw.clock.ahead == HOUR
    rides.write("t", b"w")
    first, second = rides.read(1, 2)
    assert first is not None
    assert second is not None
    assert second.time_ms - first.time_ms >= HOUR / dt.timedelta(milliseconds=1)


# ── Operations run in a time of their own: what blocks for long takes no time to test ────────────

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
    return (yield from grouping.read(group, 1, block_ms, None, None)).messages


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
        assert values(waiting[place].result().messages) == [b"%d" % place]


def test_a_member_of_a_topic_waits_for_all_its_partitions(world: VirtualTime, name: str) -> None:
    topic = TopicHandle(name, 4, set())
    group = TopicGroupHandle(topic, "g", "m", GroupOptions(), one_server=True)
    waiting = world.start(topics.read(group, 10, LONG_MS, None, None))
    world.advance(LONG_MS - 1)
    assert not waiting.done
    world.start(topics.write(topic, "a tag", b"v", None))
    assert values(waiting.result().messages) == [b"v"]


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
                store = Store.open(url, **outside)
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
