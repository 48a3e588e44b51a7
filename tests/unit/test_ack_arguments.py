"""What ack, nack and extend accept, and what they refuse before anything is sent."""

from __future__ import annotations

from typing import Any

import pytest

from headwater import Delivery, InvalidInput, Message, TopicMessage
from headwater.log.settling import ranges_by_partition, ranges_of
from headwater.log.types import DeadLetter, Placed
from headwater.queue import settling
from headwater.queue.handles import QueueHandle
from headwater.queue.types import QueueItem

RECEIPT = "1733000000000123:0:1:2.1733000000000001"


def message(offset: int) -> Message:
    return Message(offset, "t", b"v", 1, 1)


def in_topic(partition: int, offset: int) -> TopicMessage:
    return TopicMessage(partition, offset, "t", b"v", 1, 1)


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ([], []),
        ([5, 7, 6], [(5, 7)]),
        ([message(5), message(9)], [(5, 5), (9, 9)]),
        ([[message(5), 6], message(7)], [(5, 7)]),
        ([(message(5), message(9))], [(5, 5), (9, 9)]),
        ([(5, 9)], [(5, 9)]),
        ([range(5, 9), range(12, 9, -1)], [(5, 8), (10, 12)]),
        ([range(1, 7, 2)], [(1, 1), (3, 3), (5, 5)]),
        ([range(9, 9), [range(5, 5)], []], []),
        ([[(1, 2), range(4, 6), 8, message(9)], 3, (11, 11)], [(1, 5), (8, 9), (11, 11)]),
        ([iter([1, 2]), {4}], [(1, 2), (4, 4)]),
        ([{7: "a dict's keys"}.keys()], [(7, 7)]),
    ],
)
def test_messages_offsets_and_ranges_in_any_mixture(given: list[Any], meant: list[Any]) -> None:
    assert ranges_of(given) == meant


@pytest.mark.parametrize(
    ("given", "error"),
    [
        (None, "not NoneType"),
        ("5", "not str"),
        ([b"5"], "not bytes"),
        (5.0, "not float"),
        ({5: 9}, "not dict"),
        (True, "must be an int, not True"),
        (0, "from 1 to"),
        (range(3), "start of a range must be from 1"),
        ((5, "9"), "end of a range must be an int"),
        ((5, 7, 9), r"a range is a pair \(start, end\), not \(5, 7, 9\); put single offsets"),
        ((9, 5), "ends before it starts"),
        (in_topic(3, 5), "offset 5 is of partition 3 of a topic"),
        (Placed(3, 5), "offset 5 is of partition 3 of a topic"),
        (DeadLetter(1, "t", b"v", 1, 5, 3), "offset 5 is a dead letter"),
        (Delivery("1", b"v", 1, RECEIPT), "not Delivery"),
    ],
)
def test_what_a_group_cannot_mean_is_refused(given: Any, error: str) -> None:
    with pytest.raises(InvalidInput, match=error):
        ranges_of([1, given])


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ([in_topic(1, 5), [in_topic(0, 6), in_topic(1, 6)]], {0: [(6, 6)], 1: [(5, 6)]}),
        ([(1, 5), Placed(1, 7)], {1: [(5, 5), (7, 7)]}),
        ([(1, (5, 9)), (0, range(1, 3)), (1, [10, message(11)])], {0: [(1, 2)], 1: [(5, 11)]}),
        ([{2: range(1, 4), 0: [5, (7, 8)]}], {0: [(5, 5), (7, 8)], 2: [(1, 3)]}),
        ([((1, 5), in_topic(1, 6))], {1: [(5, 6)]}),
        ([], {}),
    ],
)
def test_messages_of_a_topic_by_partition(given: list[Any], meant: dict[int, Any]) -> None:
    assert ranges_by_partition(given) == meant


@pytest.mark.parametrize(
    ("given", "error"),
    [
        (5, "5 does not say its partition"),
        (range(1, 3), r"range\(1, 3\) does not say its partition"),
        (message(5), "5 does not say its partition"),
        ((0, 5, 9), r"for a range of offsets give \(partition, \(start, end\)\)"),
        ((-1, 5), "partition must be from 0"),
        ((0, 0), "offset must be from 1"),
        ({"0": 1}, "partition must be an int, not '0'"),
        ((0, None), "not NoneType"),
        ("0/5", "not str"),
    ],
)
def test_what_a_group_of_a_topic_cannot_mean_is_refused(given: Any, error: str) -> None:
    with pytest.raises(InvalidInput, match=error):
        ranges_by_partition([(0, 1), given])


@pytest.mark.parametrize(
    ("given", "error"),
    [
        (1, "give deliveries and receipts, or iterables of them, not int"),
        (None, "not NoneType"),
        (b"1", "not bytes"),
        ("1733000000000001", "is not a receipt; copy it as pop gave it"),
        (Delivery("7", b"v", 1, ""), "message 7 was taken without ack_ms"),
        (QueueItem("7", b"v", "ready", 0, 0, 1, None, None, "p"), "message 7 was seen, not taken"),
        (message(5), "not Message"),
    ],
)
def test_what_a_queue_cannot_mean_is_refused_before_anything_is_sent(
    given: Any, error: str
) -> None:
    queue = QueueHandle("q", set(), "m")
    for operation in (settling.ack(queue, [RECEIPT, given]), settling.nack(queue, [[given]], 0)):
        with pytest.raises(InvalidInput, match=error):
            next(operation)
