"""A message has its effect once, as itself or as a dead letter, whoever is killed or overtaken."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
import sqlalchemy as sa

from headwater import NotCreated
from headwater.outbox import Consumer, Outbox, write_reset
from headwater.outbox import consumer_letters as letters_module
from tests.support.consumer_letters import SKIPS, Fixable, Killed, die_at, noted
from tests.support.consumers import Desk, drain, numbers
from tests.support.entries import entries


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
