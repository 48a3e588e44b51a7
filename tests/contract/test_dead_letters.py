"""Dead letters: what a group gave up is kept in a stream of its own, and can be given back."""

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
from headwater.log.keys import stream_key
from headwater.store.call import Call, Operation
from tests.support.entries import entries, offsets, pairs
from tests.support.groups import FAR
from tests.support.watch import let_pass


def let_expire(client: Headwater, group: Group, count: int) -> list[int]:
    """Take messages and let them expire; returns their offsets."""
    got = offsets(group.read(count, ack_ms=FAR, expire_ms=1))
    let_pass(client, 1)
    return got


def test_an_expired_message_goes_to_the_dead_letters(client: Headwater, stream: Stream) -> None:
    rows = entries(6)
    stream.write_many(rows)
    group = stream.group("g", dead_letters=True)
    assert let_expire(client, group, 4) == [1, 2, 3, 4]
    assert offsets(group.read(10, ack_ms=FAR)) == [5, 6]
    letters = group.dead()
    assert {str(d.cause) for d in letters} == {"expired"}
    assert [(d.origin, d.attempts, d.tag, d.value) for d in letters] == [
        (i, 1, *rows[i - 1]) for i in range(1, 5)
    ]
    info = group.info()
    assert (info.dead, info.expired, info.pending) == (4, 4, 2)
    assert info.dead_letters == f"{stream.name}.g.dead"


def test_the_dead_letters_are_a_stream_like_any_other(client: Headwater, stream: Stream) -> None:
    rows = entries(5)
    stream.write_many(rows)
    group = stream.group("g", dead_letters=f"{stream.name}.grave")
    let_expire(client, group, 5)
    assert group.bury() == 5
    grave = client.stream(f"{stream.name}.grave")
    assert pairs(grave.read(1, 10)) == rows
    assert grave.name in client.streams()
    assert offsets(grave.group("mourners").read(10)) == [1, 2, 3, 4, 5]


def test_any_number_of_messages_expires_at_once(client: Headwater, stream: Stream) -> None:
    rows = entries(3300)
    stream.write_many(rows)
    group = stream.group("g", dead_letters=True)
    assert len(let_expire(client, group, 5000)) == 3300
    assert group.bury() == 3300
    info = group.info()
    assert (info.dead, info.pending) == (3300, 0)
    letters = group.dead(5000)
    assert [(d.origin, d.value) for d in letters] == [(i + 1, rows[i][1]) for i in range(3300)]


def test_many_ranges_expire_at_once(client: Headwater, stream: Stream) -> None:
    stream.write_many(entries(600))
    group = stream.group("g", dead_letters=True)
    group.read(600, ack_ms=FAR, expire_ms=1)
    group.ack(*range(2, 601, 2))
    let_pass(client, 1)
    while group.info().pending:
        group.read(1, ack_ms=FAR)
    assert sorted(d.origin for d in group.dead(1000)) == list(range(1, 601, 2))


def test_any_number_of_ranges_can_be_redriven(client: Headwater, stream: Stream) -> None:
    stream.write_many(entries(3600))
    group = stream.group("g", dead_letters=True)
    group.read(3600, ack_ms=FAR, expire_ms=1)
    group.ack(*range(2, 3601, 2))
    let_pass(client, 1)
    assert group.bury() == 1800
    stream.evict(2400)
    assert group.redrive(100) == (100, 1200)
    assert group.redrive() == (500, 1200)
    assert offsets(group.read(1000, ack_ms=FAR)) == list(range(2401, 3601, 2))


def test_a_message_that_died_twice_is_redelivered_once(client: Headwater, stream: Stream) -> None:
    stream.write_many(entries(5))
    group = stream.group("g", dead_letters=True)
    group.read(0)
    for start, count in ((1, 3), (2, 4)):
        group.seek(start)
        let_expire(client, group, count)
        group.bury()
    assert group.redrive() == (7, 0)
    assert group.info().pending == 5
    assert offsets(group.read(10, ack_ms=FAR)) == [1, 2, 3, 4, 5]
    assert group.ack((1, 5)) == 5
    assert group.info().pending == 0


def begin_to_bury(client: Headwater, stream: Stream, group: str) -> None:
    """Number a batch and note it, as a program does that dies before it writes the letters."""

    def begin() -> Operation[None]:
        yield Call("hw_group_expire", stream_key(stream.name), (group, 0))
        yield Call("hw_group_bury", stream_key(stream.name), (group, "", 0, 10))

    client.store.run(begin())


def test_messages_that_are_acked_while_they_are_buried_are_done(
    client: Headwater, stream: Stream
) -> None:
    stream.write_many(entries(3))
    group = stream.group("g", dead_letters=True)
    let_expire(client, group, 3)
    begin_to_bury(client, stream, "g")
    assert group.ack((1, 3)) == 3
    assert group.bury() == 0
    info = group.info()
    assert (info.pending, info.dead, info.expired, info.ack_offset) == (0, 0, 0, 4)
    assert group.dead() == []
    assert group.redrive() == (0, 0)
    assert group.read(10, ack_ms=FAR) == []


def test_only_what_was_not_acked_meanwhile_becomes_a_dead_letter(
    client: Headwater, stream: Stream
) -> None:
    rows = entries(9)
    stream.write_many(rows)
    group = stream.group("g", dead_letters=True)
    let_expire(client, group, 9)
    begin_to_bury(client, stream, "g")
    assert group.ack(1, (4, 5), 9) == 4
    assert group.bury() == 5
    assert [(d.origin, d.tag, d.value) for d in group.dead()] == [
        (i, *rows[i - 1]) for i in (2, 3, 6, 7, 8)
    ]
    info = group.info()
    assert (info.pending, info.dead, info.expired) == (0, 5, 5)
    assert group.redrive() == (5, 0)
    assert offsets(group.read(10, ack_ms=FAR)) == [2, 3, 6, 7, 8]


def test_attempts_are_told(client: Headwater, stream: Stream) -> None:
    stream.write("a", b"1")
    group = stream.group("g", dead_letters=True)
    group.read(1, ack_ms=1, expire_ms=FAR)
    for _ in range(3):
        let_pass(client, 1)
        assert len(group.read(1, ack_ms=1)) == 1
    group.remove()
    group.read(1, ack_ms=1, expire_ms=15)
    attempts = 1
    while not group.dead():
        attempts += len(group.read(1, ack_ms=1))
        group.nack(1)
    (letter,) = group.dead()
    assert letter.attempts == attempts


def test_dead_letters_survive_eviction_and_the_end_of_the_group(
    client: Headwater, stream: Stream
) -> None:
    rows = entries(3)
    stream.write_many(rows)
    group = stream.group("g", dead_letters=f"{stream.name}.grave")
    let_expire(client, group, 3)
    group.bury()
    stream.evict(3)
    assert [(d.tag, d.value) for d in group.dead()] == rows
    group.remove()
    assert pairs(client.stream(f"{stream.name}.grave").read(1, 9)) == rows
    stream.delete()
    assert pairs(client.stream(f"{stream.name}.grave").read(1, 9)) == rows


def test_what_the_log_no_longer_holds_stays_among_the_dead(
    client: Headwater, stream: Stream
) -> None:
    stream.write_many(entries(6))
    group = stream.group("g", dead_letters=True)
    let_expire(client, group, 2)
    group.bury()
    let_expire(client, group, 2)
    group.bury()
    stream.evict(2)
    assert group.redrive() == (2, 2)
    assert offsets(group.read(10, ack_ms=FAR)) == [3, 4, 5, 6]
    assert [d.origin for d in group.dead()] == [1, 2]


def test_a_range_of_letters_evicted_in_part_returns_the_rest(
    client: Headwater, stream: Stream
) -> None:
    stream.write_many(entries(6))
    group = stream.group("g", dead_letters=True)
    let_expire(client, group, 4)
    group.bury()
    stream.evict(2)
    assert group.redrive() == (2, 2)
    assert [d.origin for d in group.dead()] == [1, 2]
    assert offsets(group.read(10, ack_ms=FAR)) == [3, 4, 5, 6]


def test_dead_looks_at_the_oldest_letters_only(client: Headwater, stream: Stream) -> None:
    stream.write_many(entries(10))
    group = stream.group("g", dead_letters=True)
    for size in (3, 4, 3):
        let_expire(client, group, size)
        group.bury()
    assert [d.origin for d in group.dead(5)] == [1, 2, 3, 4, 5]
    assert group.dead(0) == []
    assert [d.origin for d in group.dead(100)] == list(range(1, 11))


def test_letters_stay_in_one_stream_until_there_are_none(client: Headwater, stream: Stream) -> None:
    stream.write_many(entries(4))
    here, there = f"{stream.name}.here", f"{stream.name}.there"
    group = stream.group("g", dead_letters=here)
    let_expire(client, group, 1)
    group.bury()
    with pytest.raises(InvalidInput, match="redrive them"):
        stream.group("g", dead_letters=there).read(1)
    group.redrive()
    moved = stream.group("g", dead_letters=there)
    let_expire(client, moved, 1)
    moved.bury()
    assert [(d.origin, d.value) for d in moved.dead()] == [(1, entries(4)[0][1])]
    assert client.stream(there).info().length == 1


def test_a_group_that_comes_again_buries_its_own_letters(client: Headwater, stream: Stream) -> None:
    for life in (1, 2, 3):
        group = stream.group("g", dead_letters=True)
        stream.write_many([("t", b"%d.%d" % (life, i)) for i in range(5)])
        group.read(0)
        group.seek("last")
        stream.write_many([("t", b"%d.%d" % (life, i)) for i in range(5, 8)])
        let_expire(client, group, 10)
        assert group.bury() == 3
        assert [letter.value for letter in group.dead()] == [
            b"%d.%d" % (life, i) for i in (5, 6, 7)
        ]
        group.remove()
    grave = client.stream(f"{stream.name}.g.dead")
    assert grave.info().last == 9, "no letter was taken for one of an earlier life"


def test_groups_of_like_names_share_a_stream_of_the_dead(client: Headwater, name: str) -> None:
    for stream_name, group_name in ((f"{name}:a", "b"), (name, "a:b")):
        stream = client.stream(stream_name)
        stream.write("t", group_name.encode())
        group = stream.group(group_name, dead_letters=f"{name}.grave")
        let_expire(client, group, 1)
        assert group.bury() == 1
        assert [letter.value for letter in group.dead()] == [group_name.encode()]
    assert client.stream(f"{name}.grave").info().last == 2


def test_names_of_any_length_have_dead_letters(client: Headwater, name: str) -> None:
    long = name.ljust(200, "-")
    stream = client.stream(long)
    stream.write("t", b"v")
    group = stream.group(long, dead_letters=f"{name}.grave")
    let_expire(client, group, 1)
    assert group.bury() == 1
    with pytest.raises(InvalidInput, match="name"):
        stream.group(long, dead_letters=True)


# ── Dead letters are chosen by name or by a filter, and redriven or discarded; the others stay ───


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


def origins_of(letters: list[DeadLetter]) -> list[int]:
    return sorted(letter.origin for letter in letters)


TIMED_OUT = LetterFilter(error="timeouterror")


def test_letters_that_are_named_are_redelivered_and_the_others_stay(group: Group) -> None:
    letters = group.dead()
    assert group.redrive(letters=letters[0]) == (1, 0)
    assert group.redrive(letters=[letters[0], letters[1], 5, (7, 8)]) == (4, 0)
    assert [m.offset for m in group.read(20, ack_ms=FAR)] == [1, 2, 5, 7, 8]
    assert origins_of(group.dead()) == [3, 4, 6, 9, 10, 11, 12]
    assert group.info().dead == 7
    assert group.redrive(letters=[]) == group.redrive(letters=[1, 15]) == (0, 0)


def test_no_more_than_a_count_of_named_letters_is_redelivered(group: Group) -> None:
    assert group.redrive(2, letters=(3, 12)) == (2, 0)
    assert group.info().dead == 10


def test_letters_of_evicted_messages_stay(stream: Stream, group: Group) -> None:
    stream.evict(4)
    assert group.redrive(letters=(1, 6)) == (2, 4)
    assert origins_of(group.dead()) == [1, 2, 3, 4, *range(7, 13)]


def test_dead_letters_are_found_by_error_tag_attempts_and_time(group: Group) -> None:
    assert origins_of(group.dead(matching=TIMED_OUT)) == [3, 6, 9, 12]
    assert origins_of(group.dead(2, matching=TIMED_OUT)) == [3, 6]
    assert origins_of(group.dead(matching=LetterFilter(tag=entries(7)[6][0], error="RIDE"))) == [7]
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
    assert origins_of(group.dead()) == [6, 9, 12]
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


# ── Dead letters of a group are discarded: those named, the oldest, or all; the others stay ──────


@pytest.fixture
def buried_group(stream: Stream) -> Group:
    """A group with the dead letters 1 to 10 and 15 to 20; all others are pending."""
    stream.write_many(entries(20))
    found = stream.group("g", dead_letters=True)
    found.read(20, ack_ms=FAR)
    found.bury((1, 10), error="no such ride")
    found.bury((15, 20), error="no such ride")
    return found


def origins(buried_group: Group) -> list[int]:
    letters = buried_group.dead()
    assert buried_group.info().dead == len(letters)
    assert all(letter.cause for letter in letters), "what stays keeps its cause"
    return [letter.origin for letter in letters]


def test_letters_are_named_by_the_offsets_that_their_messages_had(buried_group: Group) -> None:
    assert buried_group.discard([3, range(5, 8), (9, 16)]) == 8
    assert origins(buried_group) == [1, 2, 4, 8, 17, 18, 19, 20]
    assert buried_group.discard(12) == 0
    assert buried_group.discard([]) == 0
    assert buried_group.discard((1, 10**6)) == 8


def test_the_oldest_go_first(buried_group: Group) -> None:
    assert buried_group.discard(count=12) == 12
    assert origins(buried_group) == [17, 18, 19, 20]
    assert buried_group.discard((17, 20), count=3) == 3
    assert buried_group.discard(count=0) == 0
    assert buried_group.discard() == 1
    assert buried_group.discard() == 0


def test_the_stream_of_the_dead_letters_keeps_what_is_discarded(
    client: Headwater, stream: Stream, buried_group: Group
) -> None:
    buried_group.discard()
    grave = client.stream(f"{stream.name}.g.dead")
    assert [m and m.value for m in grave.read(1, 3)] == [value for _, value in entries(3)]
    stream.group("g", dead_letters=f"{stream.name}.other").read(0)
    assert buried_group.info().dead_letters == f"{stream.name}.other", (
        "nothing lies in the first any more"
    )


def test_a_letter_of_an_earlier_group_names_no_letter_of_this_one(
    client: Headwater, stream: Stream, buried_group: Group
) -> None:
    before = buried_group.dead()
    buried_group.remove()
    client.stream(f"{stream.name}.g.dead").delete()
    buried_group.read(20, ack_ms=FAR)
    buried_group.bury((11, 20), error="again")
    assert buried_group.discard(before) == 0
    assert origins(buried_group) == list(range(11, 21))


def test_any_number_of_ranges_is_discarded(stream: Stream) -> None:
    stream.write_many(entries(1400))
    buried_group = stream.group("g", dead_letters=True)
    buried_group.read(1400, ack_ms=FAR)
    buried_group.ack(*range(2, 1401, 2))
    assert buried_group.bury((1, 1400)) == 700
    assert buried_group.info().dead == 700
    assert buried_group.discard(buried_group.dead(200)) == 200
    assert buried_group.discard([(1, 500), 701]) == 51
    assert buried_group.discard(count=148) == 148
    assert buried_group.dead(1)[0].origin == 799
    assert buried_group.discard() == 301
    assert buried_group.info().dead == 0


def test_the_dead_letters_of_a_topic_are_discarded_by_partition(
    client: Headwater, name: str
) -> None:
    topic = client.topic(name, partitions=3)
    topic.write_many(entries(60, tags=40))
    buried_group = topic.group("g", dead_letters=True)
    while messages := buried_group.read(100, ack_ms=FAR):
        buried_group.bury(*messages)
    before = [info.dead for info in buried_group.info()]
    letters = buried_group.dead()
    of_one = [letter for letter in letters if letter.partition == 1]
    assert buried_group.discard(of_one[0]) == 1
    assert buried_group.discard([*of_one, (2, [1, 2])]) == len(of_one) + 1
    assert [info.dead for info in buried_group.info()] == [before[0], 0, before[2] - 2]
    assert buried_group.discard({0: (1, 2)}) == 2
    assert buried_group.discard(count=before[0] - 1) == before[0] - 1
    assert [info.dead for info in buried_group.info()] == [0, 0, before[2] - 3]
    assert buried_group.discard() == before[2] - 3
    with pytest.raises(InvalidInput, match="partition"):
        buried_group.discard((7, 1))


def test_what_is_no_letter_is_refused(stream: Stream, buried_group: Group) -> None:
    for wrong in ("1", [b"x"], (5, 3), 0, [1.5], {1: 2}):
        with pytest.raises(InvalidInput):
            buried_group.discard(wrong)  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="count"):
        buried_group.discard(count=-1)
    assert len(origins(buried_group)) == 16
    for letters in (None, 1):
        with pytest.raises(UnknownGroup):
            stream.group("nobody").discard(letters)
