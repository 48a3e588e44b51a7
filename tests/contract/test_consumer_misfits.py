"""What a consumer does about a value that does not fit the codec: no retry changes that."""

from __future__ import annotations

import logging

import pytest
import sqlalchemy as sa

from headwater import Message
from headwater.errors import PoisonedBatch, Undecodable
from headwater.outbox.consumer_loop import Handler
from tests.support.consumers import Desk, drain, numbers, writes


def reads_data(tries: list[int]) -> Handler:
    """Return a handler that writes its effects, and then reads the data of every message."""

    def handler(conn: sa.Connection, messages: list[Message]) -> None:
        tries.append(messages[0].offset)
        writes("c")(conn, messages)
        for message in messages:
            assert message.data

    return handler


def test_a_value_that_does_not_fit_stops_the_consumer_at_once_with_its_offset(
    desk: Desk, name: str
) -> None:
    desk.hw.stream(name).write_many([("t", b"[%d]" % n) for n in range(1, 9)])
    desk.hw.stream(name).write_many([("t", b"{"), ("t", b"[9]")])
    tries: list[int] = []
    typed = desk.hw.stream(name, codec="json")
    consumer = desk.consumer("c", typed, reads_data(tries), attempts=5, backoff_ms=60_000)
    with pytest.raises(PoisonedBatch, match=f"once on offset 9 of stream '{name}'") as caught:
        consumer.run()
    assert (caught.value.first, caught.value.last, caught.value.attempts) == (9, 9, 1)
    assert isinstance(caught.value.__cause__, Undecodable)
    assert (tries, desk.effects("c"), consumer.positions()) == ([1], [], {name: 1})


def test_a_value_that_does_not_fit_is_skipped_without_retries(
    desk: Desk, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    misfits = {3, 4, 90}
    desk.hw.stream(name).write_many(
        [("t", b"hunter2" if n in misfits else b"[%d]" % n) for n in range(1, 101)]
    )
    tries: list[int] = []
    consumer = desk.consumer(
        "c", desk.hw.stream(name, codec="json"), reads_data(tries), on_error="skip", attempts=9
    )
    with caplog.at_level(logging.WARNING, "headwater.outbox"):
        assert drain(consumer) == 97
    assert desk.effects("c") == numbers(1, 100, misfits)
    assert len(desk.hw.stream(f"{name}.c.sql-dead").read(1, 10)) == 3
    assert len(tries) < 40
    assert [f"offset {n}" in caplog.text for n in misfits] == [True] * 3
    assert "hunter2" not in caplog.text
