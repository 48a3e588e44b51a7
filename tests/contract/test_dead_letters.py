"""Dead letters: what a group gave up is kept in a stream of its own, and can be given back."""

from __future__ import annotations

import pytest

from headwater import Group, Headwater, InvalidInput, Stream
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


def test_bury_moves_what_has_expired_without_a_read(client: Headwater, stream: Stream) -> None:
    stream.write_many(entries(5))
    group = stream.group("g", dead_letters=True)
    let_expire(client, group, 3)
    assert group.bury() == 3
    assert group.bury() == 0
    assert [d.origin for d in group.dead()] == [1, 2, 3]
    assert group.info().pending == 0


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


def test_redrive_gives_letters_back_as_if_never_tried(client: Headwater, stream: Stream) -> None:
    stream.write_many(entries(5))
    group = stream.group("g", dead_letters=True)
    let_expire(client, group, 5)
    group.bury()
    assert group.redrive(2) == (2, 0)
    assert [(m.offset, m.attempt) for m in group.read(10, ack_ms=FAR)] == [(1, 1), (2, 1)]
    assert [d.origin for d in group.dead()] == [3, 4, 5]
    assert group.info().dead == 3
    assert group.redrive() == (3, 0)
    assert offsets(group.read(10, ack_ms=FAR)) == [3, 4, 5]
    assert group.redrive() == (0, 0)
    assert group.dead() == []
    assert group.ack((1, 5)) == 5
    assert group.info().ack_offset == 6


def test_a_redriven_message_can_die_again(client: Headwater, stream: Stream) -> None:
    stream.write("a", b"1")
    group = stream.group("g", dead_letters=True)
    for _ in range(3):
        assert let_expire(client, group, 1) == [1]
        assert group.bury() == 1
        assert [(d.origin, d.attempts) for d in group.dead()] == [(1, 1)]
        assert group.redrive() == (1, 0)
    assert group.info().expired == 3


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


def test_dead_letters_can_be_turned_on_and_off(client: Headwater, stream: Stream) -> None:
    stream.write_many(entries(6))
    assert let_expire(client, stream.group("g"), 2) == [1, 2]
    group = stream.group("g", dead_letters=True)
    assert let_expire(client, group, 2) == [3, 4]
    group.read(0)
    group.bury()
    off = stream.group("g", dead_letters=False)
    assert let_expire(client, off, 2) == [5, 6]
    off.read(1)
    info = off.info()
    assert (info.expired, info.pending, info.dead_letters) == (6, 0, None)


def test_a_seek_gives_dead_letters_no_second_life(client: Headwater, stream: Stream) -> None:
    stream.write_many(entries(3))
    group = stream.group("g", dead_letters=True)
    let_expire(client, group, 3)
    group.bury()
    group.seek("first")
    assert group.redrive() == (3, 0)
    got = group.read(10, ack_ms=FAR)
    while more := group.read(10, ack_ms=FAR):
        got += more
    assert offsets(got) == [1, 2, 3]
    assert group.ack((1, 3)) == 3
    assert group.info().pending == 0


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
