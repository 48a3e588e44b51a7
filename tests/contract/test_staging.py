"""What is staged is seen by nobody; what is published is in the stream once, in order."""

from __future__ import annotations

import threading

import pyarrow as pa
import pytest

from headwater import (
    Headwater,
    InvalidInput,
    Published,
    ReusedSequence,
    StagingGone,
    StaleSequence,
    Stream,
)
from headwater.log import retention, writing
from headwater.log.handles import StreamHandle
from headwater.log.keys import stream_key
from headwater.store.call import Call, Look, Operation
from tests.support.entries import entries
from tests.support.servers import until
from tests.support.stagings import all_of, left_behind, table
from tests.support.watch import blocked, let_pass

DAY_MS = 24 * 3600 * 1000


# ── Staging ──────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("size", [1, 8, 40, 500, 2500])
def test_what_is_staged_is_not_in_the_stream(client: Headwater, stream: Stream, size: int) -> None:
    stream.stage(table(entries(size)), "a")
    assert not stream.info().exists
    assert stream.read(1, 10) == []
    assert stream.name not in client.streams()


def test_batches_follow_one_another(stream: Stream) -> None:
    place = stream.stage(table(entries(1500)), "a")
    assert place == 2
    place = stream.stage(table(entries(10, 1501)), "a", place=place)
    place = stream.stage(table([]), "a", place=place)
    assert stream.stage(table(entries(90, 1511)), "a", place=place) == 4
    stream.publish("a", producer="p", sequence=1)
    assert all_of(stream) == entries(1600)


def test_a_batch_that_is_staged_again_at_its_place_changes_nothing(stream: Stream) -> None:
    place = stream.stage(table(entries(1500)), "a")
    assert stream.stage(table(entries(1500, 5000)), "a") == place, "even with other messages"
    last = stream.stage(table(entries(5, 1501)), "a", place=place)
    assert stream.stage(table(entries(1500)), "a") == place
    assert stream.stage(table(entries(5, 1501)), "a", place=place) == last
    stream.publish("a", producer="p", sequence=1)
    assert all_of(stream) == entries(1505)


def test_a_batch_behind_one_that_is_not_there_is_refused(stream: Stream) -> None:
    with pytest.raises(StagingGone) as caught:
        stream.stage(table(entries(5)), "a", place=1)
    assert (caught.value.stream, caught.value.staging) == (stream.name, "a")
    place = stream.stage(table(entries(5)), "a")
    stream.publish("a", producer="p", sequence=1)
    with pytest.raises(StagingGone):
        stream.stage(table(entries(5)), "a", place=place)
    assert stream.info().last == 5


def test_what_is_staged_is_forgotten_in_time(client: Headwater, stream: Stream) -> None:
    stream.stage(table(entries(2000)), "short", keep_ms=1)
    stream.stage(table(entries(3)), "long")
    until(lambda: len(left_behind(client, stream.name)) == 1)
    with pytest.raises(StagingGone) as caught:
        stream.publish("long", "short", producer="p", sequence=1)
    assert caught.value.staging == "short"
    stream.publish("long", producer="p", sequence=1)
    assert all_of(stream) == entries(3)


def test_what_is_added_to_is_kept_from_then_on(client: Headwater, stream: Stream) -> None:
    place = stream.stage(table(entries(3)), "a", keep_ms=DAY_MS)
    stream.stage(table(entries(3, 4)), "a", place=place, keep_ms=1)
    until(lambda: left_behind(client, stream.name) == set())
    place = stream.stage(table(entries(3)), "b", keep_ms=1500)
    stream.stage(table(entries(3, 4)), "b", place=place, keep_ms=DAY_MS)
    let_pass(client, 1600)
    assert len(left_behind(client, stream.name)) == 1


def test_unstaging_forgets(client: Headwater, stream: Stream) -> None:
    for name in ("a", "b", "c"):
        stream.stage(table(entries(2)), name)
    assert stream.unstage("a", "c", "never") == 2
    assert stream.unstage() == 0
    with pytest.raises(StagingGone):
        stream.publish("a", producer="p", sequence=1)
    stream.publish("b", producer="p", sequence=1)
    assert left_behind(client, stream.name) == set()


@pytest.mark.parametrize("bad", ["", "with space", "br{ace}", "x" * 201])
def test_names_are_checked_before_anything_is_sent(stream: Stream, bad: str) -> None:
    with pytest.raises(InvalidInput):
        stream.stage(table(entries(1)), bad)
    with pytest.raises(InvalidInput):
        stream.publish(bad, producer="p", sequence=1)
    with pytest.raises(InvalidInput):
        stream.publish("a", producer=bad, sequence=1)
    with pytest.raises(InvalidInput):
        stream.unstage(bad)


def test_what_the_log_does_not_take_is_not_staged(client: Headwater, stream: Stream) -> None:
    for columns in (
        {"tag": ["x" * 4097], "value": [b""]},
        {"tag": ["x"], "value": pa.array([None], pa.binary())},
        {"tag": ["x"], "value": [b""], "other": [1]},
        {"value": [b""]},
    ):
        with pytest.raises(InvalidInput):
            stream.stage(pa.table(columns), "a")
    with pytest.raises(InvalidInput, match="place"):
        stream.stage(table(entries(1)), "a", place=-1)
    with pytest.raises(InvalidInput, match="keep_ms"):
        stream.stage(table(entries(1)), "a", keep_ms=0)
    assert left_behind(client, stream.name) == set()


# ── Publishing ───────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("sizes", [(1,), (5, 1), (1000, 1000), (30, 2500, 1, 600)])
def test_stagings_are_published_in_the_order_named(
    client: Headwater, stream: Stream, sizes: tuple[int, ...]
) -> None:
    stream.write_many(entries(3))
    first, names = 4, []
    for number, size in enumerate(sizes):
        stream.stage(table(entries(size, first)), f"task-{number}")
        names.append(f"task-{number}")
        first += size
    assert stream.publish(*names, producer="p", sequence=1) == Published(4, first - 1)
    assert all_of(stream) == entries(first - 1)
    assert left_behind(client, stream.name) == set()
    assert stream.name in client.streams()
    stream.write_many(entries(2, first))
    assert stream.info().last == first + 1


def test_large_batches_are_nodes_at_once(stream: Stream) -> None:
    stream.write_many(entries(3))
    for number in range(3):
        stream.stage(table(entries(2000, 4 + number * 2000)), f"t{number}")
    stream.publish("t0", "t1", "t2", producer="p", sequence=1)
    info = stream.info()
    assert (info.sealed, info.last) == (6003, 6003)
    assert info.nodes == 7


def test_a_small_staging_does_not_keep_those_behind_it_from_being_nodes(stream: Stream) -> None:
    first = 1
    for number, size in enumerate((2000, 3, 1400, 7, 3000)):
        stream.stage(table(entries(size, first)), f"t{number}")
        first += size
    stream.publish(*(f"t{number}" for number in range(5)), producer="p", sequence=1)
    info = stream.info()
    assert (info.sealed, info.last, info.nodes) == (6410, 6410, 9)
    assert all_of(stream) == entries(6410)


def test_times_of_the_writer_stay(stream: Stream) -> None:
    times = [10**12 + i for i in range(600)]
    rows = table(entries(600)).append_column("time", pa.array(times))
    stream.stage(rows, "a")
    stream.publish("a", producer="p", sequence=1)
    assert [m.time_ms for m in stream.read(1, 600) if m] == times


def test_a_repeat_changes_nothing_and_drops_what_was_staged_again(
    client: Headwater, stream: Stream
) -> None:
    stream.stage(table(entries(700)), "a")
    first = stream.publish("a", producer="p", sequence=1)
    stream.write_many(entries(2))
    stream.stage(table(entries(700)), "again")
    assert stream.publish("again", producer="p", sequence=1) == first == Published(1, 700)
    assert stream.publish("again", producer="p", sequence=1) == first
    assert stream.info().last == 702
    assert left_behind(client, stream.name) == set()
    assert client.stream(stream.name).publish(producer="p", sequence=1) == first


def test_a_repeat_with_other_content_is_refused_and_what_was_staged_stays(
    client: Headwater, stream: Stream
) -> None:
    for name, size in (("a", 3), ("b", 3), ("c", 4)):
        stream.stage(table(entries(size)), name)
    found = stream.publish("a", producer="p", sequence=1, content="3a.77")
    assert stream.publish("b", producer="p", sequence=1, content="9.3a") == found, "in common"
    with pytest.raises(ReusedSequence, match="which is at 1 to 3") as caught:
        stream.publish("c", producer="p", sequence=1, content="4c.7")
    assert (caught.value.first, caught.value.last) == (1, 3)
    assert len(left_behind(client, stream.name)) == 1
    stream.publish("c", producer="p", sequence=2, content="4c")
    assert all_of(stream) == entries(3) + entries(4)


def one(call: Call) -> Operation[object]:
    return (yield call)


def test_so_it_is_while_the_first_is_being_published(client: Headwater, stream: Stream) -> None:
    # A batch fit to be a node waits for the message before it to be sealed.
    stream.write("t", b"v")
    for name in ("a", "b", "c"):
        stream.stage(table(entries(1000)), name)
    client.store.run(one(Call("hw_stream_publish", stream_key(stream.name), ("p", "1:3a", "a"))))
    with pytest.raises(ReusedSequence, match="than the first time; give new content"):
        stream.publish("b", producer="p", sequence=1, content="3b")
    assert stream.publish("c", producer="p", sequence=1, content="3a") == Published(2, 1001)
    with pytest.raises(ReusedSequence):
        stream.publish("b", producer="p", sequence=1, content="3b")
    assert stream.info().last == 1001


@pytest.mark.parametrize("bad", ["", "x", "3A", "a..b", ".", "a" * 65])
def test_a_digest_of_the_content_is_checked_before_anything_is_sent(
    stream: Stream, bad: str
) -> None:
    with pytest.raises(InvalidInput, match="give a digest"):
        stream.publish("a", producer="p", sequence=1, content=bad)


def test_publishing_nothing_is_remembered_too(client: Headwater, stream: Stream) -> None:
    assert stream.publish(producer="p", sequence=1) == Published(1, 0)
    assert not stream.info().exists
    stream.stage(table(entries(5)), "a")
    assert stream.publish("a", producer="p", sequence=1) == Published(1, 0)
    assert not stream.info().exists
    assert left_behind(client, stream.name) == set()


def test_sequences_grow_as_those_of_writes_do(stream: Stream) -> None:
    for sequence in range(1, 140):
        stream.stage(table(entries(1, sequence)), f"s{sequence}")
        stream.publish(f"s{sequence}", producer="p", sequence=sequence)
    stream.stage(table(entries(1)), "late")
    with pytest.raises(StaleSequence) as caught:
        stream.publish("late", producer="p", sequence=3)
    assert (caught.value.sequence, caught.value.newest) == (3, 139)
    assert stream.publish("late", producer="q", sequence=3) == Published(140, 140)
    assert stream.write_many(entries(1), producer="p", sequence=139) == range(139, 140)


def test_a_staging_that_is_not_there_stops_the_publish_before_it_begins(stream: Stream) -> None:
    stream.stage(table(entries(5)), "a")
    with pytest.raises(StagingGone):
        stream.publish("a", "b", producer="p", sequence=1)
    assert not stream.info().exists
    stream.stage(table(entries(5, 6)), "b")
    assert stream.publish("a", "b", producer="p", sequence=1) == Published(1, 10)


def test_a_staging_is_named_once(stream: Stream) -> None:
    stream.stage(table(entries(5)), "a")
    with pytest.raises(InvalidInput, match="twice"):
        stream.publish("a", "a", producer="p", sequence=1)


@pytest.mark.usefixtures("nodes_of_two")
def test_a_publish_of_many_nodes_goes_in_steps_and_keeps_its_order(
    client: Headwater, stream: Stream
) -> None:
    for number in range(3):
        stream.stage(table(entries(700, 1 + number * 700)), f"t{number}")
    stream.publish("t0", "t1", "t2", producer="p", sequence=1)
    assert all_of(stream) == entries(2100)
    assert left_behind(client, stream.name) == set()


@pytest.mark.parametrize("ack_ms", [None, 60_000])
def test_a_blocked_member_is_woken_by_a_publish(
    client: Headwater, stream: Stream, ack_ms: int | None
) -> None:
    group = client.stream(stream.name).group("g")
    before = blocked(client)
    taken: list[bytes] = []

    def read() -> None:
        messages = group.read(10, block_ms=20_000, ack_ms=ack_ms)
        taken.extend(message.value for message in messages)

    member = threading.Thread(target=read)
    member.start()
    until(lambda: blocked(client) > before)
    stream.stage(table(entries(4)), "a")
    stream.publish("a", producer="p", sequence=1)
    handed_out_up_to = client.stream(stream.name).group("g").info().next
    member.join(60)
    assert handed_out_up_to == 5, "by the publish itself"
    assert taken == [value for _, value in entries(4)]


def test_publishers_at_once_publish_once(client: Headwater, stream: Stream) -> None:
    names = []
    for number in range(40):
        stream.stage(table(entries(30, 1 + number * 30)), f"t{number}")
        names.append(f"t{number}")
    handles = [client.stream(stream.name) for _ in range(4)]
    answers: list[Published] = []

    def publish(handle: Stream) -> None:
        answers.append(handle.publish(*names, producer="p", sequence=1))

    threads = [threading.Thread(target=publish, args=(handle,)) for handle in handles]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert answers == [Published(1, 1200)] * 4
    assert all_of(stream) == entries(1200)


# ── A publish that was begun and left is finished by whoever comes next ──────────────────────────


def begin(client: Headwater, name: str, *stagings: str, sequence: int) -> None:
    """Do the first call of a publish, and no more."""
    operation = writing.publish(StreamHandle(name, set()), stagings, "p", sequence)
    call = operation.send(None)

    def one_call() -> Operation[None]:
        yield call

    client.store.run(one_call())


def half_published(client: Headwater, stream: Stream, sequence: int = 1) -> None:
    """Leave a publish of 1400 messages after its first step."""
    for number in range(2):
        stream.stage(table(entries(700, 1 + number * 700)), f"s{sequence}t{number}")
    names = [f"s{sequence}t{number}" for number in range(2)]
    begin(client, stream.name, *names, sequence=sequence)
    assert 0 < stream.info().last % 1400 < 1400


@pytest.mark.usefixtures("nodes_of_two")
def test_what_a_publish_has_begun_with_stays_with_it(client: Headwater, stream: Stream) -> None:
    half_published(client, stream)
    assert stream.unstage("s1t0", "s1t1") == 0
    with pytest.raises(StagingGone):
        stream.stage(table(entries(1)), "s1t1", place=0)
    with pytest.raises(StagingGone):
        stream.publish("s1t1", producer="q", sequence=1)
    stream.publish(producer="p", sequence=1)
    assert all_of(stream) == entries(1400)


@pytest.mark.usefixtures("nodes_of_two")
def test_what_a_publish_has_begun_with_does_not_expire(client: Headwater, stream: Stream) -> None:
    for number in range(2):
        rows = table(entries(700, 1 + number * 700))
        stream.stage(rows, f"t{number}", keep_ms=3000)
    begin(client, stream.name, "t0", "t1", sequence=1)
    let_pass(client, 3100)
    stream.publish(producer="p", sequence=1)
    assert all_of(stream) == entries(1400)


@pytest.mark.usefixtures("nodes_of_two")
def test_the_housekeeper_finishes_a_publish_that_was_left(
    client: Headwater, stream: Stream
) -> None:
    half_published(client, stream)
    (kept,) = client.keep(stream.name)
    assert kept.published == 0, "it may be under way"
    kept = client.store.run(retention.keep(StreamHandle(stream.name, set()), left_ms=0))
    assert kept.published == 1
    assert kept.changed
    assert all_of(stream) == entries(1400)
    assert client.keep(stream.name)[0].published == 0


@pytest.mark.usefixtures("nodes_of_two")
def test_a_stream_that_is_deleted_takes_its_unfinished_publish_along(
    client: Headwater, stream: Stream
) -> None:
    half_published(client, stream)
    assert stream.delete()
    assert left_behind(client, stream.name) == set()
    stream.write("new", b"1")
    assert all_of(stream) == [("new", b"1")]


@pytest.mark.usefixtures("nodes_of_two")
def test_a_write_with_a_later_sequence_stays_the_newest(client: Headwater, stream: Stream) -> None:
    half_published(client, stream, sequence=5)
    at = stream.write_many(entries(1), producer="p", sequence=6)
    stream.publish(producer="p", sequence=5)
    assert stream.write_many(entries(1), producer="p", sequence=6) == at
    with pytest.raises(StaleSequence):
        stream.publish(producer="p", sequence=4)


def staged(client: Headwater, stream: Stream, prefix: str = "") -> int:
    return client.store.run(writing.staged_bytes(StreamHandle(stream.name, set()), prefix))


def listed(client: Headwater, stream: Stream) -> int:
    key = stream_key(stream.name)

    def look() -> Operation[int]:
        (count,) = yield Look(key, (("ZCARD", f"{key}:stagings"),))
        return int(count)

    return client.store.run(look())


@pytest.mark.usefixtures("nodes_of_two")
def test_what_is_staged_is_counted_in_bytes_until_it_is_published(
    client: Headwater, stream: Stream
) -> None:
    assert staged(client, stream) == 0
    half_published(client, stream)
    left = staged(client, stream)
    stream.stage(table(entries(700)), "q-1")
    one = staged(client, stream, "q-")
    assert (one > 0, staged(client, stream)) == (True, left + one)
    stream.stage(table(entries(700)), "q-1")
    assert staged(client, stream, "q-") == one, "a repeat stages nothing"
    # A step of a publish takes its part away, and the last one the rest.
    assert 0 < left < 2 * one
    stream.publish(producer="p", sequence=1)
    assert staged(client, stream) == one
    stream.unstage("q-1")
    assert (staged(client, stream), listed(client, stream)) == (0, 0)


def test_what_expires_is_not_counted(client: Headwater, stream: Stream) -> None:
    stream.stage(table(entries(10)), "gone", keep_ms=1)
    until(lambda: staged(client, stream) == 0)
    stream.stage(table(entries(10)), "there", keep_ms=DAY_MS)
    assert staged(client, stream) == staged(client, stream, "there") > 0
    assert listed(client, stream) == 1, "the name of what has expired is forgotten"
