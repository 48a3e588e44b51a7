"""A list of messages ends at the bytes that it may have; what is left is in the next one."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from headwater import Group, Headwater, InvalidInput, Queue, Stream
from headwater.ick import single
from headwater.log.dead_letters import GroupLetters
from headwater.log.handles import GroupHandle, StreamHandle
from headwater.log.topics import list_dead, topic_group
from headwater.queue.dead_letters import QueueLetters
from headwater.queue.handles import QueueHandle
from headwater.queue.inspecting import peek_page
from headwater.store.call import Operation
from tests.support.groups import FAR
from tests.support.waking import wait_for_members
from tests.support.watch import let_pass

MB = 1 << 20
# Packed, these have a few hundred bytes.
LARGE = [(f"t-{n}", b"%02d" % n + bytes(MB)) for n in range(12)]


def numbers(found: Any) -> list[int]:
    return [int(one.value[:2]) for one in found]


def size_of(reply: Any) -> int:
    """Return how many bytes a reply of the store has."""
    if isinstance(reply, bytes | str):
        return len(reply)
    return sum(map(size_of, reply)) if isinstance(reply, list | tuple) else 8


def measured(operation: Operation[Any], sizes: list[int]) -> Operation[Any]:
    """Do what an operation does, and note the size of each reply that it gets."""
    reply = None
    while True:
        try:
            call = operation.send(reply)
        except StopIteration as ended:
            return ended.value
        reply = yield call
        sizes.append(size_of(reply))


def test_small_batches_of_producers_are_read_together(stream: Stream) -> None:
    for number in range(3):
        rows = [(f"t-{n}", b"%02d" % n) for n in range(10)]
        stream.write_many(rows, producer="p", sequence=number)
    group = stream.group("g")
    assert len(group.read(100)) == 30
    assert group.read(100) == []


def test_a_read_ends_when_its_messages_have_as_many_bytes(stream: Stream) -> None:
    stream.write_many(LARGE)
    at, found = 1, []
    while (passage := stream.read_from(at, 100, max_bytes=2 * MB)).next > at:
        assert 1 <= len(passage.messages) <= 3
        found += passage.messages
        at = passage.next
    assert numbers(found) == list(range(12))


def test_a_read_always_returns_one_message(stream: Stream) -> None:
    stream.write_many(LARGE[:3])
    assert numbers(stream.read_from(2, 10, max_bytes=1).messages) == [1]
    assert numbers(stream.group("g").read(10, max_bytes=1)) == [0]
    with pytest.raises(InvalidInput, match="max_bytes"):
        stream.group("g").read(10, max_bytes=0)


@pytest.mark.parametrize("backwards", [False, True])
def test_a_search_ends_when_it_has_found_as_many_bytes(stream: Stream, backwards: bool) -> None:
    stream.write_many([entry for n in range(12) for entry in (LARGE[n], ("other", b"x"))])
    start, found = None, []
    while True:
        part = stream.search(tag="t-*", start=start, newest_first=backwards, max_bytes=2 * MB)
        assert len(part.messages) <= 2
        found += part.messages
        start = part.next
        if start is None:
            break
    assert numbers(found) == list(range(12))[:: -1 if backwards else 1]


@pytest.mark.parametrize("ack_ms", [None, FAR])
def test_a_group_read_takes_no_more_than_it_can_return(stream: Stream, ack_ms: int | None) -> None:
    stream.write_many(LARGE)
    group = stream.group("g")
    found: list[Any] = []
    while some := group.read(100, ack_ms=ack_ms, max_bytes=3 * MB):
        assert len(some) <= 4
        found += some
    assert numbers(found) == list(range(12)), "none is lost"
    if ack_ms:
        assert group.nack(found) == 12
        assert len(group.read(100, ack_ms=ack_ms, max_bytes=3 * MB)) <= 4, "redelivered ones, too"


def test_a_blocked_member_is_given_no_more_than_4_mib(stream: Stream) -> None:
    group = stream.group("g")
    group.read(0)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(group.read, 100, block_ms=20_000)
        wait_for_members(stream.group("g"), 1)
        stream.write_many(LARGE)
        found = waiting.result(30)
    assert 1 <= len(found) <= 5
    rest = group.read(100)
    assert numbers(found + rest) == list(range(12))


def test_a_group_of_a_topic_takes_no_more_than_it_can_return(client: Headwater, name: str) -> None:
    topic = client.topic(name, 4)
    topic.write_many(LARGE)
    group = topic.group("g")
    found: list[Any] = []
    while some := group.read(100, max_bytes=2 * MB):
        assert len(some) <= 3
        found += some
    assert sorted(numbers(found)) == list(range(12))


@pytest.fixture
def group(client: Headwater, stream: Stream) -> Group:
    """A group that gave up large messages."""
    stream.write_many(LARGE)
    group = stream.group("g", dead_letters=True)
    assert len(group.read(100, ack_ms=FAR, expire_ms=1)) == 12
    let_pass(client, 1)
    assert group.bury() == 12
    return group


def test_more_than_one_batch_may_have_is_buried(stream: Stream) -> None:
    for _ in range(2):
        stream.write_many([("t", bytes(MB)) for _ in range(40)])
    stream.write_many([("t", b"small")] * 20)
    group = stream.group("g", dead_letters=True)
    taken = 0
    while taken < 100:
        # None of them expires before all are taken.
        taken += len(group.read(100, ack_ms=FAR, expire_ms=FAR))
    assert group.bury(range(1, 101)) == 100
    assert (group.info().dead, group.info().pending) == (100, 0)
    assert [letter.origin for letter in group.dead(max_bytes=200 * MB)] == list(range(1, 101))


def test_dead_letters_end_at_as_many_bytes(client: Headwater, group: Group) -> None:
    assert numbers(group.dead(max_bytes=3 * MB)) == [0, 1, 2]
    assert numbers(group.dead(max_bytes=1)) == [0]
    assert numbers(group.dead(5)) == [0, 1, 2, 3, 4], "without a limit, all that was asked for"
    handle = GroupHandle(StreamHandle(group.stream, set()), "g", "m")
    place: str | None = ""
    found: list[Any] = []
    while place is not None:
        page = client.store.run(GroupLetters(handle).listed(100, None, 3 * MB, place))
        found += page.letters
        place = page.place
    assert numbers(found) == list(range(12))


def test_dead_letters_of_a_topic_end_at_as_many_bytes(client: Headwater, name: str) -> None:
    topic = client.topic(name, 3)
    topic.write_many(LARGE)
    group = topic.group("g", dead_letters=True)
    while group.read(100, ack_ms=FAR, expire_ms=1):
        let_pass(client, 1)
    group.bury()
    assert sum(part.dead for part in group.info()) == 12
    in_order = numbers(group.dead())
    assert numbers(group.dead(max_bytes=2 * MB)) == in_order[:2]
    handle = topic_group(name, "g")
    place: str | None = ""
    found: list[Any] = []
    while place is not None:
        page = client.store.run(list_dead(handle, 100, None, 2 * MB, place))
        assert 1 <= len(page.letters) <= 2
        found += page.letters
        place = page.place
    assert sorted(numbers(found)) == list(range(12))


def fill(queue: Queue, state: str) -> None:
    """Have twelve large messages of one state, and a few small ones of others."""
    queue.configure(max_attempts=1)
    if state == "delayed":
        queue.push_many([value for _, value in LARGE], delay_ms=FAR)
        queue.push(b"99")
        return
    queue.push_many([value for _, value in LARGE])
    if state != "ready":
        held = queue.pop(12, ack_ms=FAR)
        if state == "dead":
            assert queue.bury(*held) == 12
    queue.push(b"99", delay_ms=FAR)


@pytest.mark.parametrize("state", ["ready", "delayed", "unacked", "dead"])
def test_a_look_at_a_queue_ends_at_as_many_bytes(client: Headwater, name: str, state: Any) -> None:
    queue = client.queue(name)
    fill(queue, state)
    assert numbers(queue.peek(100, state=state)) == list(range(12))
    assert numbers(queue.peek(100, state=state, max_bytes=2 * MB)) == [0, 1]
    assert numbers(queue.peek(100, state=state, max_bytes=1)) == [0]
    sizes: list[int] = []
    start, found = "", []
    while True:
        page = client.store.run(
            measured(peek_page(QueueHandle(name, set(), "m"), 100, state, 2 * MB, start), sizes)
        )
        assert len(page.items) <= 2
        found += page.items
        if page.next is None:
            break
        start = page.next
    assert numbers(found) == list(range(12))
    assert max(sizes) < 6 * MB, "the store is asked for pages"


def test_a_look_goes_on_behind_every_message_of_the_same_time(client: Headwater, name: str) -> None:
    queue = client.queue(name)
    for priority in (0, 7, -3):
        queue.push_many([b"%02d" % n for n in range(40)], priority=priority)
        queue.push_many([b"%02d" % n for n in range(40, 80)], priority=priority, delay_ms=1)
    let_pass(client, 2)
    queue.nack(queue.pop(10, ack_ms=FAR))
    whole = [(item.id, item.priority) for item in queue.peek(1000)]
    assert len(whole) == 240
    start, found = "", []
    while True:
        page = client.store.run(peek_page(QueueHandle(name, set(), "m"), 7, "ready", None, start))
        found += [(item.id, item.priority) for item in page.items]
        if page.next is None:
            break
        start = page.next
    assert found == whole
    with pytest.raises(InvalidInput, match="no place"):
        client.store.run(peek_page(QueueHandle(name, set(), "m"), 7, "ready", None, "nonsense"))


@pytest.mark.parametrize("count", [5, 100])
def test_dead_letters_of_a_queue_go_on_where_a_list_ended(
    client: Headwater, name: str, count: int
) -> None:
    queue = client.queue(name)
    fill(queue, "dead")
    queue.push_many([b"%02d" % n for n in range(12, 90)])
    held = [one for one in queue.pop(100, ack_ms=FAR) if one.value != b"99"]
    assert queue.bury(*held) == 78
    assert numbers(queue.dead(100, max_bytes=3 * MB)) == [0, 1, 2]
    box = QueueLetters(QueueHandle(name, set(), "m"))
    place: str | None = ""
    found: list[Any] = []
    while place is not None:
        page = client.store.run(box.listed(count, None, 3 * MB, place))
        assert len(page.letters) <= count
        if page.letters and found:
            # What is gone meanwhile is in no list, and changes nothing for the others.
            queue.discard([found[-1]])
        found += page.letters
        place = page.place
    assert numbers(found) == list(range(90))
    with pytest.raises(InvalidInput, match="no place"):
        client.store.run(box.listed(count, None, 3 * MB, "nonsense"))


def test_a_reserve_ends_at_as_many_bytes_and_goes_on_after_a_commit(
    client: Headwater, name: str
) -> None:
    ick = client.ick(name)
    ick.add({b"%02d" % n + bytes(MB): n for n in range(10)})
    found: list[float] = []
    while rows := ick.reserve(100, max_bytes=2 * MB):
        assert len(rows) <= 2
        found += [score for _, score in rows]
        ick.commit(*(member for member, _ in rows))
    assert found == list(range(10))
    ick.add({b"%02d" % n + bytes(MB): n for n in range(10)})
    sizes: list[int] = []
    _, rows = client.store.run(
        measured(single.exchange(single.IckHandle(name, True), 100, (), False), sizes)
    )
    assert [score for _, score in rows] == list(range(10)), "without a limit, all"
    assert max(sizes) < 6 * MB, "in steps"
    assert len(list(ick.scan())) == 10


def test_a_reserve_of_a_channel_ends_at_as_many_bytes_and_goes_on_after_a_commit(
    client: Headwater, name: str
) -> None:
    channel = client.ick_channel(name, 1)
    channel.add({b"%02d" % n + bytes(MB): n for n in range(10)})
    assert len(channel.reserve(100)) == 10, "without a limit, all"
    found: list[float] = []
    while batch := channel.reserve(100, max_bytes=2 * MB):
        assert len(batch) <= 2
        found += [row.score for row in batch]
        assert channel.commit(batch) == len(batch)
    assert sorted(found) == list(range(10))
