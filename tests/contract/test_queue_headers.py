"""Headers of a queue's messages stay with them, wherever they lie and however they are taken."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

import headwater
from headwater import Headwater, InvalidInput, Queue, ReusedSequence
from headwater.queue.keys import queue_key
from tests.support.queue_books import LONG_MS, ask_for, ready_bundles
from tests.support.servers import until
from tests.support.watch import let_pass

Pushed = list[tuple[bytes, dict[str, bytes]]]


def some(count: int) -> Pushed:
    """Make values of which every third has no headers."""
    return [(b"%d" % i, {"n": b"%d" % i, "kind": b"test"} if i % 3 else {}) for i in range(count)]


def push(queue: Queue, given: Pushed, **options: Any) -> None:
    queue.push_many([v for v, _ in given], headers=[h for _, h in given], **options)


def as_pushed(found: list[Any]) -> Pushed:
    return [(one.value, one.headers) for one in found]


@pytest.mark.parametrize("count", [1, 5, 70])
def test_headers_stay_with_a_message_until_it_is_done(
    queue: Queue, client: Headwater, count: int
) -> None:
    queue.configure(max_attempts=4)
    ask_for(queue, 20)
    given = some(count)
    push(queue, given)
    assert as_pushed(queue.peek(100)) == given
    assert as_pushed(list(queue.scan("ready"))) == given
    taken = queue.pop(7, ack_ms=LONG_MS) + queue.pop(100, ack_ms=LONG_MS)
    assert as_pushed(taken) == given
    queue.extend(taken[0], ack_ms=2 * LONG_MS)
    queue.nack(taken)
    again = queue.pop(100, ack_ms=1)
    assert sorted(as_pushed(again)) == sorted(given)
    let_pass(client, 2)
    lapsed = queue.pop(100, ack_ms=LONG_MS)
    assert sorted(as_pushed(lapsed)) == sorted(given)
    queue.nack(lapsed)
    queue.nack(queue.pop(100, ack_ms=LONG_MS))
    assert sorted(as_pushed(queue.dead(100))) == sorted(given)
    queue.redrive()
    assert sorted(as_pushed(queue.pop(100))) == sorted(given)


def test_one_map_may_be_for_all_and_one_message_may_have_its_own(queue: Queue) -> None:
    queue.push(b"1", headers={"a": "ü"}, priority=2)
    queue.push(b"2", headers={"a": b"2"}, priority=1, ttl_ms=LONG_MS)
    queue.push_many([b"3", b"4"], headers={"b": b"3"}, dedupe=["x", "y"])
    queue.push_many([b"5"], headers=[None])
    assert as_pushed(queue.pop(9)) == [
        (b"1", {"a": "ü".encode()}),
        (b"2", {"a": b"2"}),
        (b"3", {"b": b"3"}),
        (b"4", {"b": b"3"}),
        (b"5", {}),
    ]


def test_a_delivery_without_headers_is_what_it_was(queue: Queue) -> None:
    queue.push_many([b"1", b"2"], headers={})
    found = queue.pop(2)
    assert {type(one) for one in found} == {headwater.Delivery}
    assert found[0].headers is found[1].headers


def test_a_delayed_message_and_a_blocked_consumer_get_headers(
    queue: Queue, client: Headwater, pool: ThreadPoolExecutor
) -> None:
    queue.push(b"later", delay_ms=1, headers={"a": b"1"})
    let_pass(client, 2)
    assert as_pushed(queue.pop()) == [(b"later", {"a": b"1"})]
    waiting = pool.submit(queue.pop, block_ms=20_000)
    until(lambda: queue.stats().waiting == 1)
    queue.push(b"now", headers={"a": b"2"})
    assert as_pushed(waiting.result(60)) == [(b"now", {"a": b"2"})]


def test_typed_messages_have_headers(client: Headwater, name: str) -> None:
    queue: Any = client.queue(name, codec="json")
    queue.push({"n": 1}, headers={"a": b"1"})
    (found,) = queue.pop()
    assert (found.data, found.headers) == ({"n": 1}, {"a": b"1"})


def test_a_repeat_has_the_same_headers(queue: Queue) -> None:
    ids = queue.push_many([b"1"], headers={"a": b"1"}, producer="p", sequence=1)
    assert queue.push_many([b"1"], headers=[{"a": "1"}], producer="p", sequence=1) == ids
    for other in ({"a": b"2"}, None):
        with pytest.raises(ReusedSequence):
            queue.push_many([b"1"], headers=other, producer="p", sequence=1)


@pytest.mark.damages
@pytest.mark.parametrize("count", [1, 12])
def test_any_bit_of_headers_that_changed_is_noticed(
    connect: Callable[[str], Headwater], name: str, count: int
) -> None:
    hw = connect("plain-sync")
    queue = hw.queue(name)
    ask_for(queue, 20)
    key = f"{queue_key(queue.name)}:ready:0"
    push(queue, [(b"v", {"a": b"1"})] * count)
    (text,) = ready_bundles(hw, queue)
    begin = text.rindex(b"v")
    queue.purge()
    for bit in range(8 * begin, 8 * len(text)):
        damaged = bytearray(text)
        damaged[bit // 8] ^= 1 << bit % 8
        push(queue, [(b"x", {})] * count)
        hw.store.command("LSET", key, 0, bytes(damaged))
        found = queue.pop(count)
        assert as_pushed(found) == [(b"v", {"a": b"1"})] * (count - 1)
    assert queue.stats().damaged == 8 * (len(text) - begin)


@pytest.mark.parametrize("given", [[{}], "ab", 5, {"hw.x": b""}, [{"a": 1}, None]])
def test_what_is_refused_is_not_sent(queue: Queue, given: Any) -> None:
    with pytest.raises(InvalidInput, match="header"):
        queue.push_many([b"1", b"2"], headers=given)
    assert queue.stats().pushed == 0
