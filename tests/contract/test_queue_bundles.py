"""Messages that lie together in a bundle: what is true of one is true of each of them."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from typing import TypeAlias

import pytest

from headwater import Headwater, InvalidInput, Queue
from headwater.queue import moving
from headwater.queue.handles import QueueHandle
from headwater.queue.inspecting import Spot, page
from headwater.queue.replies import open_bundle
from tests.support.queue_books import LONG_MS, ask_for, ready_bundles, values
from tests.support.watch import let_pass

Connect: TypeAlias = Callable[[str], Headwater]
LENGTH = 20


@pytest.fixture
def queue(client: Headwater, name: str) -> Queue:
    """A queue whose consumers take 20 messages at a time."""
    queue = client.queue(name)
    ask_for(queue, LENGTH)
    return queue


@pytest.fixture
def hw(connect: Connect) -> Headwater:
    return connect("plain-sync")


@pytest.fixture
def plain(hw: Headwater, name: str) -> Queue:
    """Such a queue on a server whose keys are looked at."""
    queue = hw.queue(name)
    ask_for(queue, LENGTH)
    return queue


def some(count: int = LENGTH) -> list[bytes]:
    return [secrets.token_bytes(i % 7 * 11) for i in range(count)]


# ── Where they part ──────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("ack_ms", [None, LONG_MS])
def test_a_bundle_can_be_divided_at_every_place(
    plain: Queue, hw: Headwater, ack_ms: int | None
) -> None:
    for place in range(1, LENGTH):
        ask_for(plain, LENGTH)
        pushed = some()
        ids = plain.push_many(pushed)
        assert len(ready_bundles(hw, plain)) == 1
        first = plain.pop(place, ack_ms=ack_ms)
        assert plain.stats().ready == LENGTH - place
        assert [item.value for item in plain.peek(LENGTH)] == pushed[place:]
        second = plain.pop(LENGTH, ack_ms=ack_ms)
        assert values(first + second) == pushed
        assert [d.id for d in first + second] == ids
        if ack_ms:
            assert plain.ack(*second, *first) == LENGTH
        assert (plain.stats().ready, plain.stats().unacked) == (0, 0)


def test_a_bundle_is_taken_one_by_one(queue: Queue) -> None:
    pushed = some(3 * LENGTH + 5)
    ids = queue.push_many(pushed)
    taken = [queue.pop(ack_ms=LONG_MS)[0] for _ in pushed]
    assert (values(taken), [d.id for d in taken]) == (pushed, ids)
    assert queue.pop() == []
    assert queue.ack(*taken) == len(pushed)


def test_bundles_end_where_a_pop_does_whatever_was_pushed_together(
    plain: Queue, hw: Headwater
) -> None:
    pushed = [some(33) for _ in range(7)]
    for part in pushed:
        plain.push_many(part)
    whole = [message.value for text in ready_bundles(hw, plain) for message in open_bundle(text)]
    assert whole == [value for part in pushed for value in part]
    for _ in range(5):
        before = len(ready_bundles(hw, plain))
        assert len(plain.pop(LENGTH)) == LENGTH
        assert 1 <= before - len(ready_bundles(hw, plain)) <= LENGTH, (
            "no more than the ends of two bundles"
        )


def test_bundles_and_lone_messages_come_in_the_order_in_which_they_were_pushed(
    queue: Queue,
) -> None:
    pushed: list[bytes] = []
    for size in (1, 20, 1, 1, 47, 9, 20, 3, 64):
        part = some(size)
        queue.push_many(part)
        pushed += part
    assert queue.stats().ready == len(pushed)
    assert [item.value for item in queue.scan("ready")] == pushed
    found: list[bytes] = []
    for count in (1, 20, 2, 50, 13, 100):
        taken = queue.pop(count, ack_ms=LONG_MS)
        assert queue.ack(*taken) == len(taken)
        found += values(taken)
    assert found == pushed


def test_what_was_taken_together_comes_again_in_its_order(queue: Queue) -> None:
    pushed: list[bytes] = []
    for size in (2, 20, 3, 20, 1):
        part = [b"%d" % i for i in range(len(pushed), len(pushed) + size)]
        queue.push_many(part)
        pushed += part
    for counts in ((46,), (7, 39), (30, 16)):
        taken = [d for count in counts for d in queue.pop(count, ack_ms=LONG_MS)]
        assert values(taken) == pushed
        held = list(queue.scan("unacked"))
        assert [(item.id, item.value) for item in held] == [(d.id, d.value) for d in taken]
        assert queue.release(*taken) == len(taken)


def test_large_values_go_with_small_ones(queue: Queue) -> None:
    pushed = [secrets.token_bytes(size) for size in (0, 9000, 10, 40_000, 3, 16_384, 700) * 12]
    queue.push_many(pushed)
    queue.push_many(pushed, delay_ms=1)
    assert values(queue.pop(50, ack_ms=LONG_MS)) == pushed[:50]
    taken = queue.pop(1000, ack_ms=LONG_MS)
    while len(taken) < 2 * len(pushed) - 50:
        taken += queue.pop(1000, ack_ms=LONG_MS)
    assert values(taken) == pushed[50:] + pushed
    assert queue.ack(*taken) == len(taken)


# ── Time ─────────────────────────────────────────────────────────────────────────────────────


def test_a_pop_takes_no_more_once_it_has_the_bytes_that_were_asked_for(queue: Queue) -> None:
    for _ in range(9):
        queue.push(b"x" * (3 << 19))
    taken = len(queue.pop(9, max_bytes=1)), len(queue.pop(9, max_bytes=1, block_ms=1000))
    assert all(taken)
    assert queue.stats().ready == 9 - sum(taken) > 0, "what was not returned is still there"
    assert len(queue.pop(9)) == 9 - sum(taken)
    with pytest.raises(InvalidInput, match="max_bytes"):
        queue.pop(9, max_bytes=0)


def test_a_bundle_that_outlived_its_time_is_not_delivered(queue: Queue, client: Headwater) -> None:
    queue.push_many(some(), ttl_ms=300)
    queue.push_many([b"lives"] * LENGTH, ttl_ms=LONG_MS)
    early = queue.pop(5, ack_ms=1)
    let_pass(client, 300)
    assert queue.stats().ready == 2 * LENGTH
    assert values(queue.pop(2 * LENGTH)) == [b"lives"] * LENGTH
    assert queue.stats().expired == LENGTH
    assert len(early) == 5
    assert queue.stats().ready == 0


def test_a_housekeeper_drops_bundles_that_outlived_their_time(
    queue: Queue, client: Headwater
) -> None:
    queue.push_many(some(), ttl_ms=1)
    queue.push_many(some(), ttl_ms=LONG_MS)
    let_pass(client, 2)
    (kept,) = client.keep_queues(queue.name)
    assert kept.outlived == LENGTH
    facts = queue.stats()
    assert (facts.ready, facts.expired) == (LENGTH, LENGTH)
    assert {item.expires_ms is None for item in queue.scan()} == {False}


def test_a_delayed_message_takes_its_place_even_inside_a_bundle(
    queue: Queue, client: Headwater, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Numbers are microseconds: a large push of another client reaches milliseconds ahead."""
    monkeypatch.setattr(moving, "MAX_PUSH_MESSAGES", 20_000)
    ids = queue.push_many([b"%d" % i for i in range(20_000)])
    queue.push(b"late", delay_ms=3)
    let_pass(client, 30)
    (due_ms,) = [item.due_ms for item in queue.scan() if item.value == b"late"]
    assert due_ms is not None
    taken = queue.pop(30_000)
    place = values(taken).index(b"late")
    assert [d.id for d in taken if d.value != b"late"] == ids
    before, after = taken[:place], taken[place + 1 :]
    assert all(int(d.id) <= due_ms * 1000 for d in before)
    assert all(int(d.id) > due_ms * 1000 for d in after)


# ── Acks and what comes of a part ────────────────────────────────────────────────────────────


def test_a_part_of_a_bundle_may_be_acked_returned_or_held_for_longer(
    queue: Queue, client: Headwater
) -> None:
    pushed = [b"%d" % i for i in range(LENGTH)]
    queue.push_many(pushed, ttl_ms=LONG_MS)
    taken = queue.pop(LENGTH, ack_ms=1500)
    assert queue.ack(*taken[:3]) == 3
    assert queue.extend(*taken[3:6], ack_ms=LONG_MS) == 3
    assert queue.nack(taken[6]) == 1
    assert queue.release(taken[7]) == 1
    assert {item.expires_ms is None for item in queue.scan()} == {False}
    let_pass(client, 1500)
    again = queue.pop(LENGTH, ack_ms=LONG_MS)
    assert sorted((int(d.value), d.attempt) for d in again) == [
        (i, 1 if i == 7 else 2) for i in range(6, LENGTH)
    ]
    assert queue.ack(*again, *taken) == len(again) + 3
    assert queue.stats().unacked == 0


def test_bundles_die_and_are_brought_back(queue: Queue) -> None:
    queue.configure(max_attempts=1)
    pushed = [b"%d" % i for i in range(3 * LENGTH)]
    queue.push_many(pushed)
    queue.nack(*queue.pop(3 * LENGTH, ack_ms=LONG_MS))
    assert [letter.value for letter in queue.dead(100)] == pushed
    assert queue.redrive(count=LENGTH + 3) == LENGTH + 3
    assert values(queue.pop(100)) == pushed[: LENGTH + 3]
    assert queue.purge() == 2 * LENGTH - 3


def test_deduped_messages_are_together_and_a_purge_counts_each(queue: Queue) -> None:
    keys = [f"k{i}" for i in range(LENGTH)]
    first = queue.push_many(some(5), dedupe=keys[:5])
    ids = queue.push_many(some(), dedupe=keys)
    assert ids[:5] == first
    assert [item.id for item in queue.scan()] == ids
    assert queue.purge() == LENGTH
    assert queue.stats().ready == 0


# ── Looking ──────────────────────────────────────────────────────────────────────────────────


def test_a_page_may_begin_inside_a_bundle(plain: Queue, hw: Headwater) -> None:
    ids = plain.push_many(some(5 * LENGTH))
    handle = QueueHandle(plain.name, set(), "member")
    for place in (0, 1, 7, LENGTH - 1, LENGTH, 5 * LENGTH - 2):
        items, _ = hw.store.run(page(handle, [Spot("ready", 0, ids[place].encode())]))
        assert [item.id for item in items] == ids[place + 1 :]
