"""What is acknowledged is done; what is not is redelivered when it is due, or expires."""

from __future__ import annotations

import random

import pytest

from headwater import Headwater, Stream, UnknownGroup
from headwater.kernel.failures import Failure
from tests.support.entries import entries, offsets
from tests.support.groups import FAR, take, tries
from tests.support.watch import let_pass, server_ms

# ── Acknowledging ────────────────────────────────────────────────────────────────────────────


def test_an_ack_takes_offsets_and_ranges(stream: Stream) -> None:
    stream.write_many(entries(30))
    group = stream.group("g")
    take(group, 30)
    assert group.ack(1, 2, 5, (10, 20), (19, 22)) == 16
    info = group.info()
    assert (info.pending, info.ack_offset) == (14, 3)
    assert group.ack(3, 4) == 2
    assert group.info().ack_offset == 6
    assert group.ack((1, 30)) == 12
    info = group.info()
    assert (info.pending, info.ack_offset, info.next) == (0, 31, 31)


def test_an_ack_counts_only_what_was_pending(stream: Stream) -> None:
    stream.write_many(entries(10))
    group = stream.group("g")
    take(group, 4)
    before = group.info()
    assert group.ack(7) == 0
    assert group.ack((5, 9_999)) == 0
    assert group.ack(2**53 - 1) == 0
    assert group.info() == before
    assert group.ack(2, 2, (2, 3)) == 2
    assert group.ack(2, 3) == 0
    assert group.ack() == 0
    assert take(group, 10) == [5, 6, 7, 8, 9, 10]


def test_acks_in_any_order_leave_the_rest(stream: Stream) -> None:
    draw = random.Random(11)
    stream.write_many(entries(300))
    group = stream.group("g")
    for size in (100, 1, 150, 49):
        take(group, size)
    left = set(range(1, 301))
    while len(left) > 20:
        first = draw.randrange(1, 301)
        last = min(300, first + draw.choice([0, 0, 3, 20]))
        done = left & set(range(first, last + 1))
        assert group.ack((first, last)) == len(done)
        left -= done
        info = group.info()
        assert (info.pending, info.ack_offset) == (len(left), min(left))
    assert group.nack((1, 300)) == len(left)
    assert sorted(take(group, 1000)) == sorted(left)


@pytest.mark.parametrize(
    "use",
    [
        lambda group: group.ack(1),
        lambda group: group.nack(1),
        lambda group: group.extend(1, ack_ms=5),
        lambda group: group.seek(1),
        lambda group: group.info(),
        lambda group: group.dead(),
        lambda group: group.redrive(),
        lambda group: group.bury(),
    ],
    ids=["ack", "nack", "extend", "seek", "info", "dead", "redrive", "bury"],
)
def test_a_group_that_never_read_is_unknown(stream: Stream, use: object) -> None:
    stream.write("a", b"1")
    assert callable(use)
    with pytest.raises(UnknownGroup) as caught:
        use(stream.group("nobody"))
    assert (caught.value.stream, caught.value.group) == (stream.name, "nobody")


# ── Redelivery ───────────────────────────────────────────────────────────────────────────────


def test_what_is_not_acked_comes_again_to_any_member(client: Headwater, stream: Stream) -> None:
    stream.write_many(entries(5))
    one, two = stream.group("g", member="one"), stream.group("g", member="two")
    assert take(one, 3, ack_ms=1) == [1, 2, 3]
    assert one.ack(2) == 1
    let_pass(client, 1)
    assert tries(two.read(10, ack_ms=FAR)) == [(1, 2), (3, 2), (4, 1), (5, 1)]
    assert take(one, 10) == []


def test_nothing_comes_again_before_its_time(stream: Stream) -> None:
    stream.write_many(entries(5))
    group = stream.group("g")
    assert take(group, 5) == [1, 2, 3, 4, 5]
    assert take(group, 5) == []
    assert group.info().pending == 5


def test_a_far_deadline_holds_up_no_other(client: Headwater, stream: Stream) -> None:
    stream.write_many(entries(6))
    group = stream.group("g")
    assert take(group, 1) == [1]
    assert take(group, 2, ack_ms=FAR - 1) == [2, 3]
    assert take(group, 1, ack_ms=1) == [4]
    let_pass(client, 1)
    assert take(group, 1, ack_ms=FAR) == [4]
    assert group.nack(2, delay_ms=1) == 1
    let_pass(client, 1)
    assert take(group, 10) == [2, 5, 6]


def test_what_comes_due_soon_is_not_hidden_by_what_was_delivered_later(
    client: Headwater, stream: Stream
) -> None:
    stream.write_many(entries(3))
    group = stream.group("g")
    assert take(group, 1, ack_ms=1500) == [1]
    assert take(group, 1, ack_ms=FAR) == [2]
    let_pass(client, 1500)
    assert take(group, 1) == [1]
    assert take(group, 1) == [3]


def test_due_messages_are_found_whatever_the_order_of_deadlines(
    client: Headwater, stream: Stream
) -> None:
    draw = random.Random(5)
    stream.write_many(entries(500))
    group = stream.group("g")
    while take(group, draw.randrange(1, 10), ack_ms=FAR + draw.randrange(9999)):
        pass
    soon: set[int] = set()
    for offset in draw.sample(range(1, 501), 300):
        delay = draw.choice([0, 1, 2, 3, FAR - 1, FAR + 1])
        group.nack(offset, delay_ms=delay)
        if delay < 9:
            soon.add(offset)
    let_pass(client, 3)
    seen: list[int] = []
    while got := take(group, 7):
        seen += got
    assert sorted(seen) == sorted(soon)


def test_a_partly_acked_range_keeps_its_attempts(stream: Stream) -> None:
    stream.write_many(entries(10))
    group = stream.group("g")
    take(group, 10)
    group.ack((4, 6))
    group.nack((1, 10))
    assert tries(group.read(2, ack_ms=FAR)) == [(1, 2), (2, 2)]
    group.nack((1, 10))
    again = sorted(tries(group.read(100, ack_ms=FAR)))
    assert again == [(1, 3), (2, 3), (3, 2), (7, 2), (8, 2), (9, 2), (10, 2)]


def test_a_nack_returns_at_once_or_later(client: Headwater, stream: Stream) -> None:
    stream.write_many(entries(6))
    group = stream.group("g")
    take(group, 6)
    assert group.nack(2, (4, 5)) == 3
    assert tries(group.read(10, ack_ms=FAR)) == [(2, 2), (4, 2), (5, 2)]
    assert group.nack((1, 6), delay_ms=FAR) == 6
    assert take(group, 10) == []
    assert group.nack(6, delay_ms=1) == 1
    let_pass(client, 1)
    assert take(group, 10) == [6]
    assert group.info().pending == 6


def test_an_extension_puts_off_the_next_delivery(client: Headwater, stream: Stream) -> None:
    stream.write_many(entries(4))
    group = stream.group("g")
    take(group, 4, ack_ms=20)
    assert group.extend((1, 2), ack_ms=FAR) == 2
    let_pass(client, 20)
    assert take(group, 10) == [3, 4]
    assert group.extend(99, ack_ms=5) == 0
    assert group.ack((1, 4)) == 4


def test_an_unacked_message_is_given_up_after_expire_ms(client: Headwater, stream: Stream) -> None:
    stream.write_many(entries(5))
    group = stream.group("g")
    assert take(group, 1, expire_ms=FAR) == [1]
    assert take(group, 2, expire_ms=1) == [2, 3]
    let_pass(client, 1)
    assert take(group, 10) == [4, 5]
    info = group.info()
    assert (info.expired, info.pending, info.dead, info.ack_offset) == (2, 3, 0, 1)
    assert group.ack((1, 5)) == 3


def test_expiry_counts_from_the_first_delivery(client: Headwater, stream: Stream) -> None:
    stream.write_many(entries(1))
    group = stream.group("g")
    begun = server_ms(client)
    take(group, 1, ack_ms=1, expire_ms=300)
    attempts = 1
    while group.info().pending:
        let_pass(client, 3)
        again = group.read(1, ack_ms=1, expire_ms=FAR)
        attempts += len(again)
        group.nack(1, delay_ms=0)
    assert server_ms(client) - begun >= 300
    assert attempts > 1
    assert group.info().expired == 1


def test_an_acked_message_does_not_expire(client: Headwater, stream: Stream) -> None:
    stream.write_many(entries(3))
    group = stream.group("g")
    take(group, 3, ack_ms=1, expire_ms=50)
    assert group.ack((1, 3)) == 3
    let_pass(client, 50)
    assert take(group, 3) == []
    assert group.info().expired == 0


def test_the_end_of_a_batch_and_its_beginning_are_redelivered_once_each(
    hw: Headwater, stream: Stream
) -> None:
    stream.write_many(entries(9))
    group = stream.group("g")
    take(group, 9)
    group.ack((5, 8))
    group.nack(9)
    let_pass(hw, 1)
    group.nack((1, 4))
    assert sorted(take(group, 10)) == [1, 2, 3, 4, 9]
    assert take(group, 10) == []


def test_a_letter_whose_message_is_pending_again_returns_that_message_alone(
    client: Headwater, stream: Stream
) -> None:
    stream.write_many(entries(9))
    group = stream.group("g", dead_letters=True)
    for count, lives_ms in ((2, 1), (3, FAR), (1, 1)):
        group.read(count, ack_ms=FAR, expire_ms=lives_ms)
        let_pass(client, 1)
    group.bury()
    assert group.info().dead == 3
    group.seek("first")
    assert take(group, 8) == list(range(1, 9))
    assert group.redrive() == (3, 0)
    again = group.read(20, ack_ms=FAR)
    assert [(one.offset, one.attempt) for one in again] == [(1, 1), (2, 1), (6, 1), (9, 1)]
    assert group.info().pending == 9


def test_any_number_of_failures_is_reported_at_once(stream: Stream) -> None:
    stream.write_many(entries(400))
    group = stream.group("g", dead_letters=True)
    group.read(400, ack_ms=FAR)
    group.ack(*range(2, 401, 2))
    odd = range(1, 401, 2)
    assert group.fail(*(Failure(offset, "no", 0) for offset in odd)) == 200
    assert sorted(offsets(group.read(400, ack_ms=FAR))) == [*odd]
    assert group.bury(*odd) == 200
    info = group.info()
    assert (info.dead, info.pending) == (200, 0)
