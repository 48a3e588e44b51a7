"""How long messages of a queue waited until somebody popped them, counted in spans."""

from __future__ import annotations

import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import headwater
from headwater import Queue, testing
from headwater.metrics.exposition import Page
from headwater.metrics.sampler import add_queue
from headwater.queue.types import WAIT_BOUNDS_MS
from headwater.testing import PrivateStore
from tests.support.servers import until
from tests.support.watch import blocked

HOUR_MS = 3_600_000


@pytest.fixture
def hw() -> Iterator[PrivateStore]:
    with testing.store() as hw:
        yield hw


@pytest.fixture
def queue(hw: PrivateStore) -> Queue:
    """A queue of a store whose clock is moved: from then on its functions stay the same."""
    hw.clock.advance(1)
    return hw.queue("jobs")


def waits(queue: Queue) -> dict[int | None, int]:
    """Return how many messages waited up to each bound; None stands for longer."""
    counts = zip((*WAIT_BOUNDS_MS, None), queue.stats().waits, strict=True)
    return {bound: count for bound, count in counts if count}


def test_messages_wait_from_when_they_can_be_popped(hw: PrivateStore, queue: Queue) -> None:
    assert (waits(queue), queue.stats().waited_ms) == ({}, 0)
    queue.push_many([b"early"] * 70)
    hw.clock.advance(100_000)
    queue.push(b"late")
    queue.push(b"delayed", delay_ms=90_000)
    hw.clock.advance(100_000)
    taken = queue.pop(100, ack_ms=HOUR_MS)
    assert len(taken) == 72
    # 200 s, 100 s, and of the delayed one the 10 s after its delay.
    assert waits(queue) == {300_000: 71, 30_000: 1}
    assert queue.stats().waited_ms == pytest.approx(70 * 200_000 + 100_000 + 10_000, rel=0.05)
    queue.nack(*taken)
    hw.clock.advance(400_000)
    queue.pop(10, ack_ms=HOUR_MS)
    assert waits(queue) == {300_000: 71, 30_000: 1, HOUR_MS: 10}, "those that failed wait anew"
    hw.clock.advance(30 * HOUR_MS)
    assert len(queue.pop(62)) == 62
    assert waits(queue)[None] == 62


def restarted(hw: PrivateStore) -> dict[int | None, int]:
    """Return what is known of waits by functions that have counted nothing themselves."""
    hw.store.command("FUNCTION", "FLUSH", "SYNC")
    with headwater.connect(hw.url) as other:
        return waits(other.queue("jobs"))


def test_a_pop_after_a_quiet_time_is_remembered_by_a_store_that_stops(
    hw: PrivateStore, queue: Queue
) -> None:
    queue.push_many([b"x"] * 3)
    hw.clock.advance(100_000)
    queue.pop(2)
    hw.clock.advance(100)
    queue.pop(1)
    assert restarted(hw) == {300_000: 3}


def test_a_store_that_stops_forgets_no_more_than_the_pops_of_its_last_100_ms(
    hw: PrivateStore, queue: Queue
) -> None:
    queue.push_many([b"x"] * 10)
    hw.clock.advance(100_000)
    for _ in range(9):
        queue.pop(1)
        hw.clock.advance(20)
    queue.pop(1)
    assert waits(queue) == {300_000: 10}
    # The store's clock moves on by itself as well: five steps of 20 ms or fewer.
    assert 5 <= restarted(hw)[300_000] <= 10


def test_any_later_call_on_a_queue_saves_what_was_counted(hw: PrivateStore, queue: Queue) -> None:
    queue.push_many([b"x"] * 3)
    hw.clock.advance(100_000)
    taken = [*queue.pop(2, ack_ms=HOUR_MS), *queue.pop(1, ack_ms=HOUR_MS)]
    hw.clock.advance(100)
    queue.ack(*taken)
    assert restarted(hw) == {300_000: 3}


def test_what_a_blocked_consumer_is_given_has_not_waited(
    hw: PrivateStore, queue: Queue, pool: ThreadPoolExecutor
) -> None:
    popped = pool.submit(queue.pop, 1, block_ms=60_000, ack_ms=HOUR_MS)
    until(lambda: blocked(hw) == 1)
    queue.push(b"x")
    assert len(popped.result(60)) == 1
    assert sum(waits(queue).values()) == 1
    assert max(bound or HOUR_MS for bound in waits(queue)) < HOUR_MS


def test_the_age_of_the_oldest_message_is_known_in_every_state(
    hw: PrivateStore, queue: Queue
) -> None:
    def ages() -> list[int | None]:
        stats = queue.stats()
        found = (
            stats.oldest_ms,
            stats.oldest_delayed_ms,
            stats.oldest_unacked_ms,
            stats.oldest_dead_ms,
        )
        return [age and round(age, -4) for age in found]

    assert ages() == [None] * 4
    queue.push(b"delayed", delay_ms=10 * HOUR_MS)
    hw.clock.advance(100_000)
    queue.push(b"delayed later, due sooner", delay_ms=9 * HOUR_MS)
    queue.push_many([b"dead", b"held"])
    (dead,) = queue.pop(ack_ms=HOUR_MS)
    (held,) = queue.pop(ack_ms=HOUR_MS)
    queue.bury(dead)
    hw.clock.advance(100_000)
    assert queue.extend(held, ack_ms=HOUR_MS) == 1
    queue.push(b"ready")
    hw.clock.advance(40_000)
    assert ages() == [40_000, 240_000, 140_000, 140_000]
    assert queue.ack(held) == 1
    assert ages()[2] is None


@pytest.mark.parametrize(
    "settings", [{"max_attempts": 1}, {"backoff": "fixed", "backoff_ms": HOUR_MS}]
)
def test_what_lapsed_has_its_age_before_anybody_pops(
    hw: PrivateStore, queue: Queue, settings: dict[str, Any]
) -> None:
    queue.configure(**settings)
    queue.push(b"lapses")
    assert queue.pop(ack_ms=50_000)
    hw.clock.advance(60_000)
    stats = queue.stats()
    if "max_attempts" in settings:
        assert (stats.dead, stats.oldest_unacked_ms, stats.oldest_delayed_ms) == (1, None, None)
        assert round(stats.oldest_dead_ms or 0, -4) == 10_000, "since its deadline"
    else:
        assert (stats.delayed, stats.oldest_unacked_ms, stats.oldest_dead_ms) == (1, None, None)
        assert round(stats.oldest_delayed_ms or 0, -4) == 60_000, "since it was delivered"


def test_the_metrics_have_the_age_of_every_state(hw: PrivateStore, queue: Queue) -> None:
    queue.push_many([b"x"] * 2)
    queue.push(b"x", delay_ms=HOUR_MS)
    (dead, _held) = queue.pop(2, ack_ms=HOUR_MS)
    queue.bury(dead)
    hw.clock.advance(100_000)
    page = Page()
    add_queue(page, "s", queue.stats())
    lines = re.findall(r'queue_oldest_seconds{.*state="(\w+)"} (\S+)', page.text())
    assert {state: round(float(age), -1) for state, age in lines} == {
        "ready": 0,
        "delayed": 100,
        "unacked": 100,
        "dead": 100,
    }


def test_a_queue_that_is_deleted_starts_again(queue: Queue) -> None:
    queue.push(b"x")
    queue.pop()
    queue.delete()
    assert waits(queue) == {}


def test_the_histogram_of_the_metrics_is_that_of_the_store(hw: PrivateStore, queue: Queue) -> None:
    queue.push_many([b"x"] * 5)
    hw.clock.advance(40_000)
    queue.pop(5)
    page = Page()
    add_queue(page, "s", queue.stats())
    lines = re.findall(r"^headwater_queue_wait_seconds(\S+) (\S+)$", page.text(), re.MULTILINE)
    found = {name.replace('store="s",queue="jobs"', ""): float(value) for name, value in lines}
    assert found['_bucket{,le="30.0"}'] == 0
    assert found['_bucket{,le="60.0"}'] == found['_bucket{,le="+Inf"}'] == found["_count{}"] == 5
    assert found["_sum{}"] >= 200
    small = Page(most=10)
    add_queue(small, "s", queue.stats())
    assert "wait_seconds" not in small.text()
    assert small.dropped >= len(WAIT_BOUNDS_MS) + 3


def test_the_bounds_of_the_server_are_those_of_the_client() -> None:
    folder = Path(headwater.__file__).parent / "queue" / "lua" / "shared"
    bounds = re.search(r"BOUNDS = \{ ([\d, ]+) \}", (folder / "11-wait-times.lua").read_text())
    assert bounds is not None
    assert tuple(map(int, bounds[1].split(", "))) == WAIT_BOUNDS_MS
