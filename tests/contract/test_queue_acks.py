"""What a consumer does with its deliveries, and what becomes of messages that fail."""

from __future__ import annotations

from collections import Counter

import pytest

import headwater
from headwater import Headwater, InvalidInput, Queue
from headwater.kernel.failures import Cause
from tests.support.queues import LONG_MS, SHORT_MS, values
from tests.support.servers import until
from tests.support.watch import let_pass, server_ms

FAR_MS = 1_000_000
BUNDLE_MESSAGES = 64


@pytest.fixture
def queue(client: Headwater, name: str) -> Queue:
    """A queue that was never pushed to."""
    return client.queue(name)


# ── Ack, nack, release, extend ───────────────────────────────────────────────────────────────


def test_acks_are_exact_in_any_order_and_any_part(queue: Queue) -> None:
    queue.push_many([b"%d" % i for i in range(100)])
    taken = queue.pop(100, ack_ms=LONG_MS)
    assert queue.ack(taken[3], taken[70], taken[3]) == 2
    assert queue.ack(taken[3]) == 0
    assert queue.stats().unacked == 98
    assert queue.ack(*taken[::-1]) == 98
    assert queue.ack(*taken) == 0
    assert (queue.stats().acked, queue.stats().unacked) == (100, 0)


@pytest.mark.parametrize("deed", ["ack", "nack", "release", "extend"])
def test_a_delivery_that_is_named_twice_counts_once_and_not_for_its_neighbour(
    queue: Queue, client: Headwater, deed: str
) -> None:
    queue.push_many([b"a", b"b"])
    a, b = queue.pop(2, ack_ms=SHORT_MS)
    options = {"ack_ms": LONG_MS} if deed == "extend" else {}
    assert getattr(queue, deed)(a, a, **options) == 1
    if deed == "extend":
        let_pass(client, SHORT_MS)
        assert queue.ack(b) == 0, "its deadline is over"
        assert values(queue.pop(9)) == [b"b"]
        assert queue.ack(a, a) == 1
    else:
        assert values(queue.pop(9)) == ([] if deed == "ack" else [b"a"])
        assert queue.stats().unacked == 1


def test_what_is_nacked_comes_again_after_its_delay(queue: Queue, client: Headwater) -> None:
    queue.push_many([b"a", b"b", b"c"])
    a, b, c = queue.pop(3, ack_ms=LONG_MS)
    assert queue.nack(a) == 1
    assert queue.nack(b, delay_ms=SHORT_MS) == 1
    assert queue.ack(a, b) == 0, "they are not ours any more"
    assert [(d.value, d.attempt) for d in queue.pop(9)] == [(b"a", 2)]
    assert queue.stats().delayed == 1
    let_pass(client, SHORT_MS)
    assert [(d.value, d.attempt) for d in queue.pop(9)] == [(b"b", 2)]
    assert queue.ack(c) == 1


def test_what_is_released_comes_at_once_as_if_never_taken(queue: Queue) -> None:
    queue.configure(max_attempts=1, backoff="fixed", backoff_ms=LONG_MS)
    queue.push_many([b"a", b"b"])
    for _ in range(3):
        taken = queue.pop(2, ack_ms=LONG_MS)
        assert [(d.value, d.attempt) for d in taken] == [(b"a", 1), (b"b", 1)]
        assert queue.release(*taken) == 2
        assert queue.ack(*taken) == 0
    assert queue.release(queue.pop(ack_ms=LONG_MS)[0]) == 1
    assert queue.stats().ready == 2


@pytest.mark.parametrize("part", [slice(None), slice(1, 3)])
def test_what_is_extended_is_held_for_longer(queue: Queue, client: Headwater, part: slice) -> None:
    queue.push_many([b"0", b"1", b"2", b"3"])
    taken = queue.pop(4, ack_ms=SHORT_MS)
    extended = taken[part]
    assert queue.extend(*extended, ack_ms=LONG_MS) == len(extended)
    let_pass(client, SHORT_MS)
    lapsed = [d for d in taken if d not in extended]
    assert queue.stats().unacked == len(extended)
    assert queue.ack(*lapsed) == 0
    assert values(queue.pop(9)) == values(lapsed)
    assert queue.ack(*extended) == len(extended)
    assert queue.stats().unacked == 0


def test_a_shortened_deadline_counts(queue: Queue, client: Headwater) -> None:
    queue.push_many([b"0", b"1"])
    taken = queue.pop(2, ack_ms=LONG_MS)
    assert queue.extend(taken[0], ack_ms=1) == 1
    let_pass(client, 2)
    assert values(queue.pop(9, ack_ms=LONG_MS)) == [b"0"]
    assert queue.extend(taken[1], ack_ms=LONG_MS) == 1
    assert queue.ack(*taken) == 1


def test_only_a_delivery_that_is_to_be_acknowledged_can_be(queue: Queue) -> None:
    queue.push(b"v")
    (taken,) = queue.pop()
    with pytest.raises(InvalidInput, match="pop with ack_ms="):
        queue.ack(taken)
    with pytest.raises(InvalidInput, match="pop with ack_ms="):
        queue.ack([taken])


# ── Attempts and dead letters ────────────────────────────────────────────────────────────────


def test_back_off_grows_with_the_attempts(queue: Queue, client: Headwater) -> None:
    queue.configure(backoff="exponential", backoff_ms=20, longest_backoff_ms=60)
    queue.push(b"v")
    for attempt, longest in enumerate((20, 40, 60, 60), 1):
        (taken,) = until(lambda: queue.pop(ack_ms=LONG_MS))
        assert taken.attempt == attempt
        begun = server_ms(client)
        queue.nack(taken)
        (item,) = queue.scan()
        assert item.due_ms is not None
        assert begun + longest / 2 <= item.due_ms <= server_ms(client) + longest


@pytest.mark.parametrize("manner", ["nack", "fail", "lapse"])
def test_what_failed_together_comes_back_spread_over_half_of_the_rest(
    queue: Queue, client: Headwater, manner: str
) -> None:
    """Each after half of the rest to all of it; no tenth of that time has more than a fifth."""
    queue.configure(backoff="exponential", backoff_ms=FAR_MS, longest_backoff_ms=FAR_MS)
    count = 200 if manner == "fail" else 40 * BUNDLE_MESSAGES
    queue.push_many([b"v"] * count)
    ack_ms = 1 if manner == "lapse" else LONG_MS
    begun = server_ms(client)
    taken = queue.pop(count, ack_ms=ack_ms)
    assert len(taken) == count
    if manner == "nack":
        assert queue.nack(*taken) == count
    elif manner == "fail":
        assert queue.fail(*(headwater.Failure(one, ValueError(), 0) for one in taken)) == count
    else:
        let_pass(client, 2)
        assert queue.pop() == []
    ended = server_ms(client)
    due = [item.due_ms - begun for item in queue.scan() if item.due_ms is not None]
    assert len(due) == count
    assert min(due) >= FAR_MS / 2
    assert max(due) <= FAR_MS + ended - begun
    tenths = Counter(min((one - FAR_MS // 2) * 20 // FAR_MS, 9) for one in due)
    assert len(tenths) == 10
    assert max(tenths.values()) <= count / 5
    assert queue.stats().delayed == count


def test_a_fixed_back_off_is_the_same_for_all(queue: Queue, client: Headwater) -> None:
    queue.configure(backoff="fixed", backoff_ms=FAR_MS)
    queue.push_many([b"v"] * 300)
    begun = server_ms(client)
    queue.nack(*queue.pop(300, ack_ms=LONG_MS))
    ended = server_ms(client)
    due = [item.due_ms for item in queue.scan()]
    assert all(begun + FAR_MS <= (one or 0) <= ended + FAR_MS for one in due)


def test_a_fixed_back_off_also_follows_a_lapsed_deadline(queue: Queue, client: Headwater) -> None:
    assert queue.configure(backoff="fixed", backoff_ms=SHORT_MS).backoff_ms == SHORT_MS
    queue.push(b"v")
    queue.pop(ack_ms=5)
    let_pass(client, 6)
    for _ in range(2):
        facts = queue.stats()
        assert (facts.ready, facts.delayed, facts.unacked) == (0, 1, 0)
        assert [item.value for item in queue.peek(state="delayed")] == [b"v"]
        assert queue.pop() == []
    let_pass(client, SHORT_MS)
    assert [d.attempt for d in queue.pop()] == [2]


def test_after_the_last_attempt_a_message_is_a_dead_letter(queue: Queue, client: Headwater) -> None:
    assert queue.configure(max_attempts=2).max_attempts == 2
    queue.push_many([b"a", b"b", b"c"], priority=3)
    queue.nack(*queue.pop(3, ack_ms=LONG_MS))
    taken = queue.pop(3, ack_ms=SHORT_MS)
    queue.nack(taken[0])
    let_pass(client, SHORT_MS)
    assert queue.stats().dead == 3
    assert queue.pop(9) == []
    letters = queue.dead()
    assert [(x.value, x.attempt, x.priority) for x in letters] == [
        (b"a", 2, 3),
        (b"b", 2, 3),
        (b"c", 2, 3),
    ]
    assert queue.ack(*taken) == 0
    assert queue.discard([letters[1]]) == 1
    assert queue.discard([letters[1]]) == 0
    assert queue.redrive([letters[2]]) == 1
    assert [(d.value, d.attempt) for d in queue.pop(9)] == [(b"c", 1)]
    assert queue.redrive() == 1
    assert values(queue.pop(9)) == [b"a"]
    assert (queue.dead(), queue.redrive(), queue.discard()) == ([], 0, 0)


def test_dead_letters_go_in_any_number(queue: Queue) -> None:
    queue.configure(max_attempts=1)
    for at in (0, 3000):
        queue.push_many([b"%d" % i for i in range(at, at + 3000)])
    queue.nack(*queue.pop(6000, ack_ms=LONG_MS))
    assert len(queue.dead(10_000)) == 6000
    assert queue.redrive(count=5) == 5
    assert values(queue.pop(9)) == [b"%d" % i for i in range(5)]
    assert queue.discard(count=95) == 95
    assert queue.redrive() == 5900
    assert queue.stats().ready == 5900


def test_a_message_that_used_up_its_attempts_says_so(queue: Queue) -> None:
    queue.configure(max_attempts=1)
    queue.push_many([b"rejected", b"buried"])
    rejected, buried = queue.pop(2, ack_ms=LONG_MS)
    queue.nack(rejected)
    queue.bury(buried)
    causes = {letter.value: letter.cause for letter in queue.dead()}
    assert causes == {b"rejected": Cause("", "attempts used up"), b"buried": None}
