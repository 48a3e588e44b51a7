"""Groups, groups of topics and queues settle messages in whatever form they are given."""

from __future__ import annotations

import pytest

from headwater import Headwater, InvalidInput
from tests.support.entries import entries, offsets
from tests.support.groups import FAR


def test_a_group_takes_messages_offsets_and_ranges(client: Headwater, name: str) -> None:
    stream = client.stream(name)
    written = stream.write_many(entries(20))
    group = stream.group("g")
    taken = group.read(20, ack_ms=FAR)
    with pytest.raises(InvalidInput):
        group.ack(taken[0], [taken[1], (9, 2)])
    assert group.info().pending == 20
    assert group.ack(taken[0], taken[1:3], 4, (5, 6), range(7, 9)) == 8
    assert group.extend(taken, ack_ms=FAR) == 12
    assert group.nack(m for m in taken if m.offset > 15) == 5
    assert offsets(group.read(20, ack_ms=FAR)) == [16, 17, 18, 19, 20]
    assert group.ack(written) == 12
    assert group.info().pending == 0


def test_a_group_of_a_topic_takes_messages_and_ranges_of_partitions(
    client: Headwater, name: str
) -> None:
    topic = client.topic(name, partitions=3)
    written = topic.write_many(entries(30))
    group = topic.group("g")
    taken = []
    while more := group.read(30, ack_ms=FAR):
        taken += more
    with pytest.raises(InvalidInput, match="partition 3 is not one of 0 to 2"):
        group.ack(taken, (3, 1))
    assert sum(info.pending for info in group.info()) == 30
    assert group.ack(taken[0], taken[1:3]) == 3
    place, span = next(iter(written.items()))
    assert group.extend((place, span), ack_ms=FAR) == group.info()[place].pending
    assert group.ack((place, (span[0], span[-1])), (place, 1)) <= len(span)
    assert group.info()[place].pending == 0
    assert group.nack(written) == sum(info.pending for info in group.info()) > 0


def test_a_queue_takes_deliveries_and_receipts(client: Headwater, name: str) -> None:
    queue = client.queue(name)
    queue.push_many([b"%d" % i for i in range(8)])
    taken = queue.pop(8, ack_ms=FAR)
    with pytest.raises(InvalidInput):
        queue.ack(taken, taken[0].id)
    assert queue.stats().unacked == 8
    assert queue.extend(taken[0], [taken[1].receipt], ack_ms=FAR) == 2
    assert queue.ack(taken[0].receipt, taken[:3]) == 3
    assert queue.nack((taken[3], taken[4].receipt)) == 2
    assert queue.release(delivery for delivery in taken[5:]) == 3
    assert queue.stats().unacked == 0
