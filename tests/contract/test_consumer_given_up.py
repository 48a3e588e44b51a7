"""A message has its effect once, as itself or as a dead letter, whoever is killed or overtaken."""

from __future__ import annotations

import contextlib
import time
from typing import Any

import pytest
import sqlalchemy as sa

from headwater import InvalidInput, Message, NotCreated
from headwater.kernel.failures import Cause, LetterFilter
from headwater.outbox import Consumer, Outbox, write_reset
from headwater.outbox import consumer_letters as letters_module
from headwater.outbox.consumer_letters import ConsumerLetters, GivenUp
from headwater.outbox.consumer_loop import Handler
from tests.support.consumer_letters import SKIPS, Fixable, Killed, die_at, noted
from tests.support.consumers import Desk, drain, numbers, writes
from tests.support.entries import entries
from tests.support.servers import until


def other(desk: Desk, name: str) -> Consumer:
    """Another process of the consumer, which handles everything: it does not wait for this one."""
    return Consumer("c", name, desk.engine, desk.hw, Fixable(), **SKIPS)


def test_a_message_that_was_applied_after_all_is_not_redriven(desk: Desk, name: str) -> None:
    desk.hw.stream(name).write_many(entries(4))
    handler = Fixable(2, 3)
    with pytest.raises(Killed):
        drain(desk.consumer("c", name, handler, steps=die_at("buried"), **SKIPS))
    handler.places = {3}
    reader = desk.consumer("c", name, handler, **SKIPS)
    drain(reader)
    assert desk.effects("c") == [1, 2, 4]
    assert [one.origin for one in reader.dead()] == [2, 3], "that of 2 was written before the kill"
    assert noted(desk.engine, name) == [3]
    handler.places.clear()
    assert reader.redrive() == (1, 0)
    assert desk.effects("c") == [1, 2, 4, 3]
    assert (reader.dead(), noted(desk.engine, name)) == ([], [])


def test_a_letter_waits_until_its_message_is_retried(desk: Desk, name: str) -> None:
    desk.hw.stream(name).write_many(entries(4))
    handler = Fixable(2, 3)
    with pytest.raises(Killed):
        drain(desk.consumer("c", name, handler, steps=die_at("buried", 2), **SKIPS))
    fixed = desk.consumer("c", name, Fixable(), **SKIPS)
    assert fixed.redrive() == (1, 0), "whether 3 is given up is not decided"
    assert [one.origin for one in fixed.dead()] == [3]
    assert fixed.redrive() == (0, 0)
    drain(desk.consumer("c", name, handler, **SKIPS))
    assert fixed.redrive() == (1, 0)
    assert desk.effects("c") == [1, 2, 4, 3]
    assert fixed.dead() == []


def test_a_process_that_gives_up_what_another_has_applied_leaves_nothing_to_redrive(
    desk: Desk, name: str
) -> None:
    desk.hw.stream(name).write_many(entries(3))

    def overtake(at: str) -> None:
        if at == "given up":
            drain(other(desk, name))

    slow = desk.consumer("c", name, Fixable(2), steps=overtake, **SKIPS)
    drain(slow)
    assert desk.effects("c") == [1, 2, 3]
    assert [one.origin for one in slow.dead()] == [2]
    assert desk.consumer("c", name, Fixable(), **SKIPS).redrive() == (0, 0)
    assert desk.effects("c") == [1, 2, 3]
    assert slow.dead() == []


@pytest.mark.parametrize("step", ["given up", "buried"])
def test_of_two_redrives_at_once_one_may_fail(desk: Desk, name: str, step: str) -> None:
    desk.hw.stream(name).write_many(entries(3))
    drain(desk.consumer("c", name, Fixable(2), **SKIPS))

    def overtake(at: str) -> None:
        if at == step:
            assert other(desk, name).redrive().failed == 0

    failing = desk.consumer("c", name, Fixable(2), steps=overtake, **SKIPS)
    failing.redrive()
    fixed = desk.consumer("c", name, Fixable(), **SKIPS)
    while fixed.dead():
        fixed.redrive()
    assert desk.effects("c") == [1, 3, 2]
    assert noted(desk.engine, name) == []


def test_a_message_that_is_given_up_again_after_a_seek_has_a_letter(desk: Desk, name: str) -> None:
    desk.hw.stream(name).write_many(entries(3))
    handler = Fixable(2)
    reader = desk.consumer("c", name, handler, **SKIPS)
    drain(reader)
    handler.places.clear()
    assert reader.redrive() == (1, 0)
    handler.places = {2}
    reader.seek(2)
    drain(reader)
    assert [one.origin for one in reader.dead()] == [2], "its first letter was handled and evicted"
    handler.places.clear()
    assert reader.redrive() == (1, 0)


def test_a_redriven_letter_that_was_not_evicted_is_not_taken_for_that_of_a_later_failure(
    desk: Desk, name: str
) -> None:
    desk.hw.stream(name).write_many(entries(3))
    handler = Fixable(2)
    drain(desk.consumer("c", name, handler, **SKIPS))
    with pytest.raises(Killed):
        desk.consumer("c", name, Fixable(), steps=die_at("committed"), **SKIPS).redrive()
    reader = desk.consumer("c", name, handler, **SKIPS)
    reader.seek(2)
    drain(reader)
    assert noted(desk.engine, name) == [2]
    handler.places.clear()
    assert reader.redrive() == (1, 0)
    assert reader.dead() == []


def test_what_a_seek_has_handled_again_is_not_redriven(desk: Desk, name: str) -> None:
    desk.hw.stream(name).write_many(entries(5))
    handler = Fixable(2, 4)
    reader = desk.consumer("c", name, handler, **SKIPS)
    drain(reader)
    handler.places.clear()
    reader.seek(3)
    assert noted(desk.engine, name) == [2]
    drain(reader)
    assert reader.redrive() == (1, 0)
    assert desk.effects("c") == [1, 3, 5, 3, 4, 5, 2]


def test_what_a_reset_has_applied_again_is_not_redriven(desk: Desk, name: str) -> None:
    stream = desk.hw.stream(name)
    stream.write_many(entries(4))
    handler = Fixable(1, 3)

    def on_reset(conn: sa.Connection, _state: Any) -> None:
        conn.execute(sa.text("DELETE FROM effects WHERE consumer = 'c'"))

    reader = desk.consumer("c", name, handler, on_reset=on_reset, **SKIPS)
    drain(reader)
    handler.places.clear()
    write_reset(stream, "c", 2, None)
    drain(reader)
    assert noted(desk.engine, name) == [1]
    assert reader.redrive() == (1, 0)
    assert desk.effects("c") == [3, 4, 1]


@pytest.mark.parametrize("again", ["seek", "reset"])
def test_a_letter_is_redriven_if_its_message_was_evicted_and_cannot_be_handled_again(
    desk: Desk, name: str, again: str
) -> None:
    stream = desk.hw.stream(name)
    stream.write_many(entries(5))
    handler = Fixable(2, 4)
    options = {"on_gap": "skip", "on_reset": lambda _conn, _state: None, **SKIPS}
    reader = desk.consumer("c", name, handler, **options)
    drain(reader)
    handler.places.clear()
    stream.evict(3)
    if again == "seek":
        reader.seek(1)
    else:
        write_reset(stream, "c", 0, None)
    drain(reader)
    assert noted(desk.engine, name) == [2]
    assert reader.redrive() == (1, 0)
    assert sorted(desk.effects("c")) == [1, 2, 3, 4, 5, 5]


def test_a_consumer_that_is_removed_and_begins_again_gives_up_anew(desk: Desk, name: str) -> None:
    desk.hw.stream(name).write_many(entries(3))
    handler = Fixable(2)
    drain(desk.consumer("c", name, handler, **SKIPS))
    assert desk.consumer("c", name, handler, **SKIPS).remove()
    handler.places.clear()
    reader = desk.consumer("c", name, handler, **SKIPS)
    drain(reader)
    assert (reader.redrive(), noted(desk.engine, name)) == ((0, 0), [])
    assert desk.effects("c") == [1, 3, 1, 2, 3]


@pytest.mark.parametrize("again", [4, 2])
def test_letters_of_a_stream_that_was_deleted_count_beside_those_of_its_successor(
    desk: Desk, name: str, again: int
) -> None:
    """The new stream has the same messages at first, so that their letters look alike, too."""
    stream = desk.hw.stream(name)
    stream.write_many(entries(4))
    handler = Fixable(2, 4)
    reader = desk.consumer("c", name, handler, **SKIPS)
    drain(reader)
    stream.delete()
    stream.write_many(entries(5))
    handler.places = {again}
    reader.seek("first")
    drain(reader)
    assert [one.origin for one in reader.dead()] == [2, 4, again]
    assert noted(desk.engine, name) == sorted([2, 4, again])
    handler.places.clear()
    assert reader.redrive() == (3, 0)
    assert desk.effects("c") == [1, 3, *numbers(1, 5, [again]), 2, 4, again]
    assert (reader.dead(), noted(desk.engine, name)) == ([], [])


def test_a_note_of_a_deleted_stream_does_not_make_a_letter_of_its_successor_count(
    desk: Desk, name: str
) -> None:
    stream = desk.hw.stream(name)
    stream.write_many(entries(4))
    handler = Fixable(3)
    drain(desk.consumer("c", name, handler, **SKIPS))
    stream.delete()
    stream.write_many(entries(5))
    dying = desk.consumer("c", name, handler, steps=die_at("buried"), **SKIPS)
    dying.seek("first")
    with pytest.raises(Killed):
        drain(dying)
    handler.places.clear()
    reader = desk.consumer("c", name, handler, **SKIPS)
    assert reader.redrive() == (1, 0), "that of the new stream is not decided"
    assert desk.effects("c") == [1, 2, 4, 1, 2, 3]
    drain(reader)
    assert reader.redrive() == (0, 0)
    assert desk.effects("c") == [1, 2, 4, 1, 2, 3, 3, 4, 5]
    assert reader.dead() == []


def test_a_reset_on_a_new_stream_leaves_the_letters_of_the_deleted_one(
    desk: Desk, name: str
) -> None:
    stream = desk.hw.stream(name)
    stream.write_many(entries(4))
    handler = Fixable(2, 3)
    options = {"on_reset": lambda _conn, _state: None, **SKIPS}
    reader = desk.consumer("c", name, handler, **options)
    drain(reader)
    handler.places.clear()
    stream.delete()
    stream.write_many(entries(4))
    write_reset(stream, "c", 0, None)
    drain(reader)
    assert noted(desk.engine, name) == [2, 3]
    assert reader.redrive() == (2, 0)
    assert desk.effects("c") == [1, 4, 1, 2, 3, 4, 2, 3]


def test_letters_that_note_nothing_count(
    desk: Desk, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk.hw.stream(name).write_many(entries(4))
    handler = Fixable(2, 3)
    reader = desk.consumer("c", name, handler, **SKIPS)
    with monkeypatch.context() as unnoted:
        unnoted.setattr(letters_module, "NOTED", "x-nothing")
        drain(reader)
    with desk.engine.begin() as conn:
        conn.execute(sa.text("DELETE FROM headwater_given_up WHERE stream = :s"), {"s": name})
    handler.places = {3}
    assert reader.redrive() == (1, 1)
    handler.places.clear()
    assert reader.redrive() == (1, 0)
    assert desk.effects("c") == [1, 4, 2, 3]


def test_a_database_that_lacks_a_table_is_told_to_be_completed(desk: Desk, name: str) -> None:
    desk.hw.stream(name).write_many(entries(3))
    with desk.engine.begin() as conn:
        conn.execute(sa.text("ALTER TABLE headwater_given_up RENAME TO set_aside"))
    try:
        with pytest.raises(NotCreated, match="headwater_given_up"):
            desk.consumer("c", name, Fixable(2), **SKIPS).run_once()
        assert desk.effects("c") == []
        with desk.engine.begin() as conn:
            conn.execute(sa.text("DROP TABLE set_aside"))
        Outbox(desk.engine).create_all()
    finally:
        with contextlib.suppress(Exception):
            Outbox(desk.engine).create_all()
    reader = desk.consumer("c", name, Fixable(2), **SKIPS)
    drain(reader)
    assert noted(desk.engine, name) == [2]


# Dead letters of a consumer say where they came from and why; a repeat of one is not a second.


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
    [letter] = desk.hw.store.run(letters.listed(9)).letters
    assert (letter.attempts, letter.cause) == (1, Cause("ValueError", "once"))
    other = Message(7, "t", b"of a stream that was made anew", 0)
    desk.hw.store.run(letters.bury(GivenUp(other, 1, 1, ValueError()), "consumer:c"))
    listed = desk.hw.store.run(letters.listed(9)).letters
    assert [letter.value for letter in listed] == [b"bad", b"of a stream that was made anew"]
    matching = LetterFilter(error="once")
    assert desk.hw.store.run(letters.listed(9, matching)).letters == [letter]
    assert desk.hw.store.run(letters.listed(1, place="2")).letters == listed[1:]


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


# ── Dead letters of consumers are discarded with their notes in SQL, and no others ───────────────


def origins(consumer: Consumer) -> list[int | None]:
    return [letter.origin for letter in consumer.dead()]


def test_letters_are_discarded_with_their_notes(desk: Desk, name: str) -> None:
    desk.hw.stream(name).write_many(entries(6))
    handler = Fixable(2, 4, 5)
    reader = desk.consumer("c", name, handler, **SKIPS)
    assert reader.discard() == 0
    drain(reader)
    assert reader.discard(2) == 2
    assert (origins(reader), noted(desk.engine, name)) == ([5], [5])
    assert reader.discard(2) == 0
    handler.places = {6}
    desk.hw.stream(name).write("t", b"7")
    reader.seek(6)
    drain(reader)
    assert reader.discard() == 2
    assert (origins(reader), noted(desk.engine, name)) == ([], [])
    handler.places.clear()
    assert reader.redrive() == (0, 0)
    assert desk.effects("c") == [1, 3, 6, 7]
    assert reader.discard() == 0


def test_a_letter_that_failed_again_stays_although_the_first_one_is_discarded(
    desk: Desk, name: str
) -> None:
    desk.hw.stream(name).write_many(entries(5))
    handler = Fixable(2, 4)
    reader = desk.consumer("c", name, handler, **SKIPS)
    drain(reader)
    with pytest.raises(Killed):
        desk.consumer("c", name, handler, steps=die_at("buried"), **SKIPS).redrive()
    assert origins(reader) == [2, 4, 2]
    assert reader.discard(2) == 2
    assert (origins(reader), noted(desk.engine, name)) == ([2], [2])
    handler.places.clear()
    assert reader.redrive() == (1, 0)
    assert desk.effects("c") == [1, 3, 5, 2]


def test_a_letter_that_is_discarded_before_its_message_is_given_up_is_not_noted(
    desk: Desk, name: str
) -> None:
    desk.hw.stream(name).write_many(entries(4))

    def discard(step: str) -> None:
        if step == "buried":
            other = Consumer("c", name, desk.engine, desk.hw, Fixable(), **SKIPS)
            assert other.discard() == 1

    reader = desk.consumer("c", name, Fixable(2, 3), steps=discard, **SKIPS)
    drain(reader)
    assert desk.effects("c") == [1, 4]
    assert (origins(reader), noted(desk.engine, name)) == ([], [])


def test_letters_of_a_deleted_stream_are_discarded_with_their_notes(desk: Desk, name: str) -> None:
    stream = desk.hw.stream(name)
    stream.write_many(entries(3))
    handler = Fixable(2)
    reader = desk.consumer("c", name, handler, **SKIPS)
    drain(reader)
    stream.delete()
    stream.write_many(entries(3))
    reader.seek("first")
    drain(reader)
    assert origins(reader) == [2, 2]
    assert reader.discard(1) == 1
    assert (origins(reader), noted(desk.engine, name)) == ([2], [2])
    handler.places.clear()
    assert reader.redrive() == (1, 0)


def test_letters_of_one_stream_or_partition_are_discarded(desk: Desk, name: str) -> None:
    other = f"{name}-other"
    for stream in (name, other):
        desk.hw.stream(stream).write_many(entries(3))
    reader = desk.consumer("c", [name, other], Fixable(1, 2), **SKIPS)
    drain(reader)
    with pytest.raises(InvalidInput, match=f"name it with stream: {name}, {other}"):
        reader.discard(1)
    with pytest.raises(InvalidInput, match="up_to"):
        reader.discard(0, stream=name)
    assert reader.discard(1, stream=other) == 1
    assert (noted(desk.engine, name), noted(desk.engine, other)) == ([1, 2], [2])
    assert reader.discard() == 3


def test_letters_of_a_partition_are_discarded(desk: Desk, name: str) -> None:
    topic: Any = desk.hw.topic(name, partitions=2)
    topic.write_many(entries(20, tags=8))
    reader = desk.consumer("c", topic, Fixable(1, 2), **SKIPS)
    drain(reader)
    with pytest.raises(InvalidInput, match=f"name it with stream: {name}/0"):
        reader.discard(1)
    assert reader.discard(1, stream=f"{name}/1") == 1
    assert (noted(desk.engine, f"{name}/0"), noted(desk.engine, f"{name}/1")) == ([1, 2], [2])
    with pytest.raises(InvalidInput, match="partition 2"):
        reader.discard(stream=f"{name}/2")
    assert reader.discard() == 3
    assert (noted(desk.engine, f"{name}/0"), noted(desk.engine, f"{name}/1")) == ([], [])
