"""A topic is n streams behind one name: a tag has one partition, and order within it."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from zlib import crc32

import pyarrow as pa
import pytest

from headwater import (
    Headwater,
    InvalidInput,
    PartitionMismatch,
    StaleSequence,
    TopicMessage,
    UnknownGroup,
)
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


@pytest.mark.parametrize("size", [1, 30, 3000])
def test_a_batch_is_spread_and_stays_in_order(client: Headwater, name: str, size: int) -> None:
    topic = client.topic(name, partitions=4)
    rows = entries(size, tags=50)
    expected = rows_by_partition(rows, 4)
    assert topic.write_many(rows) == {p: range(1, len(r) + 1) for p, r in sorted(expected.items())}
    for place in range(4):
        found = topic.partition(place).read(1, size)
        assert [(m.tag, m.value) for m in found if m] == expected.get(place, [])
    assert [info.length for info in topic.info()] == [len(expected.get(p, [])) for p in range(4)]


def test_scan_tells_the_partition_of_every_message(client: Headwater, name: str) -> None:
    topic = client.topic(name, partitions=3)
    rows = entries(200, tags=20)
    topic.write_many(rows)
    table = pa.Table.from_batches(list(topic.scan()))
    assert table.schema.names == ["partition", "offset", "tag", "value", "time"]
    found: dict[int, list[tuple[str, bytes]]] = {}
    for row in table.to_pylist():
        found.setdefault(row["partition"], []).append((row["tag"], row["value"]))
        assert len(found[row["partition"]]) == row["offset"]
    assert found == rows_by_partition(rows, 3)


def test_a_repeat_is_recognised_in_every_partition(client: Headwater, name: str) -> None:
    topic = client.topic(name, partitions=4)
    rows = entries(100, tags=30)
    first = topic.write_many(rows, producer="p", sequence=1)
    topic.write_many(entries(10), producer="q", sequence=1)
    assert topic.write_many(rows, producer="p", sequence=1) == first
    assert sum(info.length for info in topic.info()) == 110


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


def drain(client: Headwater, name: str, count: int, ack_ms: int | None) -> list[TopicMessage]:
    group = client.topic(name).group("g")
    seen: list[TopicMessage] = []
    while got := group.read(count, ack_ms=ack_ms):
        assert len(got) <= count
        seen += got
    return seen


@pytest.mark.parametrize("count", [1, 7, 1000])
def test_a_group_reads_all_partitions_each_in_order(
    client: Headwater, name: str, count: int
) -> None:
    rows = entries(90, tags=30)
    client.topic(name, partitions=4).write_many(rows)
    seen = drain(client, name, count, FAR)
    for place, expected in rows_by_partition(rows, 4).items():
        mine = [m for m in seen if m.partition == place]
        assert [m.offset for m in mine] == list(range(1, len(expected) + 1))
        assert [(m.tag, m.value) for m in mine] == expected
    assert {m.attempt for m in seen} == {1}


def test_no_partition_starves(client: Headwater, name: str) -> None:
    topic = client.topic(name, partitions=4)
    topic.write_many(entries(400, tags=100))
    group = topic.group("g")
    served = [group.read(1)[0].partition for _ in range(16)]
    assert {served.count(place) for place in range(4)} == {4}


def test_messages_are_acked_nacked_and_extended_by_partition(client: Headwater, name: str) -> None:
    topic = client.topic(name, partitions=3)
    topic.write_many(entries(30, tags=20))
    group = topic.group("g")
    taken: list[TopicMessage] = []
    while got := group.read(100, ack_ms=FAR):
        taken += got
    assert len(taken) == 30
    assert group.ack(*taken[:10]) == 10
    assert group.ack(*taken[:10]) == 0
    assert group.ack((taken[10].partition, taken[10].offset)) == 1
    assert sum(info.pending for info in group.info()) == 19
    assert group.nack(*taken[11:15]) == 4
    again: list[TopicMessage] = []
    while got := group.read(100, ack_ms=FAR):
        again += got
    key = lambda m: (m.partition, m.offset)  # noqa: E731
    assert sorted(map(key, again)) == sorted(map(key, taken[11:15]))
    assert {m.attempt for m in again} == {2}
    assert group.extend(*taken[11:15], ack_ms=1) == 4
    let_pass(client, 1)
    assert group.ack(*taken) == 19
    assert sum(info.pending for info in group.info()) == 0


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


def test_what_expires_in_a_topic_goes_to_dead_letters(client: Headwater, name: str) -> None:
    topic = client.topic(name, partitions=2)
    rows = entries(12, tags=6)
    topic.write_many(rows)
    group = topic.group("g", dead_letters=True)
    while group.read(100, ack_ms=FAR, expire_ms=20):
        pass
    let_pass(client, 20)
    assert group.read(100) == []
    dead = [d.value for p in (0, 1) for d in topic.partition(p).group("g").dead()]
    assert sorted(dead) == sorted(value for _, value in rows)


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
