"""Messages are shown by the names that users know, with data and headers where there are any."""

from __future__ import annotations

import pytest

from headwater.kernel.headers import Headers
from headwater.log.types import (
    DecodedMessage,
    DecodedTopicMessage,
    HeadedMessage,
    HeadedTopicMessage,
    Message,
)
from headwater.queue.types import DecodedDelivery, HeadedDelivery

SOME = Headers({"a": b"1"})


@pytest.mark.parametrize(
    ("message", "shown"),
    [
        (Message(1, "t", b"5", 9), "Message(offset=1, tag='t', value=b'5', time_ms=9, attempt=0)"),
        (
            HeadedMessage(1, "t", b"5", 9, headers=SOME),
            "Message(offset=1, tag='t', value=b'5', time_ms=9, attempt=0, "
            "headers=Headers({'a': b'1'}))",
        ),
        (
            DecodedMessage(1, "t", b"5", 9, decoded=5),
            "Message(offset=1, tag='t', value=b'5', time_ms=9, attempt=0, data=5)",
        ),
        (
            HeadedTopicMessage(0, 1, "t", b"5", 9, headers=SOME),
            "TopicMessage(partition=0, offset=1, tag='t', value=b'5', time_ms=9, attempt=0, "
            "headers=Headers({'a': b'1'}))",
        ),
        (
            DecodedTopicMessage(0, 1, "t", b"5", 9, decoded=5, headers=SOME),
            "TopicMessage(partition=0, offset=1, tag='t', value=b'5', time_ms=9, attempt=0, "
            "data=5, headers=Headers({'a': b'1'}))",
        ),
        (
            HeadedDelivery("i", b"5", 1, "r", headers=SOME),
            "Delivery(id='i', value=b'5', attempt=1, receipt='r', headers=Headers({'a': b'1'}))",
        ),
        (
            DecodedDelivery("i", b"5", 1, "r", decoded=5),
            "Delivery(id='i', value=b'5', attempt=1, receipt='r', data=5)",
        ),
    ],
)
def test_a_message_is_shown_by_what_users_know_of_it(message: object, shown: str) -> None:
    assert repr(message) == shown
