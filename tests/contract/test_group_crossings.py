"""Where features of a group meet: order, limits, letters, compaction, eviction, clocks.

Each test has the smallest shape in which two of them once disagreed. The model of all of them at
once is in test_crossed_model.py.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable, Iterator

import pytest

import headwater
from headwater import Group, Headwater, HeadwaterError, Limits, Message, Queue, Stream, Worker
from headwater.kernel.inputs import NO_LIMITS
from headwater.log.handles import StreamHandle
from headwater.log.keys import stream_key
from headwater.log.replaying import ReplayRequest, ReplayRun
from tests.support.entries import offsets
from tests.support.groups import FAR, take
from tests.support.servers import Server, until
from tests.support.stepped_clock import SteppedServer
from tests.support.watch import let_pass, server_ms
from tests.support.workers import at_work

HOUR_S = 3600
# Where one call once took minutes: long enough for a busy machine, short enough to be told apart.
SOON_S = 10.0

pytestmark = pytest.mark.timeout(30)
on_plain = pytest.mark.parametrize("client", ["plain-sync"], indirect=True)


@pytest.fixture
def own() -> Iterator[Headwater]:
    """A client of a server of its own, which a call that does not end holds up for nobody else."""
    with Server() as server, headwater.connect(server.url) as hw:
        yield hw


def members_of(stream: Stream, *, ordered: bool = True, count: int = 2) -> list[Group]:
    return [
        stream.group("g", member=f"m{i}", ordered=ordered, dead_letters=True) for i in range(count)
    ]


def read_on(group: Group, *, ack_ms: int = FAR) -> list[int]:
    """Read until nothing more comes; returns the offsets."""
    found: list[int] = []
    while some := group.read(1000, ack_ms=ack_ms):
        found += offsets(some)
    return found


def finish(group: Group) -> list[int]:
    """Read and acknowledge until nothing more comes; returns the offsets."""
    found: list[int] = []
    while some := group.read(1000, ack_ms=FAR):
        assert group.ack(some) == len(some)
        found += offsets(some)
    return found


def assert_idle(group: Group) -> None:
    """Check that nothing is left to deliver."""
    info = group.info()
    assert (info.pending, info.lag, info.due) == (0, 0, 0)


def seconds_of(work: Callable[[], object]) -> float:
    began = time.monotonic()
    work()
    return time.monotonic() - began


@on_plain
@pytest.mark.parametrize("tags", [63, 64, 500])
def test_all_tags_continue_when_one_member_acknowledges_the_first_of_each(
    stream: Stream, tags: int
) -> None:
    stream.write_many([(f"t{n % tags}", b"v") for n in range(17 * tags)])
    one, other = members_of(stream)
    first = take(one, tags)
    assert first == list(range(1, tags + 1))
    assert read_on(other) == [], "each tag is with the other member"
    assert one.ack(first) == tags
    found = finish(other)
    assert sorted(found) == list(range(tags + 1, 17 * tags + 1))
    for n in range(tags):
        of_tag = [offset for offset in found if offset % tags == n]
        assert of_tag == sorted(of_tag), "those of a tag come in their order"
    assert_idle(one)


@on_plain
def test_two_workers_of_an_ordered_group_handle_everything(client: Headwater, name: str) -> None:
    stream = client.stream(name)
    stream.write_many([(f"t{n % 200}", b"v") for n in range(20_000)])
    handled: list[int] = []

    def handle(message: Message) -> None:
        handled.append(message.offset)

    groups = [stream.group("g", member=f"m{i}") for i in range(2)]
    with at_work(*(Worker(group, handle, ordered=True, concurrency=4) for group in groups)):
        # The count stands still when the group does.
        seen = -1
        while len(handled) < 20_000 and len(handled) > seen:
            seen = len(handled)
            until_more(handled, seen)
    assert len(set(handled)) == 20_000
    assert_idle(groups[0])


def until_more(handled: list[int], seen: int) -> None:
    """Return when more was handled, or after some seconds without."""
    deadline = time.monotonic() + SOON_S
    until(lambda: len(handled) > seen or time.monotonic() > deadline)


def test_a_read_ends_in_its_time_after_eviction_past_an_ordered_backlog(
    own: Headwater, name: str
) -> None:
    stream, chance = own.stream(name), random.Random(1)
    stream.write_many([(f"t{chance.randrange(20)}", b"v") for _ in range(11_511)])
    one, other = members_of(stream)
    assert len(take(one, 500)) == 500
    assert read_on(other) == []
    stream.evict(11_500)
    assert one.ack((1, 500)) == 500
    own.store.command("SLOWLOG", "RESET")
    assert seconds_of(lambda: other.read(10, ack_ms=1, block_ms=100)) < 4
    assert longest_call_ms(own) < 300
    found: set[int] = set()
    for _ in range(300):
        found.update(acked := offsets(other.read(10, ack_ms=FAR, block_ms=100)))
        other.ack(acked)
        if not one.info().pending:
            break
    assert found == set(range(11_501, 11_512))
    assert one.info().missed == 11_000
    assert_idle(one)


def longest_call_ms(hw: Headwater) -> float:
    """Return the longest call of a function in the server's log of slow ones."""
    return max(
        (entry[2] / 1000 for entry in hw.store.command("SLOWLOG", "GET", "-1")[0]), default=0
    )


MANY = 9000


def one_large_range(stream: Stream, group: Group, ack_ms: int, expire_ms: int | None) -> None:
    """Have a member hold many messages in one range, which another member has looked at."""
    stream.write_many([(f"t{n % 3}", b"v") for n in range(MANY)])
    held: list[int] = []
    group.keep_order(lambda: held)
    while len(held) < MANY:
        held += take(group, MANY, ack_ms=ack_ms, expire_ms=expire_ms)
    group.keep_order(list)
    stream.write("t0", b"last")
    assert read_on(stream.group("g", member="other")) == []


@on_plain
@pytest.mark.parametrize("letters", [False, True])
@pytest.mark.parametrize("keeps", [False, True])
def test_many_messages_of_an_ordered_group_expire_together(
    client: Headwater, name: str, letters: bool, keeps: bool
) -> None:
    stream = client.stream(name)
    group = stream.group("g", ordered=True, dead_letters=letters)
    one_large_range(stream, group, ack_ms=FAR, expire_ms=3000)
    let_pass(client, 3000)
    if keeps:
        kept = client.keep(name)[0]
        assert kept.fault is None
        assert kept.buried + kept.expired == MANY
    assert finish(group) == [MANY + 1]
    assert group.info().dead == (MANY if letters else 0)
    assert group.info().expired == MANY
    assert_idle(group)


@on_plain
def test_many_messages_of_an_ordered_group_become_due_together(
    client: Headwater, stream: Stream
) -> None:
    one, other = members_of(stream)
    one_large_range(stream, one, ack_ms=3000, expire_ms=None)
    let_pass(client, 3000)
    assert take(other, 1) == [1]
    assert other.ack(1) == 1
    assert finish(other) == list(range(2, MANY + 2))
    assert_idle(one)


@on_plain
@pytest.mark.parametrize("upto", [MANY - 1, MANY])
def test_many_messages_of_an_ordered_group_are_evicted_together(
    client: Headwater, name: str, upto: int
) -> None:
    stream = client.stream(name)
    one, other = members_of(stream)
    one_large_range(stream, one, ack_ms=3000, expire_ms=None)
    stream.evict(upto)
    let_pass(client, 3000)
    assert client.keep(name)[0].fault is None
    assert finish(other) == list(range(upto + 1, MANY + 2))
    assert one.info().missed == upto
    assert_idle(one)


def test_one_group_that_cannot_be_kept_does_not_hold_up_other_streams(own: Headwater) -> None:
    broken, last = own.stream("a"), own.stream("b")
    for stream in (broken, last):
        stream.write("t", b"v")
        take(stream.group("g", dead_letters=True), 1, ack_ms=1, expire_ms=1)
    let_pass(own, 1)
    key = f"{stream_key('a')}:g:1:g:pending"
    assert own.store.command("DEL", key)[0] == 1, "a group has its pending messages here"
    own.store.command("SET", key, "damaged")
    kept = {one.stream: one for one in own.keep("a", "b")}
    assert kept["a"].fault is not None
    assert kept["b"].buried == 1


@pytest.fixture(scope="module")
def stepped() -> Iterator[SteppedServer]:
    with SteppedServer() as server:
        yield server


@pytest.fixture
def clocked(stepped: SteppedServer) -> Iterator[Headwater]:
    with headwater.connect(stepped.url) as hw:
        yield hw
    stepped.step(0)


@pytest.mark.parametrize("per_key", [False, True])
def test_a_clock_that_is_set_back_does_not_silence_a_group_with_a_rate(
    stepped: SteppedServer, clocked: Headwater, name: str, per_key: bool
) -> None:
    stream = clocked.stream(name)
    stream.write_many([("t", b"v")] * 30)
    group = stream.group("g")
    rate = "10/s burst 10"
    group.limit(Limits(rate_per_key=rate) if per_key else Limits(rate=rate))
    assert take(group, 30) == list(range(1, 11))
    stepped.step(-HOUR_S)
    deadline = time.monotonic() + SOON_S
    found: list[int] = []
    while len(found) < 10 and time.monotonic() < deadline:
        found += offsets(group.read(30, ack_ms=FAR, block_ms=200))
    assert found[:10] == list(range(11, 21)), "a full bucket takes a second to fill"


def test_a_clock_that_is_set_back_does_not_silence_a_queue_with_a_rate(
    stepped: SteppedServer, clocked: Headwater, name: str
) -> None:
    queue: Queue = clocked.queue(name)
    queue.push_many([b"%d" % n for n in range(30)])
    queue.limit(Limits(rate="10/s burst 10"))
    assert len(queue.pop(30, ack_ms=FAR)) == 10
    stepped.step(-HOUR_S)
    deadline = time.monotonic() + SOON_S
    found: list[bytes] = []
    while len(found) < 10 and time.monotonic() < deadline:
        found += [one.value for one in queue.pop(30, ack_ms=FAR, block_ms=200)]
    assert found[:10] == [b"%d" % n for n in range(10, 20)]


@pytest.mark.parametrize(
    ("ordered", "limits"),
    [(ordered, Limits(max_in_flight_per_key=1)) for ordered in (False, True)] + [(True, NO_LIMITS)],
)
def test_a_message_whose_turn_has_come_comes_after_the_clock_was_set_back(
    stepped: SteppedServer, clocked: Headwater, name: str, limits: Limits, ordered: bool
) -> None:
    stream = clocked.stream(name)
    stream.write_many([("t", b"v"), ("t", b"v"), ("", b"v"), ("", b"v")])
    one, other = members_of(stream, ordered=ordered)
    one.limit(limits)
    assert take(one, 1) == [1]
    assert take(other, 1) == [3]
    assert one.ack(1) == 1
    before = server_ms(clocked)
    stepped.step(-HOUR_S)
    until(lambda: server_ms(clocked) < before - HOUR_S * 900)
    assert sorted(read_on(other)) == [2, 4]


def test_a_group_that_begins_again_after_the_clock_was_set_back_keeps_its_letters(
    stepped: SteppedServer, clocked: Headwater, name: str
) -> None:
    stream = clocked.stream(name)
    stream.write("x", b"v")
    for _ in range(2):
        group = stream.group("g", dead_letters=True)
        assert take(group, 1) == [1]
        assert group.bury(1, error="never") == 1
        assert [letter.origin for letter in group.dead()] == [1]
        group.remove()
        stepped.step(-HOUR_S)
        until(lambda: server_ms(clocked) < time.time() * 1000 - HOUR_S * 900)


PER_KEY = Limits(max_in_flight_per_key=1)


@pytest.mark.parametrize("ordered", [False, True])
@pytest.mark.parametrize(
    "limits",
    [Limits(max_in_flight=5), PER_KEY, Limits(rate_per_key="100/s"), NO_LIMITS],
    ids=["in-flight", "per-key", "rate-per-key", "none"],
)
def test_an_acknowledgement_of_all_offsets_there_can_be_is_short(
    own: Headwater, name: str, limits: Limits, ordered: bool
) -> None:
    stream = own.stream(name)
    stream.write_many([(f"t{n % 3}", b"v") for n in range(30)])
    one, other = members_of(stream, ordered=ordered)
    one.limit(limits)
    found = take(one, 2)
    found += take(other, 2)
    assert seconds_of(lambda: one.ack((1, 2**53 - 1))) < SOON_S
    info = one.info()
    assert info.pending == 0
    assert set(finish(one)).isdisjoint(found)


def test_acknowledgements_out_of_turn_of_one_tag_are_short(own: Headwater, name: str) -> None:
    stream = own.stream(name)
    stream.write_many([("x", b"v")] * 18_000)
    one, other = members_of(stream)
    assert take(one, 1) == [1]
    assert read_on(other) == []
    own.store.command("SLOWLOG", "RESET")
    assert one.ack((2, 18_000)) == 17_999
    assert one.ack(1) == 1
    assert longest_call_ms(own) < 60
    assert_idle(one)


@pytest.mark.parametrize("ordered", [False, True])
@pytest.mark.parametrize("limits", [NO_LIMITS, PER_KEY], ids=["none", "per-key"])
def test_a_group_ends_at_the_largest_offset(name: str, ordered: bool, limits: Limits) -> None:
    with Server() as server, headwater.connect(server.url) as hw:
        stream = hw.stream(name)
        stream.write("x", b"v")
        stream.evict(1)
        last = 2**53 - 5
        with server.client() as raw:
            raw.hset(stream_key(name), mapping={"last": last, "first": last + 1, "sealed": last})
        written = [stream.write("x", b"v") for _ in range(4)]
        assert written == list(range(2**53 - 4, 2**53))
        with pytest.raises(HeadwaterError):
            stream.write("x", b"v")
        with pytest.raises(HeadwaterError):
            stream.write_many([("x", b"v")] * 20)
        one, other = members_of(stream, ordered=ordered)
        one.limit(limits)
        found = take(one, 1)
        assert found == [2**53 - 4]
        for _ in range(4):
            found += finish(other)
            one.ack(2**53 - 4)
        assert found == written
        assert_idle(one)


@on_plain
@pytest.mark.parametrize("way", ["ack", "nack", "extend", "release"])
@pytest.mark.parametrize("size", [1, 100, 400])
def test_a_long_list_of_offsets_in_several_ranges_is_settled_whole(
    stream: Stream, way: str, size: int
) -> None:
    stream.write_many([(f"t{n}", b"v") for n in range(1300)])
    one, other = members_of(stream)
    assert take(one, 1) == [1]
    held: list[int] = []
    while some := take(other, size):
        held += some
    assert len(held) == 1299
    settle = {"extend": lambda: other.extend(held, ack_ms=FAR)}.get(way)
    assert (settle() if settle else getattr(other, way)(held)) == 1299
    assert other.ack(held) == (0 if way == "ack" else 1299)
    assert one.ack(1) == 1
    assert_idle(one)


@on_plain
@pytest.mark.parametrize("seed", range(6))
def test_two_replays_of_one_range_during_a_compaction_write_nothing_twice(
    client: Headwater, name: str, seed: int
) -> None:
    source, chance = client.stream(name), random.Random(seed)
    source.write_many([(f"t{n % 1200}", b"%d" % n) for n in range(2500)])
    source.seal()
    asked = ReplayRequest(name, f"{name}-copy", first=1, last=2500)
    runs = [
        ReplayRun(asked, lambda one, _: StreamHandle(one, set()), None, None, time.monotonic)
        for _ in range(2)
    ]
    before = chance.randrange(1, 6)
    while going := [run for run in runs if not run.over]:
        client.store.run(chance.choice(going).step())
        before -= 1
        if not before:
            assert source.compact() > 0
    copied = Counter(m.value for m in client.stream(f"{name}-copy").read(1, 10_000) if m)
    assert max(copied.values()) == 1
    assert {b"%d" % n for n in range(1300, 2500)} <= set(copied), "what is left is copied"
