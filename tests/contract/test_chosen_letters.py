"""Dead letters are chosen by name or by a filter, and redriven or discarded; the others stay."""

from __future__ import annotations

import pytest

from headwater import (
    DeadLetter,
    Group,
    Headwater,
    InvalidInput,
    LetterFilter,
    Queue,
    Stream,
    UnknownGroup,
)
from tests.support.entries import entries
from tests.support.groups import FAR


@pytest.fixture
def group(stream: Stream) -> Group:
    """A group with the dead letters 1 to 12, every third of which failed by a timeout."""
    stream.write_many(entries(20))
    found = stream.group("g", dead_letters=True)
    found.read(20, ack_ms=FAR)
    found.bury((1, 12), error="no such ride")
    found.redrive(letters=[3, 6, 9, 12])
    found.read(20, ack_ms=FAR)
    found.bury(3, 6, 9, 12, error=TimeoutError("no answer"))
    return found


def origins(letters: list[DeadLetter]) -> list[int]:
    return sorted(letter.origin for letter in letters)


TIMED_OUT = LetterFilter(error="timeouterror")


def test_letters_that_are_named_are_redelivered_and_the_others_stay(group: Group) -> None:
    letters = group.dead()
    assert group.redrive(letters=letters[0]) == (1, 0)
    assert group.redrive(letters=[letters[0], letters[1], 5, (7, 8)]) == (4, 0)
    assert [m.offset for m in group.read(20, ack_ms=FAR)] == [1, 2, 5, 7, 8]
    assert origins(group.dead()) == [3, 4, 6, 9, 10, 11, 12]
    assert group.info().dead == 7
    assert group.redrive(letters=[]) == group.redrive(letters=[1, 15]) == (0, 0)


def test_no_more_than_a_count_of_named_letters_is_redelivered(group: Group) -> None:
    assert group.redrive(2, letters=(3, 12)) == (2, 0)
    assert group.info().dead == 10


def test_letters_of_evicted_messages_stay(stream: Stream, group: Group) -> None:
    stream.evict(4)
    assert group.redrive(letters=(1, 6)) == (2, 4)
    assert origins(group.dead()) == [1, 2, 3, 4, *range(7, 13)]


def test_dead_letters_are_found_by_error_tag_attempts_and_time(group: Group) -> None:
    assert origins(group.dead(matching=TIMED_OUT)) == [3, 6, 9, 12]
    assert origins(group.dead(2, matching=TIMED_OUT)) == [3, 6]
    assert origins(group.dead(matching=LetterFilter(tag=entries(7)[6][0], error="RIDE"))) == [7]
    assert group.dead(matching=LetterFilter(min_attempts=2)) == []
    newest = max(letter.buried_ms for letter in group.dead())
    assert len(group.dead(matching=LetterFilter(after_ms=0, before_ms=newest + 1))) == 12
    assert group.dead(matching=LetterFilter(after_ms=newest + 1)) == []


def test_all_letters_that_fit_are_redelivered_or_discarded(group: Group) -> None:
    assert group.redrive(1, matching=TIMED_OUT) == (1, 0)
    assert group.redrive(matching=TIMED_OUT) == (3, 0)
    assert sorted(m.offset for m in group.read(20, ack_ms=FAR)) == [3, 6, 9, 12]
    assert group.discard(matching=LetterFilter(error="ride"), count=3) == 3
    assert group.discard(matching=LetterFilter(error="ride")) == 5
    assert group.dead() == []


def test_a_walk_over_letters_ends_where_they_ended_when_it_began(group: Group) -> None:
    """What is redriven may die again at once; it is then another letter."""
    assert group.redrive(matching=LetterFilter()) == (12, 0)
    group.bury(group.read(20, ack_ms=FAR), error="again")
    assert group.info().dead == 12


def test_pages_of_letters_may_begin_within_a_range(stream: Stream) -> None:
    stream.write_many(entries(1300))
    group = stream.group("many", dead_letters=True)
    group.read(1300, ack_ms=FAR)
    group.bury((1, 1300), error="no")
    assert [one.origin for one in group.dead(1250)] == list(range(1, 1251))
    assert group.redrive(1100, matching=LetterFilter(error="no")) == (1100, 0)
    assert group.discard(matching=LetterFilter(error="no")) == 200


def test_letters_and_a_filter_exclude_each_other(stream: Stream, group: Group) -> None:
    for wrong in ({"letters": [1], "matching": TIMED_OUT}, {"matching": "timeout"}):
        with pytest.raises(InvalidInput):
            group.redrive(**wrong)
    with pytest.raises(InvalidInput, match="min_attempts"):
        LetterFilter(min_attempts=-1)
    with pytest.raises(InvalidInput, match="error"):
        LetterFilter(error=5)  # type: ignore[arg-type]
    with pytest.raises(UnknownGroup):
        stream.group("nobody").redrive(letters=[1])


@pytest.fixture
def queue(client: Headwater, name: str) -> Queue:
    """A queue with six dead letters, of which two timed out."""
    found = client.queue(name)
    found.push_many([str(number).encode() for number in range(6)])
    deliveries = found.pop(6, ack_ms=FAR)
    found.bury(deliveries[:4], error="no such ride")
    found.bury(deliveries[4:], error=TimeoutError("no answer"))
    return found


def test_letters_of_a_queue_are_chosen_by_id_place_and_filter(queue: Queue) -> None:
    letters = queue.dead()
    assert [one.value for one in queue.dead(matching=TIMED_OUT)] == [b"4", b"5"]
    assert queue.redrive([letters[0].id, letters[3].id, "17"]) == 2
    fresh = queue.dead()
    assert [one.value for one in fresh] == [b"1", b"2", b"4", b"5"]
    assert queue.discard([fresh[0].place]) == 1
    assert queue.redrive(matching=TIMED_OUT, count=1) == 1
    assert queue.redrive(matching=TIMED_OUT) == 1
    assert queue.discard(matching=LetterFilter(min_attempts=1)) == 1
    assert queue.dead() == []
    assert sorted(one.value for one in queue.pop(9)) == [b"0", b"3", b"4", b"5"]


def test_a_queue_refuses_what_names_no_letters(queue: Queue) -> None:
    for wrong in ("17", [17], ["letter"], [None]):
        with pytest.raises(InvalidInput):
            queue.redrive(wrong)  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="not both"):
        queue.discard([], matching=TIMED_OUT)


def test_letters_of_a_topic_are_chosen_by_partition_and_filter(
    client: Headwater, name: str
) -> None:
    topic = client.topic(name, partitions=2)
    topic.write_many(entries(8))
    group = topic.group("g", dead_letters=True)
    messages = group.read(8, ack_ms=FAR)
    group.bury(messages[:5], error="no such ride")
    group.bury(messages[5:], error=TimeoutError())
    late = group.dead(matching=TIMED_OUT)
    assert len(late) == 3
    assert sum(one.redriven for one in group.redrive(letters=late[:1]).values()) == 1
    assert sum(one.redriven for one in group.redrive(matching=TIMED_OUT).values()) == 2
    assert group.discard(matching=LetterFilter(error="ride")) == 5


def test_letters_of_a_group_are_moved_at_a_rate(hw: Headwater, group: Group) -> None:
    begun = hw.store.clock()
    assert group.redrive(letters=[1, (3, 4)], rate_per_s=20) == (3, 0)
    assert group.discard(matching=LetterFilter(error="ride"), rate_per_s=20) == 6
    assert hw.store.clock() - begun >= 9 / 20
    assert origins(group.dead()) == [6, 9, 12]
    for wrong in (0, -1, 10**9):
        with pytest.raises(InvalidInput):
            group.redrive(rate_per_s=wrong)


def test_letters_of_a_queue_are_moved_at_a_rate(hw: Headwater, queue: Queue) -> None:
    letters = queue.dead()
    begun = hw.store.clock()
    assert queue.redrive(letters[:2], rate_per_s=20) == 2
    assert queue.discard(rate_per_s=20) == len(letters) - 2
    assert hw.store.clock() - begun >= len(letters) / 20
    assert queue.stats().dead == 0
    with pytest.raises(InvalidInput):
        queue.discard(rate_per_s=0)
