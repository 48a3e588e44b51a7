"""Spans of time are milliseconds or timedeltas, and a deadline has the same name everywhere."""

from __future__ import annotations

from datetime import timedelta

from headwater import Headwater
from tests.support.entries import entries, offsets
from tests.support.watch import let_pass

MINUTE = timedelta(minutes=1)
MOMENT = timedelta(milliseconds=20)


def test_a_group_takes_timedeltas(client: Headwater, name: str) -> None:
    stream = client.stream(name)
    stream.write_many(entries(3))
    group = stream.group("g", dead_letters=True)
    first = group.read(1, ack_ms=MINUTE, expire_ms=timedelta(hours=1), block_ms=MOMENT)
    second = group.read(1, ack_ms=MINUTE)
    assert offsets(first + second) == [1, 2]
    assert group.extend(first, ack_ms=MOMENT) == group.nack(second, delay_ms=MINUTE) == 1
    let_pass(client, 20)
    assert offsets(group.read(1, ack_ms=1000)) == [1]
    stream.retain(max_age_ms=timedelta(days=1), max_idle_ms=timedelta(weeks=1))
    kept = stream.info().retention
    assert (kept.max_age_ms, kept.max_idle_ms) == (86_400_000, 604_800_000)


def test_a_queue_takes_timedeltas(client: Headwater, name: str) -> None:
    queue = client.queue(name)
    settings = queue.configure(backoff="fixed", backoff_ms=MOMENT)
    assert settings.backoff_ms == 20
    queue.push(b"late", delay_ms=MINUTE, ttl_ms=MINUTE)
    assert queue.pop(ack_ms=MINUTE) == []
    queue.push(b"a", dedupe="k", dedupe_ms=MINUTE)
    (taken,) = queue.pop(ack_ms=MINUTE, block_ms=MINUTE)
    assert queue.extend(taken, ack_ms=MOMENT) == 1
    let_pass(client, 20)
    assert queue.ack(taken) == 0


def test_a_channel_takes_timedeltas(client: Headwater, name: str) -> None:
    channel = client.ick_channel(name, shards=1, ack_ms=MOMENT)
    channel.add({"a": 1.0})
    batch = channel.reserve(1)
    until = channel.renew(batch, ack_ms=MINUTE)
    assert until - batch.until_ms >= 50_000
    assert channel.release(batch, delay_ms=MINUTE) == 1


def test_a_group_of_a_topic_takes_timedeltas(client: Headwater, name: str) -> None:
    topic = client.topic(name, partitions=2)
    topic.write("a", b"1")
    group = topic.group("g")
    (taken,) = group.read(1, ack_ms=MINUTE, block_ms=MINUTE)
    assert group.nack(taken, delay_ms=MOMENT) == 1
    (again,) = group.read(1, ack_ms=MINUTE, block_ms=MINUTE)
    assert (again.offset, again.attempt) == (taken.offset, 2)
    assert group.extend(again, ack_ms=MOMENT) == 1
