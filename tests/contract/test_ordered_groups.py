"""Groups that keep order: a message comes when those before it of its tag are done or buried."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from headwater import Group, Headwater, InvalidInput, Stream
from headwater.kernel.failures import Failure
from tests.support.entries import offsets
from tests.support.groups import FAR, take
from tests.support.waking import wait_for_members
from tests.support.watch import let_pass

pytestmark = pytest.mark.parametrize("client", ["plain-sync", "plain-async"], indirect=True)


def members_of(stream: Stream, count: int = 2) -> list[Group]:
    return [stream.group("g", member=f"m{i}", ordered=True) for i in range(count)]


def test_a_tag_waits_for_its_message_while_other_tags_continue(stream: Stream) -> None:
    stream.write_many([("x", b"1"), ("y", b"2"), ("x", b"3"), ("y", b"4"), ("z", b"5")])
    one, other = members_of(stream)
    assert take(one, 1) == [1]
    assert take(other, 2) == [2, 4], "3 is behind 1, which another member has"
    assert take(other, 10) == [5]
    assert take(other, 10) == []
    one.ack(1)
    assert take(other, 10) == [3]


def test_messages_of_one_tag_come_together_to_one_member_in_order(stream: Stream) -> None:
    stream.write_many([("x", b"%d" % n) for n in range(1, 6)])
    one, other = members_of(stream)
    assert take(one, 3) == [1, 2, 3]
    assert take(other, 10) == take(one, 10) == []
    one.ack(1, 2)
    assert take(other, 10) == []
    one.ack(3)
    assert take(other, 10) == [4, 5]


def test_messages_without_a_tag_wait_for_no_other(stream: Stream) -> None:
    stream.write_many([("", b"1"), ("", b"2"), ("", b"3")])
    one, other = members_of(stream)
    assert take(one, 1) == [1]
    assert take(other, 5) == [2, 3]


def test_a_message_that_is_retried_is_not_overtaken(client: Headwater, stream: Stream) -> None:
    stream.write_many([("x", b"1"), ("x", b"2"), ("y", b"3")])
    one, other = members_of(stream)
    assert take(one, 3) == [1, 2, 3]
    one.fail(Failure(1, ValueError("no"), FAR))
    one.release(2)
    assert take(other, 5) == [], "2 waits for 1, which waits for its retry"
    one.nack(1)
    assert take(other, 1) == [1]
    assert take(one, 5) == []
    other.ack(1)
    assert take(other, 5) == [2]
    other.ack(2)
    # A member dies: its deadlines pass.
    stream.write_many([("x", b"4"), ("x", b"5")])
    assert take(one, 5, ack_ms=1) == [4, 5]
    let_pass(client, 1)
    assert take(other, 1) == [4]
    assert take(one, 5) == [], "5 waits, though its deadline is over"
    other.ack(4)
    assert take(one, 5) == [5]


def test_a_buried_message_releases_its_tag_and_a_redriven_one_waits_for_what_is_in_flight(
    stream: Stream,
) -> None:
    stream.write_many([("x", b"1"), ("x", b"2"), ("x", b"3")])
    group = stream.group("g", dead_letters=True, ordered=True)
    assert take(group, 1) == [1]
    group.bury(1, error="never")
    assert take(group, 1) == [2]
    assert group.redrive().redriven == 1
    assert take(group, 5) == [], "2 is in flight"
    group.ack(2)
    assert take(group, 1) == [1]
    assert take(group, 1) == []
    group.ack(1)
    assert take(group, 5) == [3]


def test_an_acknowledgement_before_its_turn_lets_nobody_overtake(stream: Stream) -> None:
    stream.write_many([("x", b"%d" % n) for n in range(1, 6)])
    one, other = members_of(stream)
    assert take(one, 2) == [1, 2]
    assert take(other, 5) == []
    assert one.ack(2) == 1
    assert one.ack(4) == 1
    assert take(other, 5) == []
    stream.write("x", b"6")
    assert take(other, 5) == []
    one.ack(1)
    assert take(other, 5) == [3, 5, 6], "what was acknowledged does not come"


def test_nobody_moves_a_message_that_waits_for_its_turn(stream: Stream) -> None:
    stream.write_many([("x", b"1"), ("x", b"2"), ("x", b"3")])
    one, other = members_of(stream)
    assert take(one, 1) == [1]
    assert take(other, 5) == []
    assert (other.nack(2), other.extend(3, ack_ms=FAR), other.release((2, 3))) == (0, 0, 0)
    assert take(other, 5) == []
    assert one.extend(1, ack_ms=FAR) == 1


def test_a_seek_begins_the_order_again(stream: Stream) -> None:
    stream.write_many([("x", b"1"), ("x", b"2"), ("y", b"3")])
    one, other = members_of(stream)
    assert take(one, 1) == [1]
    assert take(other, 5) == [3]
    one.seek(1)
    assert take(other, 5) == [1, 2, 3]


def test_order_is_of_the_group_whoever_asked_for_it(stream: Stream) -> None:
    stream.write_many([("x", b"1"), ("x", b"2")])
    assert take(stream.group("g", ordered=True), 1) == [1]
    plain = stream.group("g")
    assert take(plain, 5) == []
    stream.write_many([("y", b"%d" % n) for n in range(700)])
    assert take(plain, 500) == list(range(3, 503))
    plain.ack(1)
    assert take(plain, 1) == [2]


def test_what_was_evicted_or_compacted_holds_nobody_up(stream: Stream) -> None:
    stream.write_many([("x", b"%d" % n) for n in range(1, 7)])
    one, other = members_of(stream)
    assert take(one, 1) == [1]
    assert take(other, 5) == []
    stream.evict(3)
    one.ack(1)
    assert take(other, 5) == [4, 5, 6]
    assert other.info().missed == 2
    other.nack((4, 6))
    stream.seal()
    stream.compact()
    assert take(one, 5) == [6]


def test_while_the_group_is_paused_nobody_reads_ahead(stream: Stream) -> None:
    stream.write_many([("x", b"1"), ("x", b"2"), ("y", b"3")])
    one, other = members_of(stream)
    assert take(one, 1) == [1]
    one.pause()
    assert take(other, 5) == take(one, 5) == []
    assert one.info().pending == 1
    one.resume()
    assert take(other, 5) == [3]


def test_a_blocked_member_is_woken_when_a_tag_is_free(
    stream: Stream, pool: ThreadPoolExecutor
) -> None:
    one, other = members_of(stream)
    stream.write("x", b"1")
    assert take(one, 1) == [1]
    waits = pool.submit(other.read, 5, block_ms=60_000, ack_ms=FAR)
    wait_for_members(one, 1)
    stream.write("x", b"2")
    stream.write("y", b"3")
    assert offsets(waits.result(60)) == [3]
    waits = pool.submit(other.read, 5, block_ms=60_000, ack_ms=FAR)
    wait_for_members(one, 1)
    one.ack(1)
    assert offsets(waits.result(60)) == [2]


def test_order_needs_acknowledgements(stream: Stream) -> None:
    with pytest.raises(InvalidInput, match="needs ack_ms"):
        stream.group("g", ordered=True).read(1)
    assert stream.group("g", ordered=True).read(0) == []
