"""A group over a topic can do what a group of a stream can, and says in which partition."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterator

import pytest

from headwater import (
    FormatTooNew,
    Headwater,
    InvalidInput,
    Redriven,
    Topic,
    TopicGroup,
    TopicMessage,
    UnknownGroup,
)
from headwater.log.keys import stream_key
from headwater.store.call import Operation, Wait
from tests.support.entries import entries
from tests.support.groups import FAR
from tests.support.watch import let_pass


@pytest.fixture
def topic(client: Headwater, name: str) -> Iterator[Topic]:
    """A topic of three partitions; each has ten messages or more. None is left broken."""
    topic = client.topic(name, partitions=3)
    topic.write_many(entries(60, tags=30))
    assert min(info.length for info in topic.info()) >= 10
    yield topic
    for place in range(3):
        change_format(client, topic, place, "HDEL")


def lengths(topic: Topic) -> list[int]:
    return [info.length for info in topic.info()]


def take_all(group: TopicGroup, expire_ms: int | None = None) -> list[TopicMessage]:
    taken: list[TopicMessage] = []
    while got := group.read(100, ack_ms=FAR, expire_ms=expire_ms):
        taken += got
    return taken


def break_partition(client: Headwater, topic: Topic, place: int) -> None:
    """Let one partition be of a format that nobody knows."""
    change_format(client, topic, place, "HSET", 99)


def change_format(client: Headwater, topic: Topic, place: int, command: str, *words: int) -> None:
    key = stream_key(f"{topic.name}/{place}")

    def change() -> Operation[None]:
        yield Wait(key, (command, key, "format", *words), 1)

    client.store.run(change())


# ── Positions ────────────────────────────────────────────────────────────────────────────────


def test_a_topic_group_seeks_in_all_partitions(topic: Topic) -> None:
    group = topic.group("g")
    take_all(group)
    ends = {place: length + 1 for place, length in enumerate(lengths(topic))}
    assert group.seek("first") == {0: 1, 1: 1, 2: 1}
    assert len(take_all(group)) == 60
    assert group.seek("last") == ends
    assert [info.pending for info in group.info()] == [0, 0, 0]
    past = dt.datetime.now(dt.UTC) - dt.timedelta(hours=1)
    assert group.seek(past) == {0: 1, 1: 1, 2: 1}
    assert [info.lag for info in group.info()] == lengths(topic)


def test_a_topic_group_seeks_in_the_partitions_that_are_named(topic: Topic) -> None:
    group = topic.group("g")
    take_all(group)
    assert group.seek({2: 5, 0: "first"}) == {0: 1, 2: 5}
    taken = take_all(group)
    before = lengths(topic)
    assert [sum(m.partition == place for m in taken) for place in range(3)] == [
        *(before[0], 0, before[2] - 4),
    ]


def test_a_topic_group_starts_at_a_position_for_each_partition(topic: Topic) -> None:
    taken = take_all(topic.group("g", {0: 4, 1: "last"}))
    firsts = [[m.offset for m in taken if m.partition == place][:1] for place in range(3)]
    assert firsts == [[4], [], [1]]


@pytest.mark.parametrize("position", [{3: 1}, {-1: 1}, {"0": 1}, {0: "middle"}, "middle", {0: -1}])
def test_a_position_that_cannot_be_is_refused_before_anything_moves(
    topic: Topic, position: object
) -> None:
    group = topic.group("g")
    group.read(10)
    before = group.info()
    with pytest.raises(InvalidInput):
        group.seek(position)  # type: ignore[arg-type]
    with pytest.raises(InvalidInput):
        topic.group("other", position).read(1)  # type: ignore[arg-type]
    assert [info.next for info in group.info()] == [info.next for info in before]


# ── Dead letters ─────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def dying(client: Headwater, topic: Topic) -> TopicGroup:
    """A group that has given up everything, after one attempt."""
    group = topic.group("g", dead_letters=True)
    take_all(group, expire_ms=1)
    let_pass(client, 1)
    group.bury()
    assert sum(info.dead for info in group.info()) == 60
    return group


def test_dead_letters_name_their_partition(topic: Topic, dying: TopicGroup) -> None:
    letters = dying.dead()
    assert len(letters) == 60
    for letter in letters:
        (message,) = topic.partition(letter.partition).read(letter.origin, 1)
        assert message is not None
        assert (message.tag, message.value) == (letter.tag, letter.value)
        assert letter.attempts == 1
    assert [letter.time_ms for letter in letters] == sorted(letter.time_ms for letter in letters)
    assert dying.dead(7) == letters[:7]
    assert [info.dead for info in dying.info()] == lengths(topic)


def test_dead_letters_of_all_partitions_are_redriven(topic: Topic, dying: TopicGroup) -> None:
    first, second, third = lengths(topic)
    assert dying.redrive(first + 2) == {
        0: Redriven(first, 0),
        1: Redriven(2, 0),
        2: Redriven(0, 0),
    }
    assert dying.redrive() == {0: Redriven(0, 0), 1: Redriven(second - 2, 0), 2: Redriven(third, 0)}
    again = take_all(dying)
    assert len(again) == 60
    assert {m.attempt for m in again} == {1}
    assert dying.dead() == []


# ── Limits, members, end ─────────────────────────────────────────────────────────────────────


def test_max_pending_holds_in_each_partition(topic: Topic) -> None:
    group = topic.group("g", member="m1", max_pending=4)
    taken = take_all(group)
    assert [sum(m.partition == place for m in taken) for place in range(3)] == [4, 4, 4]
    assert group.ack(*[m for m in taken if m.partition == 1]) == 4
    assert {m.partition for m in take_all(group)} == {1}
    assert {info.max_pending for info in group.info()} == {4}


def test_members_are_known_in_each_partition(topic: Topic) -> None:
    for member in ("m1", "m2"):
        group = topic.group("g", member=member)
        assert (group.member, group.topic) == (member, topic.name)
        group.read(100)
    assert [set(info.members) for info in group.info()] == [{"m1", "m2"}] * 3


def test_a_removed_topic_group_is_gone_from_every_partition(topic: Topic) -> None:
    group = topic.group("g")
    group.read(1)
    assert group.remove()
    assert not group.remove()
    assert [info.groups for info in topic.info()] == [()] * 3
    with pytest.raises(UnknownGroup):
        group.info()
    assert len(take_all(group)) == 60


@pytest.mark.parametrize(
    "act",
    [
        lambda group: group.info(),
        lambda group: group.seek("first"),
        lambda group: group.seek({2: 1}),
        lambda group: group.pause(),
        lambda group: group.dead(),
        lambda group: group.redrive(),
        lambda group: group.discard(),
    ],
)
def test_an_unknown_group_is_refused_by_the_name_of_the_topic(
    topic: Topic, act: Callable[[TopicGroup], object]
) -> None:
    with pytest.raises(UnknownGroup, match=f"^topic '{topic.name}' has no group 'nobody'") as found:
        act(topic.group("nobody"))
    assert (found.value.topic, found.value.group) == (topic.name, "nobody")
    assert found.value.stream == f"{topic.name}/{found.value.partition or 0}"


# ── What is done in part ─────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("act", "done"),
    [
        pytest.param(lambda g, m: g.ack(*m), {0: 3, 1: 2}, id="ack"),
        pytest.param(lambda g, m: g.nack(*m), {0: 3, 1: 2}, id="nack"),
        pytest.param(lambda g, m: g.extend(*m, ack_ms=FAR), {0: 3, 1: 2}, id="extend"),
        pytest.param(lambda g, _: g.seek({2: 1, 1: 2, 0: 3}), {0: 3, 1: 2}, id="seek"),
        pytest.param(lambda g, _: g.remove(), {0: True, 1: True}, id="remove"),
        pytest.param(lambda g, _: g.discard(), {0: 0, 1: 0}, id="discard"),
        pytest.param(
            lambda g, _: g.redrive(), {0: Redriven(0, 0), 1: Redriven(0, 0)}, id="redrive"
        ),
    ],
)
def test_an_error_says_which_partitions_were_done(
    client: Headwater,
    topic: Topic,
    act: Callable[[TopicGroup, list[tuple[int, int]]], object],
    done: dict[int, object],
) -> None:
    group = topic.group("g")
    take_all(group)
    break_partition(client, topic, 2)
    with pytest.raises(FormatTooNew, match=r"\(in partition 2; done in 0, 1\)") as caught:
        act(group, [(2, 1), (0, 1), (0, 2), (0, 3), (1, 1), (1, 2)])
    assert (caught.value.partition, caught.value.partitions_done) == (2, done)


def test_a_write_says_in_which_partitions_it_is_done(client: Headwater, topic: Topic) -> None:
    before = lengths(topic)
    break_partition(client, topic, 1)
    with pytest.raises(FormatTooNew) as caught:
        topic.write_many(entries(30, tags=30))
    done = caught.value.partitions_done
    assert (caught.value.partition, list(done)) == (1, [0])
    assert done[0].start == before[0] + 1


def test_a_read_returns_what_it_took_before_a_partition_failed(
    client: Headwater, topic: Topic
) -> None:
    group = topic.group("g")
    group.read(0)
    first, _, third = lengths(topic)
    break_partition(client, topic, 1)
    # The reads begin with partitions 1, 2 and 0 in turn.
    with pytest.raises(FormatTooNew) as caught:
        group.read(100)
    assert (caught.value.partition, caught.value.partitions_done) == (1, {})
    taken = group.read(100)
    with pytest.raises(FormatTooNew):
        group.read(100)
    assert [sum(m.partition == place for m in taken) for place in range(3)] == [first, 0, third]
