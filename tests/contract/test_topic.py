"""A topic is n streams behind one name: a tag has one partition, and order within it."""

from __future__ import annotations

import datetime as dt
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from zlib import crc32

import pyarrow as pa
import pytest

from headwater import (
    FormatTooNew,
    Headwater,
    InvalidInput,
    PartitionMismatch,
    Redriven,
    StaleSequence,
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


def rows_by_partition(
    rows: list[tuple[str, bytes]], partitions: int
) -> dict[int, list[tuple[str, bytes]]]:
    found: dict[int, list[tuple[str, bytes]]] = {}
    for tag, value in rows:
        found.setdefault(crc32(tag.encode()) % partitions, []).append((tag, value))
    return found


def test_the_first_to_open_a_topic_decides_its_partitions(client: Headwater, name: str) -> None:
    assert client.topic(name, partitions=3).partitions() == 3
    assert client.topic(name).partitions() == 3
    assert client.topic(name, partitions=3).partitions() == 3
    with pytest.raises(PartitionMismatch) as caught:
        client.topic(name, partitions=4).partitions()
    assert (caught.value.topic, caught.value.asked, caught.value.has) == (name, 4, 3)


def test_a_topic_has_eight_partitions_unless_told(client: Headwater, name: str) -> None:
    assert client.topic(name).partitions() == 8


@pytest.mark.parametrize(("partitions", "most"), [(None, 198), (10, 198), (11, 197), (1024, 195)])
def test_a_name_that_is_too_long_for_partitions_is_refused_before_there_is_a_topic(
    client: Headwater, name: str, partitions: int | None, most: int
) -> None:
    longest = name.ljust(most, "x")
    with pytest.raises(InvalidInput, match=f"a topic of .* 1 to {most} bytes, not {most + 1};"):
        client.topic(f"{longest}x", partitions=partitions).write("a", b"1")
    assert f"{longest}x" not in client.topics()
    topic = client.topic(longest, partitions=partitions)
    topic.write("a", b"1")
    assert topic.delete()


@pytest.mark.parametrize("partitions", [0, -1, 1025, 1.5, "8", True])
def test_a_partition_count_that_cannot_be_is_refused(
    client: Headwater, name: str, partitions: int
) -> None:
    with pytest.raises(InvalidInput):
        client.topic(name, partitions=partitions)
    assert name not in client.topics()


def test_a_tag_always_goes_to_the_partition_of_its_hash(client: Headwater, name: str) -> None:
    topic = client.topic(name, partitions=5)
    for tag in ("", "a", "b", "ünï", "tag-17", "x" * 4096):
        place = crc32(tag.encode()) % 5
        assert topic.partition_of(tag) == place
        before = topic.partition(place).info().last
        assert topic.write(tag, b"1") == (place, before + 1)
        assert topic.write_many([(tag, b"2")]) == {place: range(before + 2, before + 3)}
        arrow = pa.table({"tag": [tag], "value": [b"3"]})
        assert topic.append(arrow) == {place: range(before + 3, before + 4)}
        tail = topic.partition(place).read(before + 1, 9)
        assert [(m.tag, m.value) for m in tail if m] == [(tag, b"1"), (tag, b"2"), (tag, b"3")]


def test_a_repeat_completes_what_was_written_in_part(client: Headwater, name: str) -> None:
    topic = client.topic(name, partitions=4)
    rows = entries(100, tags=30)
    parts = rows_by_partition(rows, 4)
    place = next(iter(parts))
    topic.partition(place).write_many(parts[place], producer="p", sequence=7)
    assert topic.write_many(rows, producer="p", sequence=7) == {
        p: range(1, len(r) + 1) for p, r in sorted(parts.items())
    }
    with pytest.raises(StaleSequence):
        topic.write_many(rows, producer="p", sequence=6)
    assert sum(info.length for info in topic.info()) == 100


def test_no_partition_starves(client: Headwater, name: str) -> None:
    topic = client.topic(name, partitions=4)
    topic.write_many(entries(400, tags=100))
    group = topic.group("g")
    served = [group.read(1)[0].partition for _ in range(16)]
    assert {served.count(place) for place in range(4)} == {4}


def test_a_partition_that_does_not_exist_is_refused(client: Headwater, name: str) -> None:
    topic = client.topic(name, partitions=3)
    group = topic.group("g")
    group.read(1)
    for place in (-1, 3):
        with pytest.raises(InvalidInput):
            topic.partition(place)
        with pytest.raises(InvalidInput):
            group.ack((place, 1))


def test_a_topic_group_that_never_read_is_unknown(client: Headwater, name: str) -> None:
    topic = client.topic(name, partitions=2)
    for use in (
        lambda: topic.group("g").info(),
        lambda: topic.group("g").ack((0, 1)),
        lambda: topic.group("g").nack((1, 1)),
    ):
        with pytest.raises(UnknownGroup):
            use()


def test_a_topic_group_starts_where_it_is_told(client: Headwater, name: str) -> None:
    topic = client.topic(name, partitions=3)
    topic.write_many(entries(30))
    late = topic.group("late", "last")
    assert late.read(100) == []
    placed = topic.write("x", b"new")
    assert [(m.partition, m.offset, m.value) for m in late.read(100)] == [(*placed, b"new")]


def test_the_first_read_makes_the_group_in_every_partition(client: Headwater, name: str) -> None:
    topic = client.topic(name, partitions=4)
    topic.write_many(entries(40, tags=20))
    group = topic.group("g")
    assert len(group.read(1)) == 1
    assert sum(info.lag for info in group.info()) == 39
    for place in range(4):
        assert topic.partition(place).retain(max_count=0).held_by == "g"
    late = topic.group("late", "last")
    assert late.read(0) == []
    topic.write_many(entries(40, tags=20))
    assert len(late.read(100)) == 40


def test_a_write_to_any_partition_wakes_a_blocked_reader(client: Headwater, name: str) -> None:
    topic = client.topic(name, partitions=5)
    group = topic.group("g")
    group.read(1)
    quickest = {}
    with ThreadPoolExecutor() as pool:
        for tag in "abcdefgh":
            wait = pool.submit(lambda: (group.read(1, block_ms=60_000), time.perf_counter()))
            placed = topic.write(tag, b"1")
            written = time.perf_counter()
            (message,), woken = wait.result(60)
            assert (message.partition, message.offset) == placed
            quickest[placed.partition] = (woken - written) * 1000
    assert len(quickest) > 2
    assert min(quickest.values()) < 150


def test_topics_are_listed_while_they_exist(client: Headwater, name: str) -> None:
    topic = client.topic(name, partitions=2)
    topic.write_many(entries(20))
    topic.group("g").read(5)
    assert name in client.topics()
    assert topic.delete()
    assert name not in client.topics()
    assert not [each for each in client.streams() if each.startswith(f"{name}/")]
    fresh = client.topic(name, partitions=3)
    assert fresh.partitions() == 3
    assert [info.last for info in fresh.info()] == [0, 0, 0]
    with pytest.raises(PartitionMismatch):
        topic.write("a", b"1")


def test_a_topic_and_a_stream_may_share_a_name(client: Headwater, name: str) -> None:
    client.stream(name).write("a", b"1")
    topic = client.topic(name, partitions=2)
    topic.write("a", b"2")
    assert client.stream(name).info().last == 1
    assert sum(info.last for info in topic.info()) == 1


def test_a_topic_is_kept_in_bounds_in_every_partition(client: Headwater, name: str) -> None:
    topic = client.topic(name, 3)
    topic.write_many(entries(60, tags=12))
    assert topic.retain(max_count=15).evicted == 60 - sum(p.length for p in topic.info())
    assert {(facts.retention.max_count, facts.length <= 15) for facts in topic.info()} == {
        (15, True)
    }
    left = sum(facts.length for facts in topic.info())
    assert topic.seal() == left
    assert topic.compact() == left - sum(facts.length for facts in topic.info()) > 0
    topic.auto_compact()
    assert all(facts.auto_compact for facts in topic.info())


def test_a_topic_is_not_created_anew_to_be_deleted_again(client: Headwater, name: str) -> None:
    topic = client.topic(name)
    topic.write("a", b"1")
    assert topic.delete()
    assert not topic.delete()
    assert name not in client.topics()


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
