"""Groups that keep order: a message comes when those before it of its tag are done or buried."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from headwater import Group, InvalidInput, Stream
from tests.support.entries import offsets
from tests.support.groups import FAR, take
from tests.support.waking import wait_for_members

pytestmark = pytest.mark.parametrize("client", ["plain-sync", "plain-async"], indirect=True)


def members_of(stream: Stream, count: int = 2) -> list[Group]:
    return [stream.group("g", member=f"m{i}", ordered=True) for i in range(count)]


def test_order_is_of_the_group_whoever_asked_for_it(stream: Stream) -> None:
    stream.write_many([("x", b"1"), ("x", b"2")])
    assert take(stream.group("g", ordered=True), 1) == [1]
    plain = stream.group("g")
    assert take(plain, 5) == []
    stream.write_many([("y", b"%d" % n) for n in range(700)])
    assert take(plain, 500) == list(range(3, 503))
    plain.ack(1)
    assert take(plain, 1) == [2]


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
