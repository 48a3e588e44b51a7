"""What housekeeping promises: what is due is done, and nothing else."""

from __future__ import annotations

import threading
from collections import Counter

import headwater
from headwater import Headwater, Stream
from headwater.log import retention
from headwater.log.keys import stream_key
from headwater.log.replies import BuryReply, ClaimedRange
from headwater.store.call import Call, Operation
from tests.support.servers import until


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
