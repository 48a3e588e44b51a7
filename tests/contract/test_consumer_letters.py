"""Dead letters of a consumer say where they came from and why; a repeat of one is not a second."""

from __future__ import annotations

import time

import pytest
import sqlalchemy as sa

from headwater import Message
from headwater.kernel.failures import Cause
from headwater.outbox.consumer_letters import ConsumerLetters, GivenUp
from headwater.outbox.consumer_loop import Handler
from tests.support.consumers import Desk, drain, writes
from tests.support.entries import entries
from tests.support.servers import until

OWN = {f"own-{place}": bytes(1000) for place in range(4)}


def fails_on(places: set[int], text: str = "cannot handle it") -> Handler:
    def handler(conn: sa.Connection, messages: list[Message]) -> None:
        writes("c")(conn, messages)
        if places & {message.offset for message in messages}:
            raise ValueError(text)

    return handler


def test_a_letter_says_where_it_came_from_and_why(desk: Desk, name: str) -> None:
    stream = desk.hw.stream(name)
    stream.write_many([*entries(3), ("t", b"bad", {"a": b"1"}), *entries(3, 5)])
    before = time.time() * 1000
    handler = fails_on({2, 4}, "x" * 2000)
    reader = desk.consumer("c", name, handler, on_error="skip", attempts=3, backoff_ms=0)
    assert reader.dead() == []
    drain(reader)
    first, second = reader.dead()
    assert reader.dead(1) == [first]
    assert (first.stream, first.origin, first.attempts, dict(first.headers)) == (name, 2, 3, {})
    assert (second.origin, second.tag, second.value, dict(second.headers)) == (
        *(4, "t", b"bad"),
        {"a": b"1"},
    )
    assert second.cause == Cause("ValueError", "x" * 999 + "…")
    assert second.delivered_ms is not None
    assert before - 1 <= second.delivered_ms <= second.buried_ms + 1
    [letter] = desk.hw.stream(f"{name}.c.sql-dead").read(2, 1)
    assert letter is not None
    assert letter.headers["hw.dead-error-type"] == b"ValueError"
    assert letter.headers["hw.dead-offset"] == b"4"


def test_letters_are_of_one_consumer_whatever_its_name_and_that_of_its_stream(
    desk: Desk, name: str
) -> None:
    for stream in (name, f"{name}.b"):
        desk.hw.stream(stream).write("t", stream.encode())
    pairs = [(f"{name}.b", "c"), (name, "b.c"), (name, "b%2Ec"), (f"{name}.b", "b.c")]
    readers = []
    for stream, consumer in pairs:
        options = {"on_error": "skip", "attempts": 1, "backoff_ms": 0}
        readers.append(desk.consumer(consumer, stream, fails_on({1}), **options))
        drain(readers[-1])
    found = [[letter.value.decode() for letter in reader.dead()] for reader in readers]
    assert found == [[stream] for stream, _ in pairs]


def test_letters_of_a_group_of_the_same_name_are_not_those_of_a_consumer(
    desk: Desk, name: str
) -> None:
    stream = desk.hw.stream(name)
    stream.write_many(entries(3))
    group = stream.group("c", dead_letters=True)
    group.read(1, ack_ms=1, expire_ms=1)
    until(lambda: desk.hw.keep(name) and group.info().dead)
    reader = desk.consumer("c", name, fails_on({2}), on_error="skip", attempts=1, backoff_ms=0)
    drain(reader)
    assert [letter.origin for letter in reader.dead()] == [2]
    assert [letter.origin for letter in group.dead()] == [1]


def test_the_longest_error_fits_beside_the_longest_headers(desk: Desk, name: str) -> None:
    desk.hw.stream(name).write("t", b"1", headers=OWN)
    longest = type("\N{WATER WAVE}" * 200, (ValueError,), {})

    def handler(_conn: sa.Connection, _messages: list[Message]) -> None:
        raise longest("\N{WATER WAVE}" * 2000)

    reader = desk.consumer("c", name, handler, on_error="skip", attempts=1)
    drain(reader)
    [letter] = reader.dead()
    assert letter.cause is not None
    assert (len(letter.cause.type), len(letter.cause.text)) == (100, 1000)
    assert letter.headers == OWN


def test_a_letter_that_is_repeated_with_another_error_is_one_letter(desk: Desk, name: str) -> None:
    message = Message(7, "t", b"bad", 0)
    stream = desk.hw.stream(name)
    stream.write("t", b"first")
    stream.read(1, 1)  # a letter names the stream that its message was read from
    letters = ConsumerLetters(f"{name}.c.sql-dead", stream._handle)
    for attempt, error in enumerate((ValueError("once"), KeyError("again")), 1):
        desk.hw.store.run(letters.bury(GivenUp(message, attempt, attempt, error), "consumer:c"))
    [letter] = desk.hw.store.run(letters.dead(9))
    assert (letter.attempts, letter.cause) == (1, Cause("ValueError", "once"))
    other = Message(7, "t", b"of a stream that was made anew", 0)
    desk.hw.store.run(letters.bury(GivenUp(other, 1, 1, ValueError()), "consumer:c"))
    assert [letter.value for letter in desk.hw.store.run(letters.dead(9))] == [
        *(b"bad", b"of a stream that was made anew")
    ]


@pytest.mark.parametrize(
    ("cause", "shown"),
    [
        (Cause("ValueError", "bad"), "ValueError: bad"),
        (Cause("ValueError", ""), "ValueError"),
        (Cause("", "bad"), "bad"),
    ],
)
def test_a_cause_is_shown_by_what_is_known_of_it(cause: Cause, shown: str) -> None:
    assert str(cause) == shown
