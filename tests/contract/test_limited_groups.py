"""Groups with limits: what is in flight and how fast it goes, exact for all members together."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from headwater import Group, Headwater, InvalidInput, Limits, Stream
from headwater.kernel.inputs import NO_LIMITS
from tests.support.entries import offsets
from tests.support.groups import FAR, take
from tests.support.limit_rules import Deliveries, faster_than
from tests.support.waking import wait_for_members

pytestmark = pytest.mark.parametrize("client", ["plain-sync", "plain-async"], indirect=True)


def members_of(stream: Stream, limits: Limits, count: int = 2) -> list[Group]:
    members = [stream.group("g", member=f"m{i}") for i in range(count)]
    members[0].limit(limits)
    return members


def write(stream: Stream, count: int, tags: int = 1) -> None:
    stream.write_many([(f"t{n % tags}", b"v") for n in range(count)])


def test_a_blocked_member_is_served_when_something_is_done(stream: Stream) -> None:
    write(stream, 5)
    one, other = members_of(stream, Limits(max_in_flight=1))
    assert take(one, 5) == [1]
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(lambda: offsets(other.read(5, ack_ms=FAR, block_ms=FAR)))
        wait_for_members(one, 1)
        one.ack(1)
        assert waiting.result(60) == [2]


def test_a_tag_at_its_limit_does_not_hold_up_others(stream: Stream) -> None:
    stream.write_many([("x", b"")] * 700 + [("y", b""), ("", b""), ("", b"")])
    one, other = members_of(stream, Limits(max_in_flight_per_key=2))
    assert take(one, 9) == [1, 2]
    assert take(other, 9) == [701, 702, 703], "they pass 698 messages that wait"
    one.ack(1)
    assert take(other, 9) == [3]
    other.nack(3, delay_ms=FAR)
    assert take(one, 9) == [4], "the first that waits takes the place of one that failed"
    one.nack(3)
    assert take(one, 9) == []


@pytest.mark.parametrize("per_key", [False, True])
def test_no_more_are_delivered_in_any_span_of_time_than_the_rate_and_the_burst(
    stream: Stream, per_key: bool
) -> None:
    write(stream, 40)
    rate = "100/s burst 4"
    limits = Limits(rate_per_key=rate) if per_key else Limits(rate=rate)
    members = members_of(stream, limits)

    seen: list[Deliveries] = []

    def delivered() -> int:
        return sum(one.messages for one in seen)

    def work(member: Group) -> None:
        while delivered() < 40:
            after = time.time()
            if found := member.read(20, ack_ms=FAR, block_ms=300):
                seen.append(Deliveries(after, time.time(), len(found)))

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(work, members))
    assert delivered() == 40
    assert not faster_than(seen, 100, 4)
    assert max(one.before for one in seen) - min(one.after for one in seen) >= 0.36
    assert len(seen) <= 40, "nobody asks in vain"


def test_limits_are_kept_when_nothing_need_be_acknowledged(stream: Stream) -> None:
    write(stream, 9)
    (group,) = members_of(stream, Limits(max_in_flight=2, rate="1/h burst 5"), 1)
    assert len(group.read(9)) == 5, "it is never in flight, but it takes tokens"


def test_limits_that_make_no_sense_are_refused(client: Headwater, name: str) -> None:
    for words in ({"max_in_flight": 0}, {"max_in_flight_per_key": True}, {"rate": "fast"},
                  {"rate": "0/s"}, {"rate": "5/2d"}, {"rate_per_key": "5/s burst 0"},
                  {"rate": "2000000/s"}, {"rate": 5}):  # fmt: skip
        with pytest.raises(InvalidInput):
            Limits(**words)
    topic = client.topic(name, 2)
    with pytest.raises(InvalidInput, match="per key only"):
        topic.group("g").limit(Limits(rate="5/s"))


def test_the_group_of_a_topic_has_limits_per_key(client: Headwater, name: str) -> None:
    topic = client.topic(name, 3)
    topic.write_many([(f"t{n % 4}", b"v") for n in range(40)])
    group = topic.group("g")
    assert group.limit(Limits(max_in_flight_per_key=1)) == NO_LIMITS
    found = []
    while some := group.read(20, ack_ms=FAR):
        found += some
    assert sorted(message.tag for message in found) == ["t0", "t1", "t2", "t3"]
    assert {info.limits.max_in_flight_per_key for info in group.info()} == {1}
