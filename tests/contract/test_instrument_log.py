"""What an instrument learns of streams and groups: how many messages each request moved."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import headwater
from headwater.kernel.instrument import Event
from tests.support.entries import entries, offsets
from tests.support.instruments import Recorder
from tests.support.servers import until
from tests.support.stagings import table
from tests.support.waking import wait_for_members
from tests.support.watch import blocked, let_pass

LONG = 60_000


def facts(event: Event) -> tuple[str, str, int]:
    return event.object, event.outcome, event.messages


def test_a_stream_tells_what_is_written_and_read(
    client: headwater.Headwater, name: str, told: Recorder
) -> None:
    stream = client.stream(name)
    stream.write("t", bytes(1000))
    assert facts(told.last("stream.write")) == (name, "ok", 1)
    assert 1000 < told.last("stream.write").bytes < 1200
    assert told.last("stream.write").seconds > 0
    stream.write_many(entries(500, 2))
    assert facts(told.last("stream.write")) == (name, "ok", 500)
    assert len(stream.read(3, 10)) == 10
    assert facts(told.last("stream.read")) == (name, "ok", 10)
    stream.read(600, 1, block_ms=30)
    assert facts(told.last("stream.wait")) == (name, "ok", 0)


def test_a_reader_that_continues_tells_of_its_looks(
    client: headwater.Headwater, name: str, told: Recorder
) -> None:
    stream = client.stream(name)
    for start in range(1, 4001, 1000):
        stream.write_many(entries(1000, start))
    stream.seal()
    for start in range(1, 4001, 1000):
        stream.read(start, 1000)
    assert {facts(event) for event in told.named("stream.look")} == {(name, "ok", 1000)}


def test_a_group_is_named_with_its_stream(
    client: headwater.Headwater, name: str, told: Recorder
) -> None:
    stream = client.stream(name)
    stream.write_many(entries(10))
    group = stream.group("a/b:1")
    group.read(10, ack_ms=60_000)
    group.ack((1, 10))
    group.read(1, block_ms=30)
    names = {event.name: event.object for event in told.events if event.name.startswith("group.")}
    assert names == dict.fromkeys(["group.read", "group.ack", "group.wait"], f"{name}/a/b:1")


def test_a_group_tells_what_is_delivered_and_acknowledged(
    client: headwater.Headwater, name: str, told: Recorder
) -> None:
    stream = client.stream(name)
    stream.write_many(entries(10))
    group = stream.group("g")
    group.read(7, ack_ms=LONG)
    assert facts(told.last("group.read")) == (f"{name}/g", "ok", 7)
    group.ack((1, 5), 9)
    assert facts(told.last("group.ack")) == (f"{name}/g", "ok", 5)
    group.nack(6, 7, delay_ms=LONG)
    assert facts(told.last("group.postpone")) == (f"{name}/g", "ok", 2)
    group.read(10)
    assert facts(told.last("group.read")) == (f"{name}/g", "ok", 3)


def test_a_blocked_member_tells_what_woke_it(
    client: headwater.Headwater, name: str, told: Recorder, pool: ThreadPoolExecutor
) -> None:
    stream = client.stream(name)
    group = stream.group("g")
    member = pool.submit(group.read, 5, ack_ms=LONG, block_ms=LONG)
    until(lambda: told.named("group.read"))
    wait_for_members(group, 1)
    stream.write_many(entries(3))
    assert offsets(member.result(60)) == [1, 2, 3]
    assert sum(event.messages for event in told.named("group.wait")) == 3
    assert sum(event.messages for event in told.named("group.read")) == 0


def test_a_blocked_reader_tells_what_woke_it(
    client: headwater.Headwater, name: str, told: Recorder, pool: ThreadPoolExecutor
) -> None:
    stream = client.stream(name)
    reader = pool.submit(stream.read, 1, 5, block_ms=LONG)
    until(lambda: blocked(client))
    stream.write_many(entries(3))
    assert len(reader.result(60)) == 3
    moved = [*told.named("stream.wait"), *told.named("stream.read")]
    assert sum(event.messages for event in moved) == 3


def test_staging_and_publishing_tell_how_much(
    client: headwater.Headwater, name: str, told: Recorder
) -> None:
    stream = client.stream(name)
    for number in range(2):
        stream.stage(table(entries(700)), f"t{number}")
        assert facts(told.last("stream.stage")) == (name, "ok", 700)
    for _ in range(2):
        stream.publish("t0", "t1", producer="p", sequence=1)
    assert sum(event.messages for event in told.named("stream.publish")) == 1400


def test_what_leaves_a_stream_is_counted(
    client: headwater.Headwater, name: str, told: Recorder
) -> None:
    stream = client.stream(name)
    stream.write_many(entries(1000))
    stream.seal()
    stream.evict(100)
    assert facts(told.last("stream.evict")) == (name, "ok", 100)
    stream.write_many(entries(10))
    stream.seal()
    assert facts(told.last("stream.seal")) == (name, "ok", 10)
    stream.retain(max_count=50)
    assert sum(event.messages for event in told.named("stream.retain")) == 860


def test_what_a_group_gives_up_and_gets_back_is_counted(
    client: headwater.Headwater, name: str, told: Recorder
) -> None:
    stream = client.stream(name)
    stream.write_many(entries(4))
    dropping = stream.group("dropping")
    dropping.read(3, ack_ms=1, expire_ms=1)
    burying = stream.group("burying", dead_letters=True)
    burying.read(4, ack_ms=1, expire_ms=1)
    let_pass(client, 5)
    dropping.bury()
    assert sum(event.messages for event in told.named("group.expire")) == 3
    burying.bury()
    assert sum(event.messages for event in told.named("group.bury")) == 4
    burying.redrive(2)
    assert facts(told.last("group.redrive")) == (f"{name}/burying", "ok", 2)
    burying.discard()
    assert facts(told.last("group.discard")) == (f"{name}/burying", "ok", 2)
