"""Queues with limits: what is in flight and how fast it goes, exact for all consumers together."""

from __future__ import annotations

import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pytest

from headwater import Headwater, InvalidInput, Limits, Queue
from headwater.kernel.inputs import NO_LIMITS
from tests.support.groups import FAR
from tests.support.limit_rules import Deliveries, faster_than
from tests.support.servers import until
from tests.support.watch import let_pass

pytestmark = pytest.mark.parametrize("client", ["plain-sync", "plain-async"], indirect=True)


def test_no_more_messages_are_in_flight_than_may_be(client: Headwater, queue: Queue) -> None:
    queue.push_many([b"%d" % n for n in range(20)])
    assert queue.limit(Limits(max_in_flight=3)) == NO_LIMITS
    first = queue.pop(2, ack_ms=FAR) + queue.pop(9, ack_ms=FAR)
    assert len(first) == 3
    assert queue.pop(9, ack_ms=FAR) == []
    queue.ack(first[0])
    queue.nack(first[1], delay_ms=FAR)
    assert len(queue.pop(9, ack_ms=FAR)) == 2, "what is done or failed is in flight no more"
    queue.limit(Limits(max_in_flight=4))
    assert len(queue.pop(9, ack_ms=1)) == 1
    let_pass(client, 1)
    assert len(queue.pop(9, ack_ms=FAR)) == 1, "nor is what a consumer held that died"
    assert queue.stats().limits == Limits(max_in_flight=4)
    assert len(queue.pop(3)) == 3, "what need not be acknowledged is never in flight"


def test_a_blocked_consumer_is_woken_when_something_is_done(queue: Queue) -> None:
    queue.push_many([b"1", b"2"])
    queue.limit(Limits(max_in_flight=1))
    (first,) = queue.pop(2, ack_ms=FAR)
    with ThreadPoolExecutor(2) as pool:
        waiting = [pool.submit(lambda: queue.pop(2, ack_ms=FAR, block_ms=FAR)) for _ in range(2)]
        until(lambda: queue.stats().waiting == 2)
        queue.ack(first)
        until(lambda: any(one.done() for one in waiting))
        (second,) = next(one.result() for one in waiting if one.done())
        assert second.value == b"2"
        queue.push(b"3")
        queue.ack(second)
        until(lambda: all(one.done() for one in waiting))


def test_one_that_is_raised_lets_those_through_who_wait(queue: Queue) -> None:
    queue.push_many([b"1", b"2"])
    queue.limit(Limits(rate="1/h burst 1"))
    assert len(queue.pop(2, ack_ms=FAR)) == 1
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(lambda: queue.pop(2, ack_ms=FAR, block_ms=FAR))
        until(lambda: queue.stats().waiting == 1)
        assert queue.limit(NO_LIMITS) == Limits(rate="1/h burst 1")
        assert len(waiting.result(60)) == 1


def test_no_more_are_delivered_in_any_span_of_time_than_the_rate_and_the_burst(
    queue: Queue,
) -> None:
    queue.push_many([b"%d" % n for n in range(40)])
    queue.limit(Limits(rate="100/s burst 4"))

    seen: list[Deliveries] = []

    def delivered() -> int:
        return sum(one.messages for one in seen)

    def work(_: int) -> None:
        while delivered() < 40:
            after = time.time()
            if found := queue.pop(20, ack_ms=FAR, block_ms=300):
                seen.append(Deliveries(after, time.time(), len(found)))

    with ThreadPoolExecutor(3) as pool:
        list(pool.map(work, range(3)))
    assert delivered() == 40
    assert not faster_than(seen, 100, 4)
    assert max(one.before for one in seen) - min(one.after for one in seen) >= 0.36


def test_priorities_delays_and_pauses_count_within_limits(client: Headwater, queue: Queue) -> None:
    queue.limit(Limits(max_in_flight=2))
    queue.push(b"low")
    queue.push(b"high", priority=5)
    queue.push(b"later", delay_ms=1)
    let_pass(client, 1)
    queue.pause()
    assert queue.pop(5, ack_ms=FAR) == []
    queue.resume()
    assert [one.value for one in queue.pop(1, ack_ms=FAR)] == [b"high"]
    rest = Counter(one.value for one in queue.pop(5, ack_ms=FAR))
    assert rest == Counter([b"low"])


def test_a_queue_has_no_limits_per_key(queue: Queue) -> None:
    with pytest.raises(InvalidInput, match="have no key"):
        queue.limit(Limits(rate_per_key="5/s"))
