"""A queue: each message to one consumer, in order, by priority, delay and deadline; once by key."""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Callable
from typing import TypeAlias

import pytest

import headwater
from headwater import (
    Delivery,
    Headwater,
    InvalidInput,
    Queue,
    ReusedSequence,
    StaleSequence,
)
from headwater.kernel.failures import Cause
from headwater.queue.keys import MAX_VALUE_BYTES
from tests.support.groups import FAR
from tests.support.queue_books import LONG_MS, SHORT_MS, values
from tests.support.servers import until
from tests.support.watch import let_pass, server_ms

Connect: TypeAlias = Callable[[str], Headwater]


# ── In and out ───────────────────────────────────────────────────────────────────────────────


def test_messages_come_in_the_order_in_which_they_were_pushed(queue: Queue) -> None:
    first = queue.push(b"0")
    ids = [first, *queue.push_many([b"1", b"2"]), queue.push("3")]
    assert len(set(ids)) == 4
    assert sorted(ids) == ids
    taken = queue.pop(3)
    assert values(taken) == [b"0", b"1", b"2"]
    assert [d.id for d in taken] == ids[:3]
    assert [d.attempt for d in taken] == [1, 1, 1]
    assert values(queue.pop(3)) == [b"3"]
    assert queue.pop() == []


def test_an_empty_queue_and_a_count_of_nothing_give_nothing(queue: Queue) -> None:
    assert queue.pop() == []
    assert queue.push_many([]) == []
    assert not queue.stats().exists
    queue.push(b"v")
    assert queue.pop(0) == []
    assert queue.stats().ready == 1


def test_values_are_any_bytes_of_any_size(queue: Queue) -> None:
    some = [b"", b"\0\xff\r\n", bytes(range(256)), b"m" * 17, b"t1", secrets.token_bytes(300_000)]
    queue.push_many(some)
    queue.push_many(some, delay_ms=1)
    until(lambda: queue.stats().delayed == 0)
    for ack_ms in (LONG_MS, None):
        assert values(queue.pop(len(some), ack_ms=ack_ms)) == some


@pytest.mark.parametrize("ack_ms", [None, LONG_MS])
@pytest.mark.parametrize("count", [5000, 100_000])
def test_a_pop_of_any_size_takes_all_there_is(
    connect: Connect, name: str, count: int, ack_ms: int | None
) -> None:
    hw = connect("plain-sync")
    queue = hw.queue(name)
    some = [b"%d" % i for i in range(20_000)]
    for at in range(0, len(some), 5000):
        queue.push_many(some[at : at + 5000])
    taken = queue.pop(count, ack_ms=ack_ms)
    assert values(taken) == some[:count]
    if ack_ms:
        assert queue.stats().unacked == len(taken)
        assert queue.ack(*taken) == len(taken)
    assert queue.stats().unacked == 0
    queue.delete()


def test_large_values_are_taken_as_many_as_asked_for(queue: Queue) -> None:
    some = [secrets.token_bytes(1_500_000) for _ in range(4)]
    queue.push_many(some)
    taken = queue.pop(4, ack_ms=LONG_MS)
    assert values(taken) == some
    assert queue.ack(*taken) == 4


def test_higher_priorities_come_first(queue: Queue) -> None:
    for priority in (0, 5, -5, 100, 5):
        queue.push(b"%d" % priority, priority=priority)
    assert queue.stats().priorities == (100, 5, 0, -5)
    assert values(queue.pop(10)) == [b"100", b"5", b"5", b"0", b"-5"]
    assert queue.pop() == []
    assert queue.stats().priorities == ()


# ── Time ─────────────────────────────────────────────────────────────────────────────────────


def test_a_delayed_message_takes_its_place_when_it_comes_due(
    queue: Queue, client: Headwater
) -> None:
    queue.push(b"early")
    queue.push_many([b"late-1", b"late-2"], delay_ms=30)
    queue.push(b"never", delay_ms=LONG_MS)
    let_pass(client, 40)
    queue.push(b"new")
    assert (queue.stats().ready, queue.stats().delayed) == (4, 1)
    expected = [b"early", b"late-1", b"late-2", b"new"]
    assert [item.value for item in queue.peek()] == expected
    assert values(queue.pop(10)) == expected


def test_a_message_that_outlived_its_time_is_not_delivered(queue: Queue, client: Headwater) -> None:
    queue.push_many([b"dead"] * 3, ttl_ms=5)
    queue.push(b"lives", ttl_ms=LONG_MS)
    queue.push(b"late", ttl_ms=5, delay_ms=10)
    let_pass(client, 20)
    assert values(queue.pop(10)) == [b"lives"]
    assert queue.stats().expired == 4


def test_many_that_outlived_their_time_hide_none_behind_them(
    queue: Queue, client: Headwater
) -> None:
    for _ in range(2):
        queue.push_many([b"dead"] * 5000, ttl_ms=1)
    queue.push(b"lives")
    let_pass(client, 2)
    assert values(queue.pop()) == [b"lives"]
    assert queue.pop() == []
    assert queue.stats().expired == 10_000


def test_what_is_not_acknowledged_in_time_comes_again_before_new_ones(
    queue: Queue, client: Headwater
) -> None:
    queue.push_many([b"0", b"1", b"2"])
    first = queue.pop(2, ack_ms=10)
    let_pass(client, 12)
    assert (queue.stats().ready, queue.stats().unacked) == (3, 0)
    again = queue.pop(10, ack_ms=LONG_MS)
    assert [(d.value, d.attempt) for d in again] == [(b"0", 2), (b"1", 2), (b"2", 1)]
    assert [d.id for d in again[:2]] == [d.id for d in first]
    assert queue.ack(*first) == 0, "a late ack has no say"
    assert queue.stats().unacked == 3
    assert queue.ack(*again) == 3


def test_a_late_ack_is_refused_even_when_nobody_has_the_message_yet(
    queue: Queue, client: Headwater
) -> None:
    queue.push(b"v")
    late = queue.pop(ack_ms=5)
    let_pass(client, 6)
    assert (queue.ack(*late), queue.nack(*late), queue.extend(*late, ack_ms=9)) == (0, 0, 0)
    assert [d.attempt for d in queue.pop()] == [2]


def test_a_lapsed_batch_is_taken_bit_by_bit(queue: Queue, client: Headwater) -> None:
    some = [b"%d" % i for i in range(150)]
    queue.push_many(some)
    queue.pop(150, ack_ms=5)
    let_pass(client, 6)
    found = []
    while taken := queue.pop(7, ack_ms=LONG_MS):
        assert {d.attempt for d in taken} == {2}
        found += values(taken)
    assert found == some


# ── Once ─────────────────────────────────────────────────────────────────────────────────────


def test_a_dedupe_key_adds_once_within_its_window(queue: Queue, client: Headwater) -> None:
    first = queue.push(b"1", dedupe="k", dedupe_ms=SHORT_MS)
    assert queue.push(b"2", dedupe="k", dedupe_ms=SHORT_MS) == first
    assert values(queue.pop(9)) == [b"1"]
    assert queue.push(b"3", dedupe="k") == first, "it counts from the first push, done or not"
    let_pass(client, SHORT_MS)
    assert queue.push(b"4", dedupe="k") != first
    assert values(queue.pop(9)) == [b"4"]


def test_each_message_of_a_batch_may_have_a_dedupe_key(queue: Queue) -> None:
    first = queue.push_many([b"1", b"2", b"1"], dedupe=["a", "b", "a"])
    assert first[0] == first[2] != first[1]
    again = queue.push_many([b"1", b"2", b"3"], dedupe=["a", "b", "c"])
    assert again[:2] == first[:2]
    assert values(queue.pop(9)) == [b"1", b"2", b"3"]


def test_one_push_may_be_repeated_as_many_may(queue: Queue) -> None:
    first = queue.push(b"1", producer="p", sequence=1)
    assert queue.push(b"1", producer="p", sequence=1) == first
    assert queue.push_many([b"1"], producer="p", sequence=1) == [first]
    assert queue.stats().ready == 1


def test_a_repeat_of_producer_and_sequence_adds_nothing(queue: Queue) -> None:
    first = queue.push_many([b"1", b"2"], producer="p", sequence=1)
    assert queue.push_many([b"1", b"2"], producer="p", sequence=1) == first
    for other in ([b"1"], [b"12"], [b"1", b"3"]):
        with pytest.raises(ReusedSequence):
            queue.push_many(other, producer="p", sequence=1)
    queue.push_many([b"3"], producer="p", sequence=2)
    assert queue.push_many([b"1", b"2"], producer="p", sequence=1) == first
    assert values(queue.pop(9)) == [b"1", b"2", b"3"]
    assert queue.purge() == 0
    assert queue.push_many([b"1", b"2"], producer="p", sequence=1) == first, "also after a purge"
    for sequence in range(3, 140):
        queue.push_many([b"x"], producer="p", sequence=sequence)
    with pytest.raises(StaleSequence):
        queue.push_many([b"1"], producer="p", sequence=1)


# ── Looking, pausing, ending ─────────────────────────────────────────────────────────────────


def test_a_paused_queue_delivers_nothing(queue: Queue) -> None:
    queue.push_many([b"a", b"b"])
    (taken,) = queue.pop(ack_ms=LONG_MS)
    assert queue.pause()
    assert not queue.pause()
    queue.push(b"c")
    assert queue.pop(9) == []
    assert queue.stats().paused
    assert queue.ack(taken) == 1
    assert queue.resume()
    assert values(queue.pop(9)) == [b"b", b"c"]


def test_stats_tell_totals_rates_and_age(queue: Queue, client: Headwater) -> None:
    assert queue.stats().oldest_ms is None
    queue.push_many([b"v"] * 10)
    let_pass(client, 20)
    facts = queue.stats()
    assert facts.oldest_ms is not None
    assert 20 <= facts.oldest_ms < 60_000
    queue.ack(*queue.pop(4, ack_ms=LONG_MS))
    queue.pop(1)
    facts = queue.stats()
    assert (facts.pushed, facts.popped, facts.acked) == (10, 5, 4)
    assert facts.popped_per_s > facts.acked_per_s > 0


def test_a_purge_forgets_all_messages_and_keeps_the_settings(queue: Queue) -> None:
    queue.configure(max_attempts=1)
    queue.push(b"k", dedupe="k")
    queue.push_many([b"a", b"b", b"c"], priority=2)
    queue.push(b"late", delay_ms=LONG_MS)
    taken = queue.pop(2, ack_ms=LONG_MS)
    queue.nack(taken[0])
    assert queue.purge() == 5
    assert (list(queue.scan()), queue.pop(9), queue.ack(taken[1])) == ([], [], 0)
    assert queue.stats().settings.max_attempts == 1
    assert queue.push(b"k2", dedupe="k")
    assert values(queue.pop(9)) == [b"k2"]


def test_a_deleted_or_purged_queue_takes_its_dedupe_keys_along(
    connect: Callable[[str], Headwater], name: str
) -> None:
    hw = connect("plain-sync")
    queue = hw.queue(name)
    keys = [f"k{i}" for i in range(900)]
    for end, left in ((queue.purge, {b"hw:q:{%s}" % name.encode()}), (queue.delete, set())):
        first = queue.push_many(keys, dedupe=keys)
        assert end()
        assert set(hw.store.command("KEYS", f"*{{{name}}}*")[0]) == left
        assert queue.push_many(keys, dedupe=keys) != first, "they count no more"
        queue.delete()


def test_the_index_of_dedupe_keys_goes_with_the_last_of_them(
    connect: Callable[[str], Headwater], name: str
) -> None:
    hw = connect("plain-sync")
    queue = hw.queue(name)
    queue.push_many([b"a", b"b"], dedupe=["a", "b"], dedupe_ms=30)
    queue.push(b"c", dedupe="c", dedupe_ms=10)
    assert len(queue.pop(9)) == 3
    until(lambda: hw.store.command("KEYS", f"*{{{name}}}:*") == [[]])


def test_queues_are_listed_until_they_are_deleted(client: Headwater, queue: Queue) -> None:
    assert queue.name not in client.queues()
    first = queue.push(b"v", dedupe="k")
    assert queue.name in client.queues()
    assert queue.delete()
    assert not queue.delete()
    assert queue.name not in client.queues()
    assert queue.push(b"v", dedupe="k") > first
    assert queue.stats().ready == 1
    assert queue.name in client.queues()
    assert queue.delete()


def test_housekeeping_notes_deadlines_when_nobody_pops(client: Headwater, queue: Queue) -> None:
    queue.configure(max_attempts=2)
    queue.push_many([b"v"] * 300)
    queue.push_many([b"dead"] * 300, ttl_ms=1, priority=9)
    queue.push_many([b"x"] * 10, producer="p", sequence=1)
    let_pass(client, 2)
    taken = queue.pop(100, ack_ms=1)
    let_pass(client, 2)
    (kept,) = client.keep_queues(queue.name)
    assert (kept.returned, kept.buried) == (len(taken), 0)
    queue.pop(100, ack_ms=1)
    let_pass(client, 2)
    client.keep()
    (kept,) = client.keep_queues(queue.name)
    assert not kept.changed
    assert queue.stats().dead == len(taken)


# ── Refusals ─────────────────────────────────────────────────────────────────────────────────


def test_bad_input_is_refused_before_anything_is_sent(client: Headwater, queue: Queue) -> None:
    for call in (
        lambda: queue.push(1),  # type: ignore[arg-type]
        lambda: queue.push(None),  # type: ignore[arg-type]
        lambda: queue.push(b"x" * (MAX_VALUE_BYTES + 1)),
        lambda: queue.push(b"x", delay_ms=-1),
        lambda: queue.push(b"x", priority=101),
        lambda: queue.push(b"x", priority=1.5),  # type: ignore[arg-type]
        lambda: queue.push(b"x", ttl_ms=0),
        lambda: queue.push(b"x", dedupe=""),
        lambda: queue.push(b"x", dedupe="k", dedupe_ms=0),
        lambda: queue.push_many(b"xyz"),  # type: ignore[arg-type]
        lambda: queue.push_many([b"x"], dedupe=["a", "b"]),
        lambda: queue.push_many([b"x"], producer="p"),
        lambda: queue.push_many([b"x"], dedupe=["a"], producer="p", sequence=1),
        lambda: queue.push_many([b"x"] * 5001),
        lambda: queue.push_many([b"x"] * 1001, dedupe=["k"] * 1001),
        lambda: queue.pop(-1),
        lambda: queue.pop(100_001),
        lambda: queue.pop(ack_ms=0),
        lambda: queue.pop(block_ms=-1),
        lambda: queue.pop(True),
        lambda: queue.configure(backoff="never"),  # type: ignore[arg-type]
        lambda: queue.configure(max_attempts=-1),
        lambda: queue.redrive([Delivery("", b"", 0, "")]),  # type: ignore[list-item]
        lambda: client.queue("a b"),
    ):
        with pytest.raises(InvalidInput):
            call()
    assert not queue.stats().exists


# ── What a consumer does with its deliveries, and what becomes of messages that fail ─────────────


FAR_MS = 1_000_000
BUNDLE_MESSAGES = 64


# ── Ack, nack, release, extend ───────────────────────────────────────────────────────────────


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


# ── A delayed message that is promoted is delivered now; nothing else changes ────────────────────


@pytest.fixture
def delayed_queue(client: Headwater, name: str) -> Queue:
    """A queue with three delayed messages, and one that rests after a failed attempt."""
    found = client.queue(name)
    found.push(b"failed")
    found.nack(*found.pop(1, ack_ms=FAR), delay_ms=FAR)
    found.push_many([b"a", b"b", b"c"], delay_ms=FAR)
    return found


def test_promoted_messages_are_delivered_and_the_others_wait(delayed_queue: Queue) -> None:
    waiting = {item.value: item for item in delayed_queue.peek(9, state="delayed")}
    assert delayed_queue.promote([waiting[b"b"], waiting[b"failed"].id]) == 2
    assert delayed_queue.promote([waiting[b"b"].id]) == 0, "it is ready by now"
    found = delayed_queue.pop(9, ack_ms=FAR)
    assert sorted((one.value, one.attempt) for one in found) == [(b"b", 1), (b"failed", 2)]
    assert (delayed_queue.stats().delayed, delayed_queue.stats().unacked) == (2, 2)
    assert delayed_queue.promote([waiting[b"a"].place, waiting[b"c"].place]) == 2
    assert delayed_queue.stats().ready == 2


def test_what_a_consumer_holds_is_released_by_its_place(delayed_queue: Queue) -> None:
    delayed_queue.promote(delayed_queue.peek(1, state="delayed"))
    (held,) = delayed_queue.pop(1, ack_ms=FAR)
    (seen,) = delayed_queue.peek(1, state="unacked")
    assert delayed_queue.release(seen.place) == 1
    assert delayed_queue.ack(held) == 0
    assert delayed_queue.stats().ready == 1


def test_what_names_no_message_is_refused(delayed_queue: Queue) -> None:
    for wrong in ("17", [17], ["a"]):
        with pytest.raises(InvalidInput):
            delayed_queue.promote(wrong)  # type: ignore[arg-type]
    assert delayed_queue.promote([]) == delayed_queue.promote(["17"]) == 0


# ── Looking at a queue without taking anything: peek and scan, in every state ────────────────────

# ── Peek ─────────────────────────────────────────────────────────────────────────────────────


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
