"""Dead letters of a group are discarded: those named, the oldest, or all; the others stay."""

from __future__ import annotations

import pytest

from headwater import Group, Headwater, InvalidInput, Stream, UnknownGroup
from tests.support.entries import entries
from tests.support.groups import FAR


@pytest.fixture
def group(stream: Stream) -> Group:
    """A group with the dead letters 1 to 10 and 15 to 20; all others are pending."""
    stream.write_many(entries(20))
    found = stream.group("g", dead_letters=True)
    found.read(20, ack_ms=FAR)
    found.bury((1, 10), error="no such ride")
    found.bury((15, 20), error="no such ride")
    return found


def origins(group: Group) -> list[int]:
    letters = group.dead()
    assert group.info().dead == len(letters)
    assert all(letter.cause for letter in letters), "what stays keeps its cause"
    return [letter.origin for letter in letters]


def test_letters_that_are_named_go_and_the_others_stay(group: Group) -> None:
    letters = group.dead()
    assert group.discard(letters[2]) == 1
    assert group.discard([letters[2], letters[4], letters[0], letters[9], letters[10]]) == 4
    assert origins(group) == [2, 4, 6, 7, 8, 9, 16, 17, 18, 19, 20]
    assert group.discard(letters) == 11
    assert origins(group) == []


def test_letters_are_named_by_the_offsets_that_their_messages_had(group: Group) -> None:
    assert group.discard([3, range(5, 8), (9, 16)]) == 8
    assert origins(group) == [1, 2, 4, 8, 17, 18, 19, 20]
    assert group.discard(12) == 0
    assert group.discard([]) == 0
    assert group.discard((1, 10**6)) == 8


def test_the_oldest_go_first(group: Group) -> None:
    assert group.discard(count=12) == 12
    assert origins(group) == [17, 18, 19, 20]
    assert group.discard((17, 20), count=3) == 3
    assert group.discard(count=0) == 0
    assert group.discard() == 1
    assert group.discard() == 0


def test_what_is_discarded_is_neither_redriven_nor_pending(group: Group) -> None:
    group.discard((2, 9))
    assert group.redrive() == (8, 0)
    assert [m.offset for m in group.read(20, ack_ms=FAR)] == [1, 10, *range(15, 21)]
    assert group.info().pending == 12


def test_the_stream_of_the_dead_letters_keeps_what_is_discarded(
    client: Headwater, stream: Stream, group: Group
) -> None:
    group.discard()
    grave = client.stream(f"{stream.name}.g.dead")
    assert [m and m.value for m in grave.read(1, 3)] == [value for _, value in entries(3)]
    stream.group("g", dead_letters=f"{stream.name}.other").read(0)
    assert group.info().dead_letters == f"{stream.name}.other", "nothing lies in the first any more"


def test_a_letter_of_an_earlier_group_names_no_letter_of_this_one(
    client: Headwater, stream: Stream, group: Group
) -> None:
    before = group.dead()
    group.remove()
    client.stream(f"{stream.name}.g.dead").delete()
    group.read(20, ack_ms=FAR)
    group.bury((11, 20), error="again")
    assert group.discard(before) == 0
    assert origins(group) == list(range(11, 21))


def test_any_number_of_ranges_is_discarded(stream: Stream) -> None:
    stream.write_many(entries(1400))
    group = stream.group("g", dead_letters=True)
    group.read(1400, ack_ms=FAR)
    group.ack(*range(2, 1401, 2))
    assert group.bury((1, 1400)) == 700
    assert group.info().dead == 700
    assert group.discard(group.dead(200)) == 200
    assert group.discard([(1, 500), 701]) == 51
    assert group.discard(count=148) == 148
    assert group.dead(1)[0].origin == 799
    assert group.discard() == 301
    assert group.info().dead == 0


def test_the_dead_letters_of_a_topic_are_discarded_by_partition(
    client: Headwater, name: str
) -> None:
    topic = client.topic(name, partitions=3)
    topic.write_many(entries(60, tags=40))
    group = topic.group("g", dead_letters=True)
    while messages := group.read(100, ack_ms=FAR):
        group.bury(*messages)
    before = [info.dead for info in group.info()]
    letters = group.dead()
    of_one = [letter for letter in letters if letter.partition == 1]
    assert group.discard(of_one[0]) == 1
    assert group.discard([*of_one, (2, [1, 2])]) == len(of_one) + 1
    assert [info.dead for info in group.info()] == [before[0], 0, before[2] - 2]
    assert group.discard({0: (1, 2)}) == 2
    assert group.discard(count=before[0] - 1) == before[0] - 1
    assert [info.dead for info in group.info()] == [0, 0, before[2] - 3]
    assert group.discard() == before[2] - 3
    with pytest.raises(InvalidInput, match="partition"):
        group.discard((7, 1))


def test_what_is_no_letter_is_refused(stream: Stream, group: Group) -> None:
    for wrong in ("1", [b"x"], (5, 3), 0, [1.5], {1: 2}):
        with pytest.raises(InvalidInput):
            group.discard(wrong)  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="count"):
        group.discard(count=-1)
    assert len(origins(group)) == 16
    for letters in (None, 1):
        with pytest.raises(UnknownGroup):
            stream.group("nobody").discard(letters)
