"""A delayed message that is promoted is delivered now; nothing else changes."""

from __future__ import annotations

import pytest

from headwater import Headwater, InvalidInput, Queue
from tests.support.groups import FAR


@pytest.fixture
def queue(client: Headwater, name: str) -> Queue:
    """A queue with three delayed messages, and one that rests after a failed attempt."""
    found = client.queue(name)
    found.push(b"failed")
    found.nack(*found.pop(1, ack_ms=FAR), delay_ms=FAR)
    found.push_many([b"a", b"b", b"c"], delay_ms=FAR)
    return found


def test_promoted_messages_are_delivered_and_the_others_wait(queue: Queue) -> None:
    waiting = {item.value: item for item in queue.peek(9, state="delayed")}
    assert queue.promote([waiting[b"b"], waiting[b"failed"].id]) == 2
    assert queue.promote([waiting[b"b"].id]) == 0, "it is ready by now"
    found = queue.pop(9, ack_ms=FAR)
    assert sorted((one.value, one.attempt) for one in found) == [(b"b", 1), (b"failed", 2)]
    assert (queue.stats().delayed, queue.stats().unacked) == (2, 2)
    assert queue.promote([waiting[b"a"].place, waiting[b"c"].place]) == 2
    assert queue.stats().ready == 2


def test_what_a_consumer_holds_is_released_by_its_place(queue: Queue) -> None:
    queue.promote(queue.peek(1, state="delayed"))
    (held,) = queue.pop(1, ack_ms=FAR)
    (seen,) = queue.peek(1, state="unacked")
    assert queue.release(seen.place) == 1
    assert queue.ack(held) == 0
    assert queue.stats().ready == 1


def test_what_names_no_message_is_refused(queue: Queue) -> None:
    for wrong in ("17", [17], ["a"]):
        with pytest.raises(InvalidInput):
            queue.promote(wrong)  # type: ignore[arg-type]
    assert queue.promote([]) == queue.promote(["17"]) == 0
