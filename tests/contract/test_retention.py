"""Retention keeps a stream in bounds without taking anything from a reader, unless forced."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable

import pyarrow as pa
import pytest

import headwater
from headwater import Headwater, Stream
from headwater.errors import InvalidInput
from headwater.log import retention
from headwater.log.keys import stream_key
from headwater.log.replies import BuryReply, ClaimedRange
from headwater.log.retention import set_reader
from headwater.store.call import Call, Operation
from tests.support.entries import entries, offsets
from tests.support.groups import FAR
from tests.support.servers import Server, until
from tests.support.watch import let_pass, server_ms


def test_a_reader_that_reports_late_does_not_fall_back(client: Headwater, name: str) -> None:
    """Processes of one name report one after the other; only who says so moves it back."""
    stream = client.stream(name)
    stream.write_many(entries(10))
    for position, forward in ((5, True), (3, True), (8, True), (4, False)):
        client.store.run(set_reader(stream_key(name), "r", position, forward=forward))
        expected = {5: 5, 3: 5, 8: 8, 4: 4}[position]
        assert stream.info().readers == {"r": expected}


@pytest.mark.parametrize("sealed", [False, True])
def test_retention_by_age(client: Headwater, stream: Stream, sealed: bool) -> None:
    now = server_ms(client)
    for age in (50_000, 40_000, 30_000, 20_000):
        times = [now - age] * 10
        stream.append(pa.table({"tag": ["t"] * 10, "value": [b"v"] * 10, "time": times}))
        if sealed:
            stream.seal()
    assert stream.retain(max_age_ms=60_000).evicted == 0
    assert stream.retain(max_age_ms=35_000).evicted == 20
    assert stream.info().first == 21
    assert stream.retain(max_age_ms=10_000).evicted == 20
    assert stream.info().length == 0


def test_age_never_takes_a_message_that_is_young_enough(client: Headwater, stream: Stream) -> None:
    now = server_ms(client)
    times = [now - 90_000, now, now - 90_000, now - 90_000]
    stream.append(pa.table({"tag": ["t"] * 4, "value": [b"v"] * 4, "time": times}))
    stream.retain(max_age_ms=60_000)
    assert 2 in offsets(stream.read(1, 10))
    stream.seal()
    stream.retain(max_age_ms=60_000)
    assert 2 in offsets(stream.read(1, 10))


def test_retention_by_age_of_what_the_server_timed(client: Headwater, stream: Stream) -> None:
    for size in (1, 20, 700):
        stream.write_many(entries(size))
    let_pass(client, 5)
    assert stream.retain(max_age_ms=10**9).evicted == 0
    assert stream.retain(max_age_ms=1).evicted == 721


def test_retention_by_bytes(stream: Stream) -> None:
    for first in range(1, 20_001, 1000):
        stream.write_many(entries(1000, first))
    stream.seal()
    size = stream.info().bytes
    assert stream.retain(max_bytes=size).evicted == 0
    stream.retain(max_bytes=size // 2)
    info = stream.info()
    assert size // 4 < info.bytes <= size // 2
    assert offsets(stream.read(info.first, 5)) == list(range(info.first, info.first + 5))
    assert info.length == info.last - info.first + 1


@pytest.mark.parametrize("rows", [1, 4, 20])
def test_retention_by_bytes_of_what_is_not_sealed_yet(stream: Stream, rows: int) -> None:
    for first in range(0, 80, rows):
        stream.write_many([(f"t{i}", bytes([i]) * 50_000) for i in range(first, first + rows)])
    assert stream.info().sealed == 0 or rows == 20
    assert stream.info().bytes > 3_000_000 or rows == 20
    stream.retain(max_bytes=1_000_000)
    info = stream.info()
    assert info.bytes <= 1_000_000
    assert rows == 20 or info.length >= 10
    assert [m.tag for m in stream.read(info.first, 99) if m] == [
        f"t{i}" for i in range(info.first - 1, 80)
    ]


def test_the_tightest_limit_counts(client: Headwater, stream: Stream) -> None:
    now = server_ms(client)
    for age in (90_000, 0):
        times = [now - age] * 50
        stream.append(pa.table({"tag": ["t"] * 50, "value": [b"v"] * 50, "time": times}))
    assert stream.retain(max_count=80, max_age_ms=60_000).evicted == 50


def test_retention_waits_for_the_slowest_reader_and_names_it(stream: Stream) -> None:
    stream.write_many(entries(100))
    group = stream.group("slow")
    group.read(30, ack_ms=FAR)
    group.ack((1, 19))
    stream.register_reader("spark", 40)
    assert stream.retain(max_count=10) == (19, 71, "slow")
    assert stream.info().first == 20
    group.ack((20, 30))
    assert stream.retain(max_count=10) == (11, 60, "slow")
    group.seek("last")
    assert stream.retain(max_count=10) == (9, 51, "spark")
    stream.forget_reader("spark")
    assert stream.retain(max_count=10) == (51, 0, None)


def test_a_removed_group_is_no_longer_waited_for(stream: Stream) -> None:
    stream.write_many(entries(20))
    group = stream.group("g")
    group.read(0)
    assert stream.retain(max_count=5) == (0, 15, "g")
    group.remove()
    assert stream.retain(max_count=5) == (15, 0, None)


def test_forced_retention_passes_readers_and_they_are_told(stream: Stream) -> None:
    stream.write_many(entries(100))
    group = stream.group("g")
    group.read(10, ack_ms=FAR)
    assert stream.retain(max_count=20, force=True) == (80, 0, None)
    assert offsets(group.read(100, ack_ms=FAR)) == list(range(81, 101))
    assert (group.info().missed, group.info().gaps) == (70, ((11, 80),))
    assert group.nack((1, 10)) == 10
    assert group.read(100) == []
    assert (group.info().missed, group.info().gaps) == (80, ((11, 80), (1, 10)))


def test_the_policy_is_remembered_and_can_be_lifted(stream: Stream) -> None:
    stream.write_many(entries(20))
    stream.retain(max_count=15)
    assert stream.info().retention.max_count == 15
    stream.retain()
    assert stream.info().retention.max_count is None
    assert stream.info().length == 15


def test_readers_are_listed_and_forgotten(stream: Stream) -> None:
    stream.write_many(entries(5))
    stream.register_reader("b", 2)
    stream.register_reader("a", 5)
    stream.register_reader("b", 3)
    assert stream.info().readers == {"a": 5, "b": 3}
    stream.forget_reader("a")
    stream.forget_reader("a")
    assert stream.info().readers == {"b": 3}


def test_a_stream_with_nothing_due_is_left_alone(
    client: Headwater, stream: Stream, name: str
) -> None:
    stream.write_many([("tag", b"value")] * 20)
    before = stream.info()

    (kept,) = client.keep(name)

    assert not kept.changed
    assert kept.fault is None
    assert stream.info() == before


def test_without_names_every_stream_is_kept(client: Headwater, stream: Stream, name: str) -> None:
    stream.write("tag", b"value")
    assert name in [kept.stream for kept in client.keep()]


def test_full_nodes_are_sealed_and_the_rest_stays_in_the_tail(
    client: Headwater, stream: Stream, name: str
) -> None:
    for start in range(0, 1500, 300):
        stream.write_many([("tag", b"%d" % n) for n in range(start, start + 300)])
    unsealed = stream.info().last - stream.info().sealed

    (kept,) = client.keep(name)

    assert kept.sealed == unsealed - unsealed % 1000
    assert [message and message.value for message in stream.read(1, 1500)] == [
        b"%d" % n for n in range(1500)
    ]


def test_a_retention_policy_is_applied_up_to_the_slowest_reader(
    client: Headwater, stream: Stream, name: str
) -> None:
    stream.retain(max_count=10)
    stream.write_many([("tag", b"value")] * 50)
    stream.register_reader("outside", 21)

    (held,) = client.keep(name)
    assert (held.evicted, held.held, held.held_by) == (20, 20, "outside")

    stream.forget_reader("outside")
    (free,) = client.keep(name)
    assert (free.evicted, free.held, free.held_by) == (20, 0, None)
    assert stream.info().length == 10


def test_expired_messages_are_buried_although_nobody_reads(
    client: Headwater, stream: Stream, name: str
) -> None:
    stream.write_many([("tag", b"%d" % n) for n in range(5)])
    group = stream.group("workers", dead_letters=True)
    assert len(group.read(5, ack_ms=1, expire_ms=1)) == 5

    until(lambda: client.keep(name)[0].buried == 5)

    info = group.info()
    assert (info.pending, info.dead, info.expired) == (0, 5, 5)
    assert [letter.value for letter in group.dead()] == [b"%d" % n for n in range(5)]


def test_expired_messages_are_dropped_where_there_are_no_dead_letters(
    client: Headwater, stream: Stream, name: str
) -> None:
    stream.write_many([("tag", b"value")] * 5)
    group = stream.group("workers")
    group.read(5, ack_ms=1, expire_ms=1)

    until(lambda: client.keep(name)[0].expired == 5)

    info = group.info()
    assert (info.pending, info.dead, info.expired, info.ack_offset) == (0, 0, 5, 6)


def test_what_expires_is_found_behind_any_number_of_messages_that_wait_for_a_retry(
    client: Headwater, stream: Stream, name: str
) -> None:
    stream.write_many([("tag", b"value")] * 2100)
    group = stream.group("workers")
    for _ in range(2000):
        group.read(1, ack_ms=60_000)
    group.read(100, ack_ms=1500, expire_ms=1500)
    group.nack((1, 2000))

    until(lambda: client.keep(name)[0].expired == 100)

    assert group.info().pending == 2000


def test_turning_dead_letters_off_drops_what_had_expired_by_then(hw: Headwater, name: str) -> None:
    stream = hw.stream(name)
    stream.write_many([("tag", b"value")] * 3)
    stream.group("workers", dead_letters=True).read(3, ack_ms=1, expire_ms=1)

    def marked() -> Operation[list[ClaimedRange]]:
        # As by a housekeeper that dies before it buries.
        yield Call("hw_group_expire", stream_key(name), ("workers", 0))
        reply = yield Call("hw_group_bury", stream_key(name), ("workers", "", 0, 10))
        return BuryReply.of(reply).claims

    until(lambda: hw.store.run(marked()))

    without = stream.group("workers", dead_letters=False)
    assert without.read(3, ack_ms=1000) == []
    info = without.info()
    assert (info.pending, info.expired, info.dead) == (0, 3, 0)


def test_only_streams_that_ask_for_it_are_compacted(
    client: Headwater, stream: Stream, name: str
) -> None:
    stream.write_many([("a", b"1"), ("b", b"2"), ("a", b"3")])
    assert not stream.info().auto_compact
    assert client.keep(name)[0].compacted == 0

    stream.auto_compact()
    assert stream.info().auto_compact
    assert client.keep(name)[0].compacted == 1
    assert [message and message.offset for message in stream.read(1, 3)] == [None, 2, 3]

    stream.auto_compact(False)
    stream.write_many([("a", b"4")] * 10)
    assert client.keep(name)[0].compacted == 0
    assert stream.info().length == 12


def test_a_log_is_compacted_again_when_half_of_it_is_new(
    client: Headwater, stream: Stream, name: str
) -> None:
    stream.auto_compact()
    stream.write_many([(f"tag-{n}", b"1") for n in range(10)])
    client.keep(name)
    stream.write_many([(f"tag-{n}", b"2") for n in range(9)])
    assert client.keep(name)[0].compacted == 0

    stream.write("tag-9", b"2")
    assert client.keep(name)[0].compacted == 10
    assert client.keep(name)[0].compacted == 0


def test_silent_producers_and_members_are_forgotten(hw: Headwater, name: str) -> None:
    stream = hw.stream(name)
    for n in range(100):
        stream.write_many([("tag", b"value")], producer=f"producer-{n}", sequence=1)
    group = stream.group("workers")
    group.read(1)

    forgotten = Counter[str]()

    def everyone_is_forgotten() -> bool:
        tidy = retention.tidy(stream_key(name), producer_ms=1, member_ms=1)
        producers, members = hw.store.run(tidy)
        forgotten.update(producers=producers, members=members)
        return forgotten == {"producers": 100, "members": 1}

    until(everyone_is_forgotten)
    assert group.info().members == {}
    assert stream.write_many([("tag", b"value")], producer="producer-0", sequence=1) == range(
        101, 102
    )


def test_many_housekeepers_at_once_do_each_thing_once(
    store_url: str, hw: Headwater, name: str
) -> None:
    stream = hw.stream(name)
    stream.auto_compact()
    stream.retain(max_count=3000)
    for start in range(0, 6000, 250):
        stream.write_many([(f"tag-{n % 500}", b"%d" % n) for n in range(start, start + 250)])
    stream.group("workers", dead_letters=True, start=5000).read(100, ack_ms=1, expire_ms=1)
    stream.register_reader("outside", 3001)
    until(lambda: stream.group("workers").bury() or stream.group("workers").info().dead)

    reports: list[headwater.Kept] = []

    def keep() -> None:
        with headwater.connect(store_url) as own:
            for _ in range(5):
                reports.extend(own.keep(name))

    keepers = [threading.Thread(target=keep) for _ in range(4)]
    for keeper in keepers:
        keeper.start()
    for keeper in keepers:
        keeper.join()

    assert len(reports) == 20
    assert [kept.fault for kept in reports] == [None] * 20
    assert stream.group("workers").info().dead == 100
    newest = {message.tag: message.value for message in stream.read(1, 6000) if message}
    assert newest == {f"tag-{n % 500}": b"%d" % n for n in range(5500, 6000)}
    assert stream.info().last == 6000


# Names that begin with ``hw.`` are Headwater's own: nobody else makes an object of such a name.


OWN = "hw.audit.dead"
ROWS = pa.record_batch({"tag": ["t"], "value": [b"v"]})


def _taken_by_a_group(hw: headwater.Headwater) -> None:
    hw.stream("hw").write("t", b"v")
    # Its dead letters would be in hw.audit.dead.
    hw.stream("hw").group("audit", dead_letters=True)


WAYS: dict[str, Callable[[headwater.Headwater], object]] = {
    "write": lambda hw: hw.stream(OWN).write("t", b"v"),
    "write_many": lambda hw: hw.stream(OWN).write_many([("t", b"v")]),
    "append": lambda hw: hw.stream(OWN).append(ROWS),
    "stage": lambda hw: hw.stream(OWN).stage(ROWS, "staging"),
    "letters of a group": _taken_by_a_group,
    "letters by name": lambda hw: hw.stream("s").group("g", dead_letters=OWN),
    "topic": lambda hw: hw.topic(OWN).write("t", b"v"),
    "queue": lambda hw: hw.queue(OWN).push(b"v"),
    "queue settings": lambda hw: hw.queue(OWN).configure(max_attempts=3),
    "dirty list": lambda hw: hw.ick(OWN).add({"member": 1.0}),
    "channel": lambda hw: hw.ick_channel(OWN).add({"member": 1.0}),
}


@pytest.mark.parametrize("way", WAYS)
def test_a_name_of_headwaters_own_is_refused_before_anything_changes(
    server: Server, way: str
) -> None:
    with headwater.connect(server.url) as hw, server.client() as admin:
        with pytest.raises(InvalidInput, match=r"begin with 'hw\.' are Headwater's own; choose"):
            WAYS[way](hw)
        assert admin.keys(f"*{OWN}*") == []
        assert not any(name.startswith("hw.") for name in (*hw.streams(), *hw.queues()))
