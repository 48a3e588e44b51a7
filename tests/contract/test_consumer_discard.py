"""Dead letters of consumers are discarded with their notes in SQL, and no others."""

from __future__ import annotations

from typing import Any

import pytest

from headwater import InvalidInput
from headwater.outbox import Consumer
from tests.support.consumer_letters import SKIPS, Fixable, Killed, die_at, noted
from tests.support.consumers import Desk, drain
from tests.support.entries import entries


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
