"""What cannot be read is put aside, counted and reported; its neighbours are delivered."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable
from typing import TypeAlias

import pytest

from headwater import Headwater, Queue
from headwater.kernel.instrument import installed
from tests.support.entries import flips
from tests.support.instruments import Recorder
from tests.support.queue_books import LONG_MS, SHORT_MS, ask_for, ready_bundles, values
from tests.support.servers import until
from tests.support.watch import let_pass

pytestmark = pytest.mark.damages

Connect: TypeAlias = Callable[[str], Headwater]
LENGTH = 20


@pytest.fixture
def hw(connect: Connect) -> Headwater:
    return connect("plain-sync")


@pytest.fixture
def queue(hw: Headwater, name: str) -> Queue:
    """A queue whose consumers take 20 messages at a time, on a server whose keys are looked at."""
    queue = hw.queue(name)
    ask_for(queue, LENGTH)
    return queue


def some(count: int) -> list[bytes]:
    return [secrets.token_bytes(i % 7 * 11) for i in range(count)]


def replace(hw: Headwater, queue: Queue, place: int, text: bytes) -> None:
    hw.store.command("LSET", f"hw:q:{{{queue.name}}}:ready:0", place, text)


def test_a_damaged_message_is_put_aside_and_its_neighbours_are_delivered(
    queue: Queue, hw: Headwater, caplog: pytest.LogCaptureFixture
) -> None:
    queue.push_many([b"1", b"2"])
    for text in (b"not a message", b""):
        hw.store.command("RPUSH", f"hw:q:{{{queue.name}}}:ready:0", text)
    queue.push(b"3")
    with caplog.at_level(logging.WARNING, "headwater.queue"):
        assert values(queue.pop(9)) == [b"1", b"2", b"3"]
    assert "2 messages could not be read" in caplog.text
    assert queue.stats().damaged == 2
    assert [item.value for item in queue.scan("damaged")] == [b"not a message", b""]
    assert [item.state for item in queue.peek(state="damaged")] == ["damaged"] * 2


def test_a_damaged_number_harms_no_other_message(queue: Queue, hw: Headwater) -> None:
    queue.push_many([b"1", b"2", b"3"])
    replace(hw, queue, 1, b"\xff" * 15 + b"5m2")
    taken = queue.pop(9, ack_ms=LONG_MS)
    assert values(taken) == [b"1", b"2", b"3"]
    assert queue.ack(taken[0], taken[2]) == 2


@pytest.mark.parametrize("damage", ["missing", "garbage", "wrong type", "half"])
def test_a_damaged_bundle_with_a_time_is_put_aside_and_others_are_delivered(
    queue: Queue, hw: Headwater, damage: str
) -> None:
    bundles = f"hw:q:{{{queue.name}}}:bundles"
    queue.push(b"1", delay_ms=1)
    queue.push(b"2", delay_ms=2)
    until(lambda: queue.stats().ready == 2)
    (fields,) = hw.store.command("HKEYS", bundles)
    if damage == "missing":
        hw.store.command("HDEL", bundles, min(fields))
    else:
        content = {"garbage": b"\xc1", "wrong type": b"\xce\0\0\0\1", "half": b"\x92\xc0\xa1x"}
        hw.store.command("HSET", bundles, min(fields), content[damage])
    assert values(queue.pop(9, ack_ms=LONG_MS)) == [b"2"]
    facts = queue.stats()
    assert (facts.damaged, facts.ready, facts.delayed, facts.unacked) == (1, 0, 0, 1)
    assert len(list(queue.scan("damaged"))) == 1


@pytest.mark.parametrize("damage", ["cut off", "too long", "count", "number"])
def test_a_damaged_bundle_is_put_aside_and_its_neighbours_are_delivered(
    queue: Queue, hw: Headwater, damage: str
) -> None:
    pushed = [some(LENGTH) for _ in range(3)]
    for part in pushed:
        queue.push_many(part)
    bundle = ready_bundles(hw, queue)[1]
    broken = {
        "cut off": bundle[:-1],
        "too long": bundle + b"x",
        "count": bundle[:17] + b"\xff" + bundle[18:],
        "number": bundle[:7] + bytes(8) + bundle[15:],
    }[damage]
    replace(hw, queue, 1, broken)
    assert len(list(queue.scan("ready"))) == 2 * LENGTH
    assert values(queue.pop(100, ack_ms=LONG_MS)) == pushed[0] + pushed[2]
    facts = queue.stats()
    assert facts.damaged == (1 if damage == "count" else LENGTH)
    assert [item.value for item in queue.scan("damaged")] == [broken]
    queue.push_many(some(LENGTH))
    assert len(queue.pop(100)) == LENGTH
    assert queue.stats().ready == 0


def test_values_are_found_by_either_of_two_ways(queue: Queue, hw: Headwater) -> None:
    pushed = [b"%d" % i for i in range(LENGTH)]
    queue.push_many(pushed)
    (bundle,) = ready_bundles(hw, queue)
    replace(hw, queue, 0, bundle.replace(b"\xc6", b"\xc1", 1))
    assert values(queue.pop(LENGTH)) == pushed


def test_damage_in_a_joined_bundle_harms_no_other(queue: Queue, hw: Headwater) -> None:
    queue.push_many([b"1"] * LENGTH)
    queue.push_many([b"2"] * LENGTH)
    queue.release(*queue.pop(2 * LENGTH, ack_ms=LONG_MS))
    bundles = f"hw:q:{{{queue.name}}}:bundles"
    (fields,) = hw.store.command("HKEYS", bundles)
    (record,) = hw.store.command("HGET", bundles, fields[0])
    hw.store.command("HSET", bundles, fields[0], record[:-1])
    assert values(queue.pop(100)) == [b"1"] * LENGTH
    assert queue.stats().damaged == LENGTH


def test_damage_in_a_bundle_whose_deadlines_vary_harms_no_other(
    queue: Queue, hw: Headwater
) -> None:
    queue.push_many([b"1", b"2", b"3"])
    taken = queue.pop(3, ack_ms=SHORT_MS)
    assert queue.extend(taken[0], ack_ms=LONG_MS) == 1
    bundles = f"hw:q:{{{queue.name}}}:bundles"
    (fields,) = hw.store.command("HKEYS", bundles)
    (record,) = hw.store.command("HGET", bundles, fields[0])
    hw.store.command("HSET", bundles, fields[0], record[:-1])
    let_pass(hw, SHORT_MS)
    assert values(queue.pop(9, ack_ms=LONG_MS)) == [b"1", b"2"], "which deadline is whose is lost"
    facts = queue.stats()
    assert (facts.damaged, facts.unacked, facts.ready) == (1, 2, 0)


def test_a_damaged_size_inside_a_bundle_loses_nothing_and_stops_nobody(
    queue: Queue, hw: Headwater
) -> None:
    high = [queue.push(b"high", priority=1) for _ in range(2)]
    queue.push_many(some(LENGTH))
    queue.push(b"behind")
    (text, *_) = ready_bundles(hw, queue)
    # The first value begins behind its kind and the four bytes of its size.
    at = text.index(b"\xc6") + 1
    replace(hw, queue, 0, text[:at] + b"\x7f\xff\xff\xff" + text[at + 4 :])
    taken = queue.pop(6, ack_ms=LONG_MS)
    assert [delivery.id for delivery in taken][:2] == high
    rest = queue.pop(LENGTH, ack_ms=LONG_MS)
    # What did not go into the bundle is delivered, in its order.
    others = values([*taken, *rest])[2:]
    assert others[-1] == b"behind"
    assert queue.ack(*taken, *rest) == 2 + len(others)
    stats = queue.stats()
    assert (stats.unacked, stats.ready) == (0, 0)
    assert stats.damaged > 6
    assert stats.damaged + len(others) == LENGTH + 1


def test_an_expired_message_with_a_damaged_number_stops_nobody(queue: Queue, hw: Headwater) -> None:
    queue.push(b"mortal", ttl_ms=1)
    queue.push(b"due", delay_ms=1)
    let_pass(hw, 2)
    (text,) = ready_bundles(hw, queue)
    replace(hw, queue, 0, b"\xff" * 15 + text[15:])
    assert values(queue.pop(9)) == [b"due"]


def test_damage_after_a_partial_ack_hides_no_neighbours_ack(queue: Queue, hw: Headwater) -> None:
    queue.push_many([b"1", b"2", b"3", b"4"])
    taken = queue.pop(4, ack_ms=LONG_MS)
    assert queue.ack(taken[0]) == 1
    key = f"hw:q:{{{queue.name}}}:bundles"
    ((number, text),) = [hw.store.command("HGETALL", key)[0][i : i + 2] for i in (0,)]
    hw.store.command("HSET", key, number, text.replace(taken[2].id.encode() + b"c", b"x" * 17))
    assert queue.ack(*taken[1:]) == 2, "those that can be read"
    facts = queue.stats()
    assert (facts.unacked, facts.damaged, facts.acked) == (0, 1, 3)


def test_a_text_that_is_cut_off_anywhere_is_counted_and_put_aside(
    queue: Queue, hw: Headwater
) -> None:
    queue.push_many(some(LENGTH))
    (text,) = ready_bundles(hw, queue)
    for length in range(40):
        replace(hw, queue, 0, text[:length])
        with installed(Recorder()):
            assert [item.state for item in queue.scan("ready", "damaged")] == ["damaged"]
    replace(hw, queue, 0, text[:17])
    with installed(Recorder()):
        assert queue.pop(9) == []
    assert queue.stats().damaged == 1


@pytest.mark.parametrize("ttl_ms", [None, LONG_MS])
@pytest.mark.parametrize("ack_ms", [None, LONG_MS])
def test_no_flipped_bit_comes_back_as_an_altered_message(
    queue: Queue, hw: Headwater, ack_ms: int | None, ttl_ms: int | None
) -> None:
    queue.push(b"value", ttl_ms=ttl_ms)
    (text,) = ready_bundles(hw, queue)
    aside = 0
    for damaged in flips(text):
        queue.push(b"before")
        queue.push(b"behind")
        queue.push(b"", priority=-1)
        hw.store.command("LPUSH", f"hw:q:{{{queue.name}}}:ready:0", damaged)
        taken = queue.pop(9, ack_ms=ack_ms)
        found = [value for value in values(taken) if value != b"value"]
        assert found == [b"before", b"behind", b""]
        aside += b"value" not in values(taken)
        if ack_ms:
            assert queue.ack(*taken) == len(taken)
    facts = queue.stats()
    assert facts.unacked == 0
    assert facts.damaged >= 8 * (len(b"value") + 4), "value and checksum"
    assert facts.damaged + facts.expired == aside


def test_a_damaged_value_of_a_bundle_is_put_aside_and_its_neighbours_are_delivered(
    queue: Queue, hw: Headwater, caplog: pytest.LogCaptureFixture
) -> None:
    queue.push_many([b"value-%02d" % i for i in range(LENGTH)])
    (text,) = ready_bundles(hw, queue)
    replace(hw, queue, 0, text.replace(b"value-07", b"value-08", 1))
    with caplog.at_level(logging.ERROR, "headwater.queue"):
        taken = queue.pop(LENGTH, ack_ms=LONG_MS)
    assert values(taken) == [b"value-%02d" % i for i in range(LENGTH) if i != 7]
    assert "the checksums of 1 messages are wrong" in caplog.text
    assert queue.ack(*taken) == LENGTH - 1
    facts = queue.stats()
    assert (facts.damaged, facts.unacked, facts.ready) == (1, 0, 0)
    (item,) = queue.scan("damaged")
    assert item.value.startswith(b"value-08")


def test_messages_that_were_pushed_without_a_checksum_are_read(queue: Queue, hw: Headwater) -> None:
    for text in (b"1733000000000001mone", b"1733000000000002t9999999999999two"):
        hw.store.command("RPUSH", f"hw:q:{{{queue.name}}}:ready:0", text)
    queue.push(b"three")
    assert [item.value for item in queue.scan("ready")] == [b"one", b"two", b"three"]
    assert values(queue.pop(9)) == [b"one", b"two", b"three"]
