"""No call does much at once: what is large goes in steps, and every step is fair."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis

import headwater
from headwater.log.keys import group_key, stream_key
from headwater.queue.keys import MAX_DEDUPE_MESSAGES, MAX_PUSH_MESSAGES
from tests.support.entries import entries
from tests.support.servers import Server

FAR = 10**8
# How many groups one write serves; see log/lua/shared/55-waiters.lua.
SERVED = 64


@pytest.fixture
def raw(server: Server) -> Iterator[redis.Redis]:
    with server.client() as raw:
        yield raw


@pytest.fixture
def hw(server: Server) -> Iterator[headwater.Headwater]:
    with headwater.connect(server.url) as hw:
        yield hw


def commands_in_a_call(raw: redis.Redis, work: Callable[[], object]) -> float:
    """Return how many commands the functions ran in each call, while some work was done."""
    raw.config_resetstat()
    work()
    stats: Any = raw.info("commandstats")
    counts: dict[str, int] = {name: each["calls"] for name, each in stats.items()}
    calls = counts.pop("cmdstat_fcall") + counts.pop("cmdstat_fcall_ro", 0)
    return sum(counts.values()) / calls


@pytest.mark.parametrize("verb", ["ack", "nack", "extend"])
@pytest.mark.parametrize("pending", [True, False])
def test_scattered_offsets_are_looked_up_a_few_hundred_in_a_call(
    hw: headwater.Headwater, raw: redis.Redis, name: str, verb: str, pending: bool
) -> None:
    stream = hw.stream(name)
    stream.write_many(entries(4000))
    group = stream.group("g")
    group.read(4000, ack_ms=FAR if pending else None)
    scattered = range(1, 4001, 4)
    words = {"ack": {}, "nack": {"delay_ms": FAR}, "extend": {"ack_ms": FAR}}[verb]
    found: list[int] = []
    several = commands_in_a_call(
        raw, lambda: found.append(getattr(group, verb)(*scattered, **words))
    )
    assert found == [len(scattered) if pending else 0]
    assert several < 700
    assert group.info().pending == (4000 * pending - (found[0] if verb == "ack" else 0))


def block_in(raw: redis.Redis, stream: str, group: str) -> None:
    """Note a member of a group as one that is blocked."""
    key = group_key(stream_key(stream), group)
    raw.zadd(f"{key}:waiters", {"w": 1})
    raw.hset(key, "w:w", f"{FAR * 10**6}:1:::1")
    found: Any = raw.hget(stream_key(stream), "waiting")
    waiting = (found or b" ").decode()
    if f" {group} " not in waiting:
        raw.hset(stream_key(stream), "waiting", f"{waiting}{group} ")


def boxes(raw: redis.Redis, stream: str, group: str) -> int:
    """Return how many messages a blocked member was given."""
    return raw.llen(f"{group_key(stream_key(stream), group)}:box:w")


def test_every_group_has_its_turn_when_more_wait_than_one_write_serves(
    hw: headwater.Headwater, raw: redis.Redis, name: str
) -> None:
    stream = hw.stream(name)
    stream.write("t", b"first")
    groups = [f"g{n}" for n in range(SERVED + 20)]
    for group in groups:
        stream.group(group).read(1)
        block_in(raw, name, group)
    stream.write("t", b"second")
    assert sum(boxes(raw, name, group) for group in groups) == SERVED
    for group in groups:
        # Who was served waits again, and others wait with it.
        block_in(raw, name, group)
    stream.write("t", b"third")
    assert [group for group in groups if not boxes(raw, name, group)] == []


def test_groups_in_which_nobody_waits_any_more_are_passed_over_a_few_in_a_call(
    hw: headwater.Headwater, raw: redis.Redis, name: str
) -> None:
    stream = hw.stream(name)
    stream.write("t", b"first")
    names = "".join(f"gone{n} " for n in range(1000))
    raw.hset(stream_key(name), "waiting", f" {names}")
    assert commands_in_a_call(raw, lambda: stream.write("t", b"v")) < 2 * SERVED
    for _ in range(1000 // SERVED + 1):
        stream.write("t", b"v")
    assert raw.hget(stream_key(name), "waiting") is None


def test_a_push_of_the_most_messages_is_taken_and_a_larger_one_refused(
    hw: headwater.Headwater, name: str
) -> None:
    queue = hw.queue(name)
    with pytest.raises(headwater.InvalidInput, match=f"one push takes {MAX_PUSH_MESSAGES} "):
        queue.push_many([b"v"] * (MAX_PUSH_MESSAGES + 1))
    assert len(queue.push_many([b"v"] * MAX_PUSH_MESSAGES)) == MAX_PUSH_MESSAGES
    keys = [f"k{n}" for n in range(MAX_DEDUPE_MESSAGES + 1)]
    with pytest.raises(headwater.InvalidInput, match=f"takes {MAX_DEDUPE_MESSAGES} messages"):
        queue.push_many(keys, dedupe=keys)
    assert queue.stats().ready == MAX_PUSH_MESSAGES
    most = keys[:MAX_DEDUPE_MESSAGES]
    assert queue.push_many(most, dedupe=most) == queue.push_many(most, dedupe=most)
    assert queue.stats().ready == MAX_PUSH_MESSAGES + MAX_DEDUPE_MESSAGES
