"""Looking at a queue without taking anything: peek and scan, in every state."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import pytest

from headwater import Headwater, InvalidInput, Queue, QueueItem
from tests.support.watch import let_pass

Connect: TypeAlias = Callable[[str], Headwater]
LONG_MS = 600_000


@pytest.fixture
def queue(client: Headwater, name: str) -> Queue:
    """A queue that was never pushed to."""
    return client.queue(name)


def values(items: list[QueueItem]) -> list[bytes]:
    return [item.value for item in items]


# ── Peek ─────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("count", [1, 2, 10])
def test_a_due_message_hides_no_delayed_one_behind_it(
    queue: Queue, client: Headwater, count: int
) -> None:
    for _ in range(3):
        queue.push(b"due", delay_ms=1)
    queue.push_many([b"late-1", b"late-2"], delay_ms=LONG_MS)
    let_pass(client, 2)
    assert values(queue.peek(count, state="delayed")) == [b"late-1", b"late-2"][:count]
    assert values(queue.peek(count)) == [b"due"] * min(count, 3)


@pytest.mark.parametrize("count", [1, 2, 3])
def test_delayed_messages_come_by_time_whether_they_were_tried_or_not(
    queue: Queue, count: int
) -> None:
    queue.push(b"failed")
    queue.push(b"1", delay_ms=LONG_MS)
    queue.push(b"3", delay_ms=3 * LONG_MS)
    assert queue.nack(*queue.pop(ack_ms=LONG_MS), delay_ms=2 * LONG_MS) == 1
    assert values(queue.peek(count, state="delayed")) == [b"1", b"failed", b"3"][:count]


@pytest.mark.parametrize("count", [1, 2, 10])
def test_a_message_that_lapsed_hides_no_unacked_one_behind_it(
    queue: Queue, client: Headwater, count: int
) -> None:
    queue.push_many([b"held-2", b"held-1", b"lapsed"])
    for ack_ms in (2 * LONG_MS, LONG_MS, 1):
        queue.pop(ack_ms=ack_ms)
    let_pass(client, 2)
    assert values(queue.peek(count, state="unacked")) == [b"held-1", b"held-2"][:count]
    assert values(queue.peek(count)) == [b"lapsed"]


@pytest.mark.parametrize("count", [1, 2, 3])
def test_unacked_messages_come_by_their_own_deadlines(queue: Queue, count: int) -> None:
    queue.push_many([b"1", b"4", b"2", b"3"])
    first = queue.pop(2, ack_ms=LONG_MS)
    queue.pop(2, ack_ms=2 * LONG_MS)
    assert queue.extend(first[1], ack_ms=3 * LONG_MS) == 1
    assert values(queue.peek(count, state="unacked")) == [b"1", b"2", b"3"][:count]


@pytest.mark.damages
def test_a_damaged_message_hides_no_ready_one_behind_it(connect: Connect, name: str) -> None:
    hw = connect("plain-sync")
    hw.store.command("RPUSH", f"hw:q:{{{name}}}:ready:0", b"not a message")
    hw.queue(name).push_many([b"1", b"2"])
    assert values(hw.queue(name).peek(1)) == [b"1"]


def test_a_peek_shows_released_messages_before_new_ones(queue: Queue, client: Headwater) -> None:
    queue.push_many([b"failed", b"released", b"new"])
    failed, released = queue.pop(2, ack_ms=LONG_MS)
    let_pass(client, 2)
    queue.nack(failed)
    let_pass(client, 2)
    queue.release(released)
    expected = [b"failed", b"released", b"new"]
    assert values(queue.peek()) == expected
    assert [delivery.value for delivery in queue.pop(3)] == expected


@pytest.mark.parametrize("count", [1, 2, 10])
def test_dead_letters_come_by_the_time_at_which_they_were_given_up(
    queue: Queue, client: Headwater, count: int
) -> None:
    queue.configure(max_attempts=1)
    for priority in (3, 0, 7):
        queue.push(b"%d" % priority, priority=priority)
        (taken,) = queue.pop(ack_ms=1 if priority == 7 else LONG_MS)
        if priority != 7:
            queue.nack(taken)
        let_pass(client, 2)
    assert values(queue.peek(count, state="dead")) == [b"3", b"0", b"7"][:count]


# ── Scan ─────────────────────────────────────────────────────────────────────────────────────


def test_a_scan_sees_every_message_once_in_its_state(queue: Queue) -> None:
    queue.configure(max_attempts=1)
    expected: dict[bytes, tuple[str, int]] = {}
    for priority in (0, 7):
        for state, delay_ms in (("dead", 0), ("unacked", 0), ("delayed", LONG_MS), ("ready", 0)):
            some = [f"{state}-{priority}-{i}".encode() for i in range(1100)]
            expected |= dict.fromkeys(some, (state, priority))
            queue.push_many(some, delay_ms=delay_ms, priority=priority)
            if state in ("dead", "unacked"):
                taken = queue.pop(1100, ack_ms=LONG_MS)
                assert [delivery.value for delivery in taken] == some
                if state == "dead":
                    queue.nack(*taken)
    found = list(queue.scan())
    assert {item.value: (item.state, item.priority) for item in found} == expected
    assert len(found) == len(expected)
    only = [item for item in found if item.state == "unacked"]
    assert sorted(queue.scan("unacked"), key=lambda x: x.id) == sorted(only, key=lambda x: x.id)
    facts = queue.stats()
    assert (facts.ready, facts.delayed, facts.unacked, facts.dead) == (2200,) * 4
    with pytest.raises(InvalidInput, match="no state 'gone'"):
        queue.peek(state="gone")  # type: ignore[arg-type]


def test_a_scan_misses_nothing_that_stays_while_others_are_taken(queue: Queue) -> None:
    queue.push_many([b"%d" % i for i in range(4000)])
    scan = queue.scan("ready")
    seen = {next(scan).value}
    queue.pop(900)
    queue.push_many([b"new"] * 50)
    seen |= {item.value for item in scan}
    assert {b"%d" % i for i in range(900, 4000)} <= seen
